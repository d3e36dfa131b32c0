"""The kernels of linear memories as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.derivative import differentiate
from lockstep.kernels.memory.linear import Chunks, Tokens, backward, forward
from lockstep.kernels.record import record

NAME = "linear memory"
TOKENS = (
    "Tensor queries, Tensor keys, Tensor values, Tensor keep, Tensor rate, Tensor? momentum, Tensor? threshold,"
    " Tensor? gain, Tensor? shift, Tensor? anchor"
)
SETTING = "int heads, int chunk, bool exact, bool residual, bool norm, str bias, float p"


@torch.library.custom_op(
    "lockstep::linear_memory",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor held, {SETTING}) -> (Tensor reads, Tensor last, Tensor copies, Tensor errors)",
)
def linear_memory(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reads [rows, time, out], the memory after the last token, and what the way back needs; see `linear`."""
    *tokens, held = arguments[:11]
    record(NAME)
    return forward(Chunks(Tokens(*tokens), *arguments[11:]), held)


@linear_memory.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values, held, chunk = arguments[2], arguments[10], arguments[12]
    rows, time, out = values.shape
    copies = values.new_empty(rows, time // chunk, *held.shape[1:])
    errors = values.new_empty(rows, time // chunk, out, chunk)
    return torch.empty_like(values), torch.empty_like(held), copies, errors


ADJOINTS = ", ".join(["Tensor"] * 11)


@torch.library.custom_op(
    "lockstep::linear_memory_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor copies, Tensor errors, Tensor reads_bar, Tensor last_bar, {SETTING}) -> ({ADJOINTS})",
)
def linear_memory_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `linear_memory` was given, the memory last; those of absent ones mean nothing."""
    *tokens, copies, errors, reads_bar, last_bar = arguments[:14]
    run = Chunks(Tokens(*tokens), *arguments[14:])
    return backward(run, copies, errors, reads_bar.contiguous(), last_bar.contiguous())


@linear_memory_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    values, keep, anchor, last_bar, heads = (arguments[i] for i in (2, 3, 9, 13, 14))
    rows = [torch.empty_like(token) for token in arguments[:3]]
    gates = [torch.empty_like(keep) for _ in range(4)]
    lent = [last_bar.new_empty(heads, values.shape[-1]) for _ in range(2)]
    anchor_bar = last_bar.new_empty(0 if anchor is None else anchor.shape)
    return *rows, *gates, *lent, anchor_bar, torch.empty_like(last_bar)


differentiate(linear_memory, lambda *arguments: linear_memory_backward(*arguments))
