"""The kernels as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.call import Chunks, Tokens
from lockstep.kernels.memory.derivative import COUNT, differentiate
from lockstep.kernels.memory.mlp import backward, forward
from lockstep.kernels.record import record

NAME = "memory"
TOKENS = (
    "Tensor queries, Tensor keys, Tensor values, Tensor keep, Tensor rate, Tensor? momentum, Tensor? threshold,"
    " Tensor? gain, Tensor? shift, Tensor? anchors"
)
SETTING = "int heads, int chunk, bool residual, bool norm, str bias, float p, str activation"


@torch.library.custom_op(
    "lockstep::memory",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor held, {SETTING}) -> (Tensor reads, Tensor last, Tensor copies)",
)
def memory(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Reads [rows, time, width], the memory after the last token, and what the way back needs; see `mlp`."""
    tokens, held, setting = arguments[:COUNT], arguments[COUNT], arguments[COUNT + 1 :]
    record(NAME)
    return forward(Chunks(Tokens(*tokens), *setting, hidden=held.shape[-1]), held)


@memory.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    queries, held, chunk = arguments[0], arguments[COUNT], arguments[COUNT + 2]
    copies = queries.new_empty(queries.shape[0], queries.shape[1] // chunk, *held.shape[1:])
    return torch.empty_like(queries), torch.empty_like(held), copies


@torch.library.custom_op(
    "lockstep::memory_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor copies, Tensor reads_bar, Tensor last_bar, {SETTING})"
    f" -> ({', '.join(['Tensor'] * (COUNT + 1))})",
)
def memory_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `memory` was given, the memory last; those of absent ones mean nothing."""
    tokens, setting = arguments[:COUNT], arguments[COUNT + 3 :]
    copies, *bars = arguments[COUNT : COUNT + 3]
    run = Chunks(Tokens(*tokens), *setting, hidden=copies.shape[-1])
    return backward(run, copies, *(bar.contiguous() for bar in bars))


@memory_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return adjoints_of(Tokens(*arguments[:COUNT]), arguments[COUNT + 2], arguments[COUNT + 3])


def adjoints_of(tokens: Tokens, last_bar: Tensor, heads: int) -> tuple[Tensor, ...]:
    """What comes of the way back, by its shapes alone."""
    rows = [torch.empty_like(tokens.queries) for _ in range(3)]
    gates = [torch.empty_like(tokens.keep) for _ in range(4)]
    lent = [tokens.keep.new_empty(heads, tokens.queries.shape[-1]) for _ in range(2)]
    anchors = last_bar.new_empty(0 if tokens.anchors is None else tokens.anchors.shape)
    return *rows, *gates, *lent, anchors, torch.empty_like(last_bar)


differentiate(memory, lambda *arguments: memory_backward(*arguments))
