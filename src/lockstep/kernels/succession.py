"""Kernels that begin before the one before them has ended, where a device can do that (programmatic dependent launch).

A token is decoded by kernels of a few microseconds, one behind the other. One that is started this way comes to its
multiprocessors while the one before it still runs, asks for what no kernel of this token writes, and waits for the end
of the one before. LOCKSTEP_PDL=0 has all start in turn.

It holds for every kernel here: it waits (`waiting`) before it reads what this token's kernels may have left, and before
it writes anything; and it lets the next one of its stream begin only behind its own waiting. What it asks for before is
weights of the model, or state that the same kernel wrote a token ago: there are whole kernels between. Only a `Decoder`
can promise that, whose state nobody else touches between two tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_promised = False


@contextmanager
def token_by_token() -> Iterator[None]:
    """Inside, the state of a step was written by the step before it, and by nobody since."""
    global _promised
    before, _promised = _promised, True
    try:
        yield
    finally:
        _promised = before


def wanted() -> bool:
    """By the user."""
    return os.environ.get("LOCKSTEP_PDL") != "0"


@cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels on it can be started so, and are wanted to be: from Hopper on."""
    if not wanted() or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def started(x: Tensor) -> dict[str, bool]:
    """How kernels on this tensor's device are: the constant OVERLAPS, and the option of Triton's that it wants."""
    return {"OVERLAPS": True, "launch_pdl": True} if _promised and overlaps(x.device) else IN_TURN


IN_TURN = {"OVERLAPS": False}
"""How kernels are started otherwise."""
