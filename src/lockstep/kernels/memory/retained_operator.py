"""The kernels of memories under other retentions than l2 as one differentiable operator, as `operator` has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.call import Tokens
from lockstep.kernels.memory.derivative import COUNT, differentiate
from lockstep.kernels.memory.operator import NAME, SETTING, TOKENS, adjoints_of
from lockstep.kernels.memory.retained import Opened, Retention, Walk, backward, forward
from lockstep.kernels.record import record

RETENTION = "str retention, float q, float simplex"
OPENED = "Tensor copies, Tensor bases, Tensor scales"


def called(tokens: tuple[Any, ...], opened: Opened, retention: tuple[Any, ...], setting: tuple[Any, ...]) -> Walk:
    return Walk(Tokens(*tokens), opened, Retention(*retention), *setting)


@torch.library.custom_op(
    "lockstep::retained_memory",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor held, {RETENTION}, {SETTING}) -> (Tensor reads, Tensor last, {OPENED})",
)
def retained_memory(*arguments: Any) -> tuple[Tensor, ...]:
    """Reads [rows, time, width], what is held after the last token, and what the way back needs; see `retained`."""
    tokens, held, retention, setting = split(arguments, 1)
    record(NAME)
    opened = Opened.room(Tokens(*tokens), setting[1], held[0].shape[-1])
    reads, last = forward(called(tokens, opened, retention, setting), held[0])
    return reads, last, *opened


@retained_memory.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    tokens, (held,), _, setting = split(arguments, 1)
    opened = Opened.room(Tokens(*tokens), setting[1], held.shape[-1])
    return torch.empty_like(tokens[0]), torch.empty_like(held), *opened


@torch.library.custom_op(
    "lockstep::retained_memory_backward",
    mutates_args=(),
    schema=f"({TOKENS}, {OPENED}, Tensor reads_bar, Tensor last_bar, {RETENTION}, {SETTING})"
    f" -> ({', '.join(['Tensor'] * (COUNT + 1))})",
)
def retained_memory_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `retained_memory` was given, what was held last; those of absent ones mean nothing."""
    tokens, (*opened, reads_bar, last_bar), retention, setting = split(arguments, 5)
    return backward(called(tokens, Opened(*opened), retention, setting), reads_bar.contiguous(), last_bar.contiguous())


@retained_memory_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    tokens, given, _, setting = split(arguments, 5)
    return adjoints_of(Tokens(*tokens), given[-1], setting[0])


def split(arguments: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], ...]:
    """Tokens, so many tensors, the retention, and the setting."""
    after = COUNT + count
    return arguments[:COUNT], arguments[COUNT:after], arguments[after : after + 3], arguments[after + 3 :]


differentiate(retained_memory, lambda *arguments: retained_memory_backward(*arguments))
