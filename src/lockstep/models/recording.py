"""Calls that are recorded once as a CUDA graph: all their kernels are then started at once, and Python is not asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from weakref import WeakSet

import torch
from torch import Tensor

Given = tuple[Tensor | None, ...]

WARM = 2
"""Calls before one is recorded: the first compiles, and the next may still choose kernels."""


class Recording:
    """The kernels of one call, which always read and write the same memory."""

    def __init__(self, compute: Callable[..., Tensor], given: Given) -> None:
        """`compute` must have run before with such tensors: what is compiled or chosen on the way cannot be recorded.

        A RuntimeError says that there is no memory, or that an operation waits for the device.
        """
        self.given = [None if x is None else x.clone() for x in given]
        self.graph = torch.cuda.CUDAGraph()
        # One pool for all: they never run at once, and what outlives a replay is copied.
        pool = next((one.graph.pool() for one in _alive), None)
        here = torch.cuda.current_stream()
        # torch leaves its own stream behind where a recording fails.
        with torch.cuda.stream(here), torch.cuda.graph(self.graph, pool=pool, stream=recording_stream(here.device)):
            self.result = compute(*self.given)
        _alive.add(self)

    def replay(self, given: Given) -> Tensor:
        """What the call gives for other tensors of the same shapes."""
        for place, x in zip(self.given, given, strict=True):
            if place is not None and x is not None:
                place.copy_(x)
        self.graph.replay()
        return self.result.clone()


_alive: WeakSet[Recording] = WeakSet()


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which everything is recorded."""
    return torch.cuda.Stream(device)


@contextmanager
def where_recorded(device: torch.device) -> Iterator[None]:
    """On that stream, for calls with derivatives before they are recorded; without a GPU nothing changes.

    Where anything of a call's derivatives is still held, the next call's gradients go by the stream of that one. A
    recording cannot wait for a stream outside of it.
    """
    if device.type != "cuda":
        yield
        return
    here, there = torch.cuda.current_stream(device), recording_stream(device)
    there.wait_stream(here)
    try:
        with torch.cuda.stream(there):
            yield
    finally:
        here.wait_stream(there)


def recorded(compute: Callable[..., Tensor], given: Given, what: str) -> Recording | None:
    """The recording; where it cannot be made, a warning says why and `what` goes on without it."""
    try:
        return Recording(compute, given)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        _leave_capture()
        warnings.warn(f"{what} is not replayed as a CUDA graph: {reason}", stacklevel=3)
        return None


def _leave_capture() -> None:
    """Where a recording fails, torch takes it to go on, and refuses to draw random numbers until another has ended."""
    if torch.cuda.is_initialized():
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
