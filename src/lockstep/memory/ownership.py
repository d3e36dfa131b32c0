"""Whose a state is: `step` leaves it as it was, unless it is told that nobody reads it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_given_up = False


@contextmanager
def given_up() -> Iterator[None]:
    """Inside, `step` may write over the state it is given, so that large caches and memories are not copied.

    Whoever says so steps by one token, and gives each tensor of the state in one piece, and no two that are one. It
    holds for the whole process: no other thread may step meanwhile.
    """
    global _given_up
    before, _given_up = _given_up, True
    try:
        yield
    finally:
        _given_up = before


def is_given_up() -> bool:
    return _given_up


def owned(state: Tensor) -> Tensor:
    """What may be written over: the tensor itself where it was given up, and a copy in one piece elsewhere."""
    return state if _given_up else state.clone(memory_format=torch.contiguous_format)
