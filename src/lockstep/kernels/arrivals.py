"""Programs of one kernel that wait for each other's work, for which there would be a second kernel else.

A token is decoded by kernels that have little to do: starting one costs more than what it does. So programs that share
something leave it to one of them to put together what all have found. There are three ways.

They come to a counter, and whoever finds that all others have been there goes on with what they stored; nobody waits.
Why that one sees it, and may write over what they read: all threads of a program meet at a barrier, behind which one of
them arrives. Its addition releases whatever came before it, also by the threads that it met, and acquires what was
released by the additions before it, to which all threads of the last program are then led by the barrier through which
they are told the count. Loads and stores before any arrival are thus before all that the last one does.

Or they say what they have found in places that were silent, and one of them listens until none is, and leaves silence
behind. A number tells by itself that it is there, so that nothing has to be stored before something else: one trip to
the memory that all multiprocessors share, where a counter takes three. Whoever has spoken has read all that it says
something of. A listener asks for all numbers each time, so that there must be few.

Or they come to a counter early, when they have read what is to be written over, and one of them waits at its end until
all have: for a position, which is small and which everybody reads first.

Who listens, or waits for a counter, has the highest number of those it waits for. A device starts programs in this
order, so that they have all begun, and none of them waits for room.

Counters are zero again when a kernel has ended, and places silent, as the next one wants to find them. They belong to
an operator on a device, whose calls must follow each other there: two at once, on streams that do not wait for one
another, would take each other's programs for their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NEVER = tl.constexpr(-(2**62))
"""A position that there is not."""
FEWEST = 1024
"""Counters of an operator at least: a few kilobytes, of which there need not be several sizes."""
SILENT = tl.constexpr(0x7FA5A5A5)
"""Bits that are no number's, and that no arithmetic makes of any: what is not a number comes out of it otherwise."""

_kept: dict[tuple[str, torch.device, int], list[Tensor]] = {}
"""All there ever were, the largest last: recorded graphs may still use smaller ones."""


def counters(operator: str, device: torch.device, count: int) -> Tensor:
    """At least as many zeros of 32 bits, the same at every call."""
    return kept(operator, device, count, 0)


def silence(operator: str, device: torch.device, count: int) -> Tensor:
    """At least as many places of 32 bits, all of them silent; the same at every call."""
    return kept(operator, device, count, SILENT.value)


def kept(operator: str, device: torch.device, count: int, bits: int) -> Tensor:
    """At least as many of these.

    A graph that is recorded would set them only as it is replayed, and may not own them: they must be there.
    """
    made = _kept.setdefault((operator, device, bits), [])
    if not made or len(made[-1]) < count:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{operator} must have run with as many rows before it is recorded")
        size = max(triton.next_power_of_2(count), FEWEST)
        made.append(torch.full((size,), bits, dtype=torch.int32, device=device))
    return made[-1]


@triton.jit
def say(places: tl.tensor, numbers: tl.tensor) -> None:
    """To whoever hears them."""
    tl.store(places, numbers.to(tl.int32, bitcast=True))


@triton.jit
def heard(places: tl.tensor) -> tl.tensor:
    """What has been said in them, when all of it has; silence is left behind.

    No two threads may listen to the same element of this tensor: one could hear what another has not, and only one of
    them would be asked.
    """
    bits = tl.load(places, volatile=True)
    while tl.max(tl.ravel(bits == SILENT).to(tl.int32), axis=0) > 0:
        bits = tl.load(places, volatile=True)
    tl.debug_barrier()  # all threads have heard it
    tl.store(places, tl.full(bits.shape, SILENT, tl.int32))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def come(counter: tl.tensor, at: tl.tensor) -> None:
    """One more program has read `at`: all of its threads, and the one that adds has it, because it asks about it."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, mask=at > NEVER, sem="relaxed", scope="gpu")


@triton.jit
def advance(position: tl.tensor, at: tl.tensor, counter: tl.tensor, expected: int) -> None:
    """One token further than `at`, when all `expected` programs that have to read it have come."""
    count = tl.load(counter, volatile=True)
    while count != expected:
        count = tl.load(counter, volatile=True)
    tl.debug_barrier()  # all threads have seen it
    tl.store(counter, 0)
    tl.store(position, at + 1)


@triton.jit
def is_last(counter: tl.tensor, expected: int) -> tl.tensor:
    """Whether all `expected` programs have come to this counter, of which this is one."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(counter, 0)
    return last
