"""Who comes last: programs of one kernel that leave work to the last of them, which would take a second kernel else.

A token is decoded by kernels that have little to do, and starting one costs more than what it does. So programs that
share something store their parts of it, arrive at a counter, and whoever finds that all others have been there goes on
with what they stored. Nobody waits for anybody.

Why the last one sees what the others stored, and may write over what they read: all threads of a program meet at a
barrier, behind which one of them arrives. Its addition releases whatever came before it, also by the threads that it
met, and acquires what was released by the additions before it, to which all threads of the last program are then led by
the barrier through which they are told the count. Loads and stores before any arrival are thus before all that the last
one does.

The last one leaves zero behind, as the next kernel wants to find it. Counters belong to an operator on a device, whose
calls must follow each other there: two at once, on streams that do not wait for one another, would count each other's
programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FEWEST = 1024
"""Counters of an operator at least: a few kilobytes, of which there need not be several sizes."""

_counters: dict[tuple[str, torch.device], list[Tensor]] = {}
"""All there ever were, the largest last: recorded graphs may still count by smaller ones."""


def counters(operator: str, device: torch.device, count: int) -> Tensor:
    """At least as many zeros of 32 bits, the same at every call.

    A graph that is recorded would set them to zero only as it is replayed, and may not own them: they must be there.
    """
    made = _counters.setdefault((operator, device), [])
    if not made or len(made[-1]) < count:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{operator} must have run with as many rows before it is recorded")
        made.append(torch.zeros(max(triton.next_power_of_2(count), FEWEST), dtype=torch.int32, device=device))
    return made[-1]


@triton.jit
def is_last(counter: tl.tensor, expected: int) -> tl.tensor:
    """Whether all `expected` programs have come to this counter, of which this is one."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def advance(position: tl.tensor, at: tl.tensor, counter: tl.tensor, expected: int) -> None:
    """One token further than `at`, where all `expected` programs have come that might have had to read it yet."""
    if is_last(counter, expected):
        tl.store(position, at + 1)
