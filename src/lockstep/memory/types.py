"""What goes into a memory and comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

Weights = tuple[Tensor, ...]
"""One matrix per layer, [..., in, out]; rows of tokens are multiplied from the left."""


class Gates(NamedTuple):
    """How much each token keeps, writes and carries on; each [batch, heads, time]. Exact zeros are legal."""

    keep: Tensor
    """1 - alpha: what remains of the memory."""
    rate: Tensor
    """theta: the step along the gradient."""
    momentum: Tensor | None = None
    """eta: what remains of the velocity; only with the momentum rule."""
    threshold: Tensor | None = None
    """delta: where Huber's loss turns linear; only with the Huber bias."""

    def each(self, function: Callable[[Tensor], Tensor]) -> Gates:
        """The gates with a function applied to each of those that are there."""
        return Gates(
            function(self.keep),
            function(self.rate),
            None if self.momentum is None else function(self.momentum),
            None if self.threshold is None else function(self.threshold),
        )


class Memory(NamedTuple):
    """The weights that change at test time, [batch, heads, in, out] each, and their velocity under momentum.

    What is held is the accumulated variable: the weights themselves, A for lq, log W (up to a shift) for kl.
    """

    weights: Weights
    velocity: Weights | None = None


class Outer(NamedTuple):
    """What the outer model lends to the memory and the memory never changes."""

    gain: Tensor | None = None
    """[heads, value_dim], of the norm."""
    shift: Tensor | None = None
    """[heads, value_dim], of the norm."""
    initial: Weights | None = None
    """[heads, in, out] or [batch, heads, in, out] each: where forgetting leads under `decay_to` initial."""


def exactly(device: torch.device) -> AbstractContextManager[object]:
    """Where autocast would lower the products of a memory, it is turned off."""
    # A device without autocast is never compiled for, and the compiler cannot look at the question.
    if not torch.compiler.is_compiling() and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """Memories are computed in at least float32."""
    return torch.promote_types(dtype, torch.float32)
