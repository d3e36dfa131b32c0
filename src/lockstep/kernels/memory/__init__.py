"""The memory's chunks as Triton kernels; `lockstep.memory.chunked` is their torch twin."""
