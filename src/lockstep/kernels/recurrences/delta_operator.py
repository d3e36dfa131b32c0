"""The kernels of the delta rule as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.recurrences.delta_flow import Kept, Tokens, backward, forward
from lockstep.kernels.recurrences.operator import ask_for_two, both

NAME = "delta"
TOKENS = "Tensor queries, Tensor keys, Tensor values, Tensor rate, Tensor log_keep"
KEPT = "Tensor starts, Tensor writes, Tensor read, Tensor left"


@torch.library.custom_op(
    "lockstep::delta",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor state, int chunk) -> (Tensor reads, Tensor last, {KEPT})",
)
def delta(*arguments: Any) -> tuple[Tensor, ...]:
    """Reads, the state after the last token, and what the way back needs; see `delta_flow`."""
    *tokens, state, chunk = arguments
    record(NAME)
    reads, last, kept = forward(Tokens(*tokens), state, chunk)
    return reads, last, *kept


@delta.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    _, keys, values, rate, _, state, chunk = arguments
    starts = keys.new_empty(*state.shape[:2], keys.shape[1] // chunk, *state.shape[2:])
    read, left = keys.new_empty(*rate.shape, chunk), keys.new_empty(*starts.shape[:4], chunk)
    kept = starts, torch.empty_like(values), read, left
    return torch.empty_like(values, dtype=torch.float32), torch.empty_like(state), *kept


@torch.library.custom_op(
    "lockstep::delta_backward",
    mutates_args=(),
    schema=f"({TOKENS}, {KEPT}, Tensor reads_bar, Tensor last_bar, int chunk)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def delta_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `delta` was given."""
    *given, reads_bar, last_bar, chunk = arguments
    tokens, kept = Tokens(*given[:5]), Kept(*given[5:])
    return backward(tokens, kept, reads_bar.contiguous(), last_bar.contiguous(), chunk)


@delta_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *given, _, last_bar, _ = arguments
    return *map(torch.empty_like, given[:5]), last_bar.new_empty(last_bar.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tokens, _, ctx.chunk = inputs
    ctx.save_for_backward(*tokens, *output[2:])
    ask_for_two(ctx, output)


def _through(ctx: Any, reads_bar: Tensor | None, last_bar: Tensor | None, *_: None) -> tuple[Any, ...]:
    return *delta_backward(*ctx.saved_tensors, *both(ctx, reads_bar, last_bar), ctx.chunk), None


delta.register_autograd(_through, setup_context=_keep)
