"""Kernels for GPUs, each the twin of a form in plain torch, and the choice between the two."""
