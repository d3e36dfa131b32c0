"""Two things that do not wait for each other, at once where a token is decoded on a GPU.

A token's kernels are small, and each waits for the one before: what counts is how many of them stand in a row. A
recorded step keeps what streams say of who waits for whom.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lockstep.memory.ownership import is_given_up

Call = tuple[Callable[..., Any], Tensor, *tuple[Any, ...]]
"""A function and what it is given."""


def both(first: Call, second: Call) -> tuple[Any, Any]:
    """What each of them gives. Operators that both use must not have `arrivals`."""
    if is_given_up() and first[1].is_cuda:
        found: tuple[Any, Any] = on_two_streams(first, second)
        return found
    return first[0](*first[1:]), second[0](*second[1:])


# A compiler knows one stream alone: it is shown what runs on each of them, and not this.
@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator] # torch leaves it untyped
def on_two_streams(first: Call, second: Call) -> tuple[Any, Any]:
    """What is allocated aside is used again there alone, and the next one there waits for all that was done here."""
    here, aside = torch.cuda.current_stream(first[1].device), side_stream(first[1].device)
    aside.wait_stream(here)
    try:
        with torch.cuda.stream(aside):
            found = first[0](*first[1:])
        return found, second[0](*second[1:])
    finally:
        here.wait_stream(aside)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The same at every call: libraries have room for their work on each stream that they have seen."""
    return torch.cuda.Stream(device)
