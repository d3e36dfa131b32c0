"""Calls that are recorded once as a CUDA graph: all their kernels are then started at once, and Python is not asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Given = tuple[Tensor | None, ...]


class Recording:
    """The kernels of one call, which always read and write the same memory."""

    def __init__(self, compute: Callable[..., Tensor], given: Given) -> None:
        """`compute` must have run before with such tensors: what is compiled or chosen on the way cannot be recorded.

        A RuntimeError says that there is no memory, or that an operation waits for the device.
        """
        self.given = [None if x is None else x.clone() for x in given]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool()):
            self.result = compute(*self.given)

    def replay(self, given: Given) -> Tensor:
        """What the call gives for other tensors of the same shapes."""
        for place, x in zip(self.given, given, strict=True):
            if place is not None and x is not None:
                place.copy_(x)
        self.graph.replay()
        return self.result.clone()


@cache
def pool() -> Any:
    """One for all recordings: they never run at once, and what outlives a replay is copied."""
    return torch.cuda.graph_pool_handle()
