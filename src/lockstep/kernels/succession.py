"""Kernels that begin before the one before them has ended, where a device can do that (programmatic dependent launch).

A token is decoded by kernels of a few microseconds, one behind the other. One that is started this way comes to its
multiprocessors while the one before it still runs, asks for what that one does not write, and waits for its end there.

It holds for every kernel here: it waits before it reads what another may have left, and before it writes anything; and
it lets the next one begin only behind its own waiting. So no more than two kernels ever run at once, and what a kernel
asks for before it waits must not be written by the one right before it; whatever came earlier has ended.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels on it can be started so: from Hopper on."""
    if os.environ.get("LOCKSTEP_PDL") != "1":
        return False
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def started(x: Tensor) -> dict[str, bool]:
    """How kernels on this tensor's device are: the constant OVERLAPS, and the option of Triton's that it wants."""
    return {"OVERLAPS": True, "launch_pdl": True} if overlaps(x.device) else {"OVERLAPS": False}


@triton.jit
def await_the_one_before(OVERLAPS: tl.constexpr) -> None:
    """All that the kernel before this one has written is there; and the next may begin."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
