"""Softmax attention as Triton kernels; `lockstep.models.mixers.attention` has their torch twins and the choice."""
