"""The kernels of channels that decay alone as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.recurrences.channel_flow import Tokens, backward, forward

NAME = "channel-decayed"
TOKENS = "Tensor queries, Tensor keys, Tensor values, Tensor log_keep"


@torch.library.custom_op(
    "lockstep::channel_decayed",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor state, int chunk) -> (Tensor reads, Tensor last, Tensor starts)",
)
def channel_decayed(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the state after the last token, and what the way back needs; see `channel_flow`."""
    *tokens, state, chunk = arguments
    record(NAME)
    return forward(Tokens(*tokens), state, chunk)


@channel_decayed.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, values, _, state, chunk = arguments
    starts = values.new_empty(*state.shape[:2], values.shape[1] // chunk, *state.shape[2:])
    return torch.empty_like(values, dtype=torch.float32), torch.empty_like(state), starts


@torch.library.custom_op(
    "lockstep::channel_decayed_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor starts, Tensor reads_bar, Tensor last_bar, int chunk)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def channel_decayed_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `channel_decayed` was given."""
    *tokens, starts, reads_bar, last_bar, chunk = arguments
    return backward(Tokens(*tokens), starts, reads_bar.contiguous(), last_bar.contiguous(), chunk)


@channel_decayed_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tokens, _, _, last_bar, _ = arguments
    return *map(torch.empty_like, tokens), last_bar.new_empty(last_bar.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tokens, _, ctx.chunk = inputs
    ctx.save_for_backward(*tokens, output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(True)


def _through(ctx: Any, reads_bar: Tensor, last_bar: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    return *channel_decayed_backward(*ctx.saved_tensors, reads_bar, last_bar, ctx.chunk), None


channel_decayed.register_autograd(_through, setup_context=_keep)
