"""The kernels as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.call import Chunks, Tokens
from lockstep.kernels.memory.mlp import backward, forward
from lockstep.kernels.record import record

NAME = "memory"
TOKENS = (
    "Tensor queries, Tensor keys, Tensor values, Tensor keep, Tensor rate, Tensor? momentum, Tensor? threshold,"
    " Tensor? gain, Tensor? shift, Tensor? anchors"
)
COUNT = len(Tokens._fields)
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:COUNT], output[2])
    ctx.setting = inputs[COUNT + 1 :]
    ctx.mark_non_differentiable(output[2])
    # Torch would make zeros for the copies, which are the largest.
    ctx.set_materialize_grads(False)


def _through(ctx: Any, reads_bar: Tensor | None, last_bar: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    *tokens, copies = ctx.saved_tensors
    reads_bar = torch.zeros_like(tokens[0]) if reads_bar is None else reads_bar
    last_bar = torch.zeros_like(copies[:, 0], dtype=torch.float32) if last_bar is None else last_bar
    *bars, held_bar = memory_backward(*tokens, copies, reads_bar, last_bar, *ctx.setting)
    present = [None if token is None else bar.to(token.dtype) for token, bar in zip(tokens, bars, strict=True)]
    return (*present, held_bar, *[None] * len(ctx.setting))


memory.register_autograd(_through, setup_context=_keep)
