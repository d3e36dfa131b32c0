"""Linear recurrences as Triton kernels; `lockstep.models.recurrences` has their torch twins and the choice."""
