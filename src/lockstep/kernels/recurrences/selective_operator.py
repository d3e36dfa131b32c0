"""The kernels of selective scans as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.recurrences.operator import ask_for_two, both
from lockstep.kernels.recurrences.selective_flow import Tokens, backward, forward, kept_starts

NAME = "selective"
TOKENS = "Tensor queries, Tensor keys, Tensor values, Tensor rate, Tensor decay"


@torch.library.custom_op(
    "lockstep::selective",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor state) -> (Tensor reads, Tensor last, Tensor starts)",
)
def selective(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the state after the last token, and what the way back needs; see `selective_flow`."""
    *tokens, state = arguments
    record(NAME)
    return forward(Tokens(*tokens), state)


@selective.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tokens, state = arguments
    given = Tokens(*tokens)
    return torch.empty_like(given.rate), torch.empty_like(state), kept_starts(given)


@torch.library.custom_op(
    "lockstep::selective_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor starts, Tensor reads_bar, Tensor last_bar)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def selective_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `selective` was given."""
    *tokens, starts, reads_bar, last_bar = arguments
    return backward(Tokens(*tokens), starts, reads_bar.contiguous(), last_bar.contiguous())


@selective_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tokens, _, _, last_bar = arguments
    return *map(torch.empty_like, tokens), last_bar.new_empty(last_bar.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tokens, _ = inputs
    ctx.save_for_backward(*tokens, output[2])
    ask_for_two(ctx, output)


def _through(ctx: Any, reads_bar: Tensor | None, last_bar: Tensor | None, _: None) -> tuple[Any, ...]:
    return tuple(selective_backward(*ctx.saved_tensors, *both(ctx, reads_bar, last_bar)))


selective.register_autograd(_through, setup_context=_keep)
