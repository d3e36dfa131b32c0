"""Rows of a memory made of their projections by Triton kernels; `lockstep.models.mixers.neural_memory` is the twin."""
