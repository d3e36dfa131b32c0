"""From projections to rows as one differentiable operator, which a compiler does not look into.

The tail after them belongs to it: cut out of the projections by others, its adjoint, of a few tokens, would be added to
that of the projections by a pass over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.rows.walking import rows_backward_kernel, rows_kernel

NAME = "rows"
NUMBERS = 512
"""In a tile, at most: a token of each of a program's walkers."""
SPAN = 64
"""Tokens that a walker goes through, at most."""
STEPS = 4
"""Tokens that are loaded at once for a walker."""
PROGRAMS = 1024
"""Of a launch, at least, where the text has tokens for them: with a few hundred, much of a large device is idle."""
WARPS = 4


class Projections(NamedTuple):
    """One call; everything in one piece, but that tokens of projections may be part of something wider."""

    projected: Tensor  # [batch, time, all heads × width]
    weight: Tensor  # [taps, all heads × width]
    tail: Tensor  # [batch, taps - 1, all heads × width], of what came before
    bias: Tensor | None  # [all heads × width]
    heads: Sequence[int]
    """Of each part."""
    lengths: Sequence[float]
    """That each part's vectors are given; 0 leaves them as they are."""
    epsilon: float
    together: bool
    """Whether the heads of a token lie next to each other, or the tokens of a head."""

    @property
    def width(self) -> int:
        return self.weight.shape[1] // sum(self.heads)

    @property
    def walkers(self) -> int:
        return max(NUMBERS // self.width, 1)

    @property
    def span(self) -> int:
        """Tokens of a walker, a multiple of STEPS: as many as leave enough programs, and no more than there are."""
        batch, time, _ = self.projected.shape
        # Of a part that has as many heads as the parts have on average.
        tiles = -(-PROGRAMS * len(self.heads) // (batch * sum(self.heads)))
        # One program goes through the text; or, of so many, the last still has a token to itself.
        steps = -(-time // (STEPS * self.walkers)) if tiles == 1 else (time - 1) // (STEPS * self.walkers * (tiles - 1))
        return STEPS * min(max(steps, 1), SPAN // STEPS)

    @property
    def tiles(self) -> int:
        """Programs of one head of one sample."""
        return -(-self.projected.shape[1] // (self.walkers * self.span))

    @property
    def coming(self) -> int:
        """Tokens of these projections that are in the tail after them."""
        return min(self.projected.shape[1], self.tail.shape[1])

    @property
    def staying(self) -> int:
        """Tokens of the tail that are in the next one too."""
        return self.tail.shape[1] - self.coming

    def room(self, part: int) -> Tensor:
        """For a part's rows: [batch, time, heads, width] where these are together, or [batch × heads, time, width]."""
        (batch, time), heads = self.projected.shape[:2], self.heads[part]
        return self.projected.new_empty(
            (batch, time, heads, self.width) if self.together else (batch * heads, time, self.width)
        )

    def grid(self, part: int) -> tuple[int]:
        return (self.projected.shape[0] * self.tiles * self.heads[part],)

    def settings(self, part: int) -> tuple[int, ...]:
        """Of a launch, which has one part."""
        (time, channels), heads, width = self.projected.shape[1:], self.heads[part], self.width
        strides = (width, heads * width) if self.together else (time * width, width)
        first = sum(self.heads[:part]) * width
        walk = self.projected.stride(1), time, self.tiles, self.span
        return first, heads, channels, *walk, time * heads * width, *strides

    def constants(self, part: int) -> dict[str, Any]:
        sizes = {"WALKERS": self.walkers, "WIDTH": self.width, "TAPS": self.weight.shape[0]}
        kind = {"LENGTH": self.lengths[part], "EPSILON": self.epsilon}
        return sizes | kind | {"STEPS": STEPS, "num_warps": WARPS}


def forward(given: Projections) -> tuple[list[Tensor], Tensor]:
    """Of each part its rows, and the tail after them."""
    made = [given.room(part) for part in range(len(given.heads))]
    for part, rows in enumerate(made):
        rows_kernel[given.grid(part)](*given[:4], rows, *given.settings(part), **given.constants(part))
    after = torch.empty_like(given.tail)
    if given.staying:
        after[:, : given.staying].copy_(given.tail[:, given.coming :])
    after[:, given.staying :].copy_(given.projected[:, -given.coming :])
    return made, after


def backward(given: Projections, rows_bar: Sequence[Tensor], after_bar: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of projections, of weights and bias [taps + 1, all heads × width], and of the tail."""
    projected_bar = given.projected.new_empty(given.projected.shape)
    tail_bar, (taps, channels) = torch.empty_like(given.tail), given.weight.shape
    sums = given.weight.new_empty(len(given.projected), given.tiles, taps + 1, channels, dtype=torch.float32)
    for part, bar in enumerate(rows_bar):
        rows_backward_kernel[given.grid(part)](
            *given[:4],
            bar.contiguous(),
            projected_bar,
            sums,
            tail_bar,
            *given.settings(part),
            **given.constants(part),
        )
    if after_bar is not None:
        if given.staying:
            tail_bar[:, given.coming :] += after_bar[:, : given.staying]
        projected_bar[:, -given.coming :] += after_bar[:, given.staying :]
    return projected_bar, sums.sum((0, 1)).to(given.weight.dtype), tail_bar


def in_pieces(
    projected: Tensor, weight: Tensor, tail: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As kernels take them."""
    _, time, channels = projected.shape
    sample, token, one = projected.stride()
    apart = one == 1 and token >= channels and sample == time * token
    found = projected if apart else projected.contiguous()
    return found, weight.contiguous(), tail.contiguous(), None if bias is None else bias.contiguous()


GIVEN = "Tensor projected, Tensor weight, Tensor tail, Tensor? bias"
COUNT = 4
SETTING = "int[] heads, float[] lengths, float epsilon, bool together"


@torch.library.custom_op("lockstep::rows", mutates_args=(), schema=f"({GIVEN}, {SETTING}) -> (Tensor[], Tensor)")
def rows(*arguments: Any) -> tuple[list[Tensor], Tensor]:
    """As `forward`: each part convolved from the tail on, activated, and of the length that it is to have."""
    record(NAME)
    return forward(Projections(*in_pieces(*arguments[:COUNT]), *arguments[COUNT:]))


@rows.register_fake
def _(*arguments: Any) -> tuple[list[Tensor], Tensor]:
    given = Projections(*arguments)
    return [given.room(part) for part in range(len(given.heads))], given.tail.new_empty(given.tail.shape)


@torch.library.custom_op(
    "lockstep::rows_backward",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor[] rows_bar, Tensor? after_bar, {SETTING}) -> (Tensor, Tensor, Tensor)",
)
def rows_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As `backward`."""
    given = Projections(*in_pieces(*arguments[:COUNT]), *arguments[COUNT + 2 :])
    return backward(given, *arguments[COUNT : COUNT + 2])


@rows_backward.register_fake
def _(projected: Tensor, weight: Tensor, tail: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    taps, channels = weight.shape
    return projected.new_empty(projected.shape), weight.new_empty(taps + 1, channels), tail.new_empty(tail.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], Tensor]) -> None:
    ctx.save_for_backward(*inputs[:COUNT])
    ctx.setting = inputs[COUNT:]
    # Nothing is added where nobody goes on from the tail.
    ctx.set_materialize_grads(False)


def _through(ctx: Any, rows_bar: list[Tensor | None], after_bar: Tensor | None) -> tuple[Any, ...]:
    given = ctx.saved_tensors
    rooms = Projections(*given, *ctx.setting)
    bars = [rooms.room(part).zero_() if bar is None else bar for part, bar in enumerate(rows_bar)]
    projected_bar, learned_bar, tail_bar = rows_backward(*given, bars, after_bar, *ctx.setting)
    bias_bar = None if given[-1] is None else learned_bar[-1]
    return projected_bar, learned_bar[:-1], tail_bar, bias_bar, *[None] * len(ctx.setting)


rows.register_autograd(_through, setup_context=_keep)
