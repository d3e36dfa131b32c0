"""The kernels of decayed recurrences as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.recurrences import channel_flow, flow
from lockstep.kernels.recurrences.flow import Tokens


class Flow(Protocol):
    """What computes a recurrence and its adjoints."""

    def forward(self, tokens: Tokens, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]: ...
    def backward(
        self, tokens: Tokens, starts: Tensor, reads_bar: Tensor, last_bar: Tensor, chunk: int
    ) -> tuple[Tensor, ...]: ...


KINDS: dict[int, tuple[str, Flow]] = {3: ("decayed", flow), 4: ("channel-decayed", channel_flow)}
"""What is recorded and what computes it, by the dimensions of the gates: one for a head, or one for each channel."""
READS = {4: torch.float32}
"""The precision of reads, likewise, where it is not that of the tokens."""
TOKENS = "Tensor queries, Tensor keys, Tensor values, Tensor log_keep"


@torch.library.custom_op(
    "lockstep::decayed",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor state, int chunk) -> (Tensor reads, Tensor last, Tensor starts)",
)
def decayed(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the state after the last token, and what the way back needs; see `flow` and `channel_flow`."""
    *given, state, chunk = arguments
    tokens = Tokens(*given)
    name, kind = KINDS[tokens.log_keep.ndim]
    record(name)
    return kind.forward(tokens, state, chunk)


@decayed.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, values, log_keep, state, chunk = arguments
    reads = torch.empty_like(values, dtype=READS.get(log_keep.ndim))
    starts = values.new_empty(*state.shape[:2], values.shape[1] // chunk, *state.shape[2:])
    return reads, torch.empty_like(state), starts


@torch.library.custom_op(
    "lockstep::decayed_backward",
    mutates_args=(),
    schema=f"({TOKENS}, Tensor starts, Tensor reads_bar, Tensor last_bar, int chunk)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def decayed_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Adjoints of what `decayed` was given."""
    *given, starts, reads_bar, last_bar, chunk = arguments
    tokens = Tokens(*given)
    _, kind = KINDS[tokens.log_keep.ndim]
    return kind.backward(tokens, starts, reads_bar.contiguous(), last_bar.contiguous(), chunk)


@decayed_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tokens, _, _, last_bar, _ = arguments
    return *map(torch.empty_like, tokens), last_bar.new_empty(last_bar.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tokens, _, ctx.chunk = inputs
    ctx.save_for_backward(*tokens, output[2])
    ask_for_two(ctx, output)


def _through(ctx: Any, reads_bar: Tensor | None, last_bar: Tensor | None, _: None) -> tuple[Any, ...]:
    return *decayed_backward(*ctx.saved_tensors, *both(ctx, reads_bar, last_bar), ctx.chunk), None


def ask_for_two(ctx: Any, output: tuple[Tensor, ...]) -> None:
    """Reads and the last state have adjoints; the other outputs are large, and torch is to make no zeros for them."""
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.shapes = [x.shape for x in output[:2]]


def both(ctx: Any, *bars: Tensor | None) -> list[Tensor]:
    """The two, with zeros where there is none."""
    device = ctx.saved_tensors[0].device
    return [
        torch.zeros(shape, device=device) if bar is None else bar for bar, shape in zip(bars, ctx.shapes, strict=True)
    ]


decayed.register_autograd(_through, setup_context=_keep)
