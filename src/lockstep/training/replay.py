"""Gradients of micro-batches: computed call by call at first, then replayed as one graph of a GPU's kernels.

Python starts the many small kernels of a memory more slowly than a GPU runs them. A CUDA graph is started at once, and
runs the same kernels on the same numbers.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from lockstep.models.recording import Given, Recording

Compute = Callable[..., Tensor]
"""Of tensors, some of which may be missing: adds to gradients, and returns what is to be known of it."""
Kind = tuple[tuple[torch.Size, torch.dtype] | None, ...]
"""Shapes and precisions."""

WARM = 2
"""Calls before one is recorded: the first compiles, and the next may still choose kernels."""


class Gradients:
    """One way to compute them, whatever the calls."""

    def __init__(self, compute: Compute, parameters: Iterable[nn.Parameter], *, replayed: bool) -> None:
        """Without `replayed` every call is computed as it comes."""
        self.compute, self.parameters, self.replayed = compute, tuple(parameters), replayed
        self.seen: Counter[Kind] = Counter()
        self.recordings: dict[Kind, Recording] = {}
        self.learning: list[nn.Parameter] = []

    def __call__(self, *given: Tensor | None) -> Tensor:
        kind = tuple(None if x is None else (x.shape, x.dtype) for x in given)
        self.seen[kind] += 1
        if self.replayed and self.seen[kind] > WARM and kind not in self.recordings:
            self._record(kind, given)
        if kind in self.recordings:
            return self.recordings[kind].replay(given)
        result = self.compute(*given)
        self.learning = [parameter for parameter in self.parameters if parameter.grad is not None]
        return result

    def _record(self, kind: Kind, given: Given) -> None:
        """From here on gradients stay where they are. If it cannot be done, steps go on as before."""
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        try:
            self.recordings[kind] = Recording(self.compute, given)
        except RuntimeError as error:  # of memory, or of an operation that waits for the device
            self.replayed = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"training.compile: steps are not replayed as a CUDA graph: {reason}", stacklevel=3)

    def clear(self) -> None:
        """No gradients, for the next step."""
        if self.recordings:
            torch._foreach_zero_([parameter.grad for parameter in self.parameters if parameter.grad is not None])
            return
        for parameter in self.parameters:
            parameter.grad = None
