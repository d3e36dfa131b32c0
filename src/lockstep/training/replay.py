"""Gradients of micro-batches: computed call by call at first, then replayed as one graph of a GPU's kernels.

Python starts the many small kernels of a memory more slowly than a GPU runs them. A CUDA graph is started at once, and
runs the same kernels on the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from lockstep.models.recording import WARM, Given, Recording, recorded, where_recorded

Compute = Callable[..., Tensor]
"""Of tensors, some of which may be missing: adds to gradients, and returns what is to be known of it."""
Kind = tuple[tuple[torch.Size, torch.dtype] | None, ...]
"""Shapes and precisions."""


class Gradients:
    """Of some parameters, by one way to compute them."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, replayed: bool) -> None:
        """Without `replayed` every call is computed as it comes."""
        self.parameters, self.replayed = tuple(parameters), replayed
        self.seen: Counter[Kind] = Counter()
        self.recordings: dict[Kind, Recording] = {}
        self.learning: set[nn.Parameter] = set()
        """Those that any call had a gradient for."""

    def __call__(self, compute: Compute, *given: Tensor | None) -> Tensor:
        """What `compute`, the same in every call, returns for these tensors."""
        kind = tuple(None if x is None else (x.shape, x.dtype) for x in given)
        self.seen[kind] += 1
        if self.replayed and self.seen[kind] > WARM and kind not in self.recordings:
            self._record(compute, kind, given)
        if kind in self.recordings:
            return self.recordings[kind].replay(given)
        with where_recorded(self.parameters[0].device) if self.replayed else nullcontext():
            result = compute(*given)
        self.learning.update(parameter for parameter in self.parameters if parameter.grad is not None)
        return result

    def _record(self, compute: Compute, kind: Kind, given: Given) -> None:
        """From here on gradients stay where they are. If it cannot be done, steps go on as before."""
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        recording = recorded(compute, given, "training")
        if recording is None:
            self.replayed = False
        else:
            self.recordings[kind] = recording

    def forget(self) -> None:
        """Give back the memory of recordings and gradients; the next call records anew."""
        self.recordings.clear()
        self.clear()

    def clear(self) -> None:
        """No gradients, for the next step."""
        if self.recordings:
            torch._foreach_zero_([parameter.grad for parameter in self.parameters if parameter.grad is not None])
            return
        for parameter in self.parameters:
            parameter.grad = None
