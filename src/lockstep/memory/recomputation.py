"""Doing cheap things twice to keep less in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recomputed(function: Callable[..., T], *arguments: Any) -> T:
    """The function's value; where gradients are wanted, only its arguments are kept, and it is run again for them.

    It must not draw random numbers: the second time they would be others. A compiler sees the whole graph and chooses
    itself what to compute again, so that it is not told.
    """
    return function(*arguments) if torch.compiler.is_compiling() else never_kept(function, *arguments)


def never_kept(function: Callable[..., T], *arguments: Any) -> T:
    """The same, and a compiler is told: what it hands to an operator that it cannot look into, it would keep."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    value: T = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return value


def as_operand(x: Tensor) -> Tensor:
    """As products take it: autocast would lower it where they begin, and there a compiler keeps it."""
    kind = x.device.type
    # Autocast leaves float64 alone, and has never heard of tensors without a device.
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))
