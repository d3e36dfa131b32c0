"""The kernels as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.mlp import Chunks, Tokens, backward, forward
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
    *tokens, held = arguments[:11]
    record(NAME)
    return forward(Chunks(Tokens(*tokens), *arguments[11:]), held)


@memory.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    queries, held, chunk = arguments[0], arguments[10], arguments[12]
    rows, time = queries.shape[:2]
    copies = queries.new_empty(rows, time // chunk, *held.shape[1:])
    return torch.empty_like(queries), torch.empty_like(held), copies


ADJOINTS = "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor"


@torch.library.custom_op(
    "lockstep::memory_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor copies, Tensor reads_bar, Tensor last_bar, {SETTING}) -> ({ADJOINTS})",
)
def memory_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `memory` was given, the memory last; those of absent ones mean nothing."""
    *tokens, copies, reads_bar, last_bar = arguments[:13]
    return backward(Chunks(Tokens(*tokens), *arguments[13:]), copies, reads_bar.contiguous(), last_bar.contiguous())


@memory_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    queries, keep, last_bar, heads = arguments[0], arguments[3], arguments[12], arguments[13]
    anchors, lent = arguments[9], queries.new_empty(heads, queries.shape[-1], dtype=torch.float32)
    rows = [torch.empty_like(queries) for _ in range(3)]
    gates = [torch.empty_like(keep) for _ in range(4)]
    anchors_bar = last_bar.new_empty(0 if anchors is None else anchors.shape)
    return *rows, *gates, torch.empty_like(lent), torch.empty_like(lent), anchors_bar, torch.empty_like(last_bar)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:10], output[2])
    ctx.setting = inputs[11:]
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(True)


def _through(ctx: Any, reads_bar: Tensor, last_bar: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    *tokens, copies = ctx.saved_tensors
    *bars, held_bar = memory_backward(*tokens, copies, reads_bar, last_bar, *ctx.setting)
    present = [None if token is None else bar.to(token.dtype) for token, bar in zip(tokens, bars, strict=True)]
    return (*present, held_bar, *[None] * len(ctx.setting))


memory.register_autograd(_through, setup_context=_keep)
