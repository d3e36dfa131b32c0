"""From a memory's projections to its rows as one differentiable operator, which a compiler does not look into."""

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
    """One call; everything in one piece."""

    projected: Tensor  # [batch, time, parts × heads × width]
    weight: Tensor  # [taps, parts × heads × width]
    tail: Tensor  # [batch, taps - 1, parts × heads × width], of what came before
    heads: int
    units: Sequence[bool]
    """Of each part, whether its vectors are given unit length."""
    epsilon: float

    @property
    def width(self) -> int:
        return self.weight.shape[1] // (self.heads * len(self.units))

    @property
    def walkers(self) -> int:
        return max(NUMBERS // self.width, 1)

    @property
    def span(self) -> int:
        """Tokens of a walker, a multiple of STEPS: as many as leave enough programs, and no more than there are."""
        batch, time, _ = self.projected.shape
        tiles = -(-PROGRAMS // (batch * self.heads))
        # One program goes through the text; or, of so many, the last still has a token to itself.
        steps = -(-time // (STEPS * self.walkers)) if tiles == 1 else (time - 1) // (STEPS * self.walkers * (tiles - 1))
        return STEPS * min(max(steps, 1), SPAN // STEPS)

    @property
    def tiles(self) -> int:
        """Programs of one head of one sample."""
        return -(-self.projected.shape[1] // (self.walkers * self.span))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a part's rows."""
        return self.projected.shape[0] * self.heads, self.projected.shape[1], self.width

    @property
    def grid(self) -> tuple[int]:
        return (self.projected.shape[0] * self.tiles * self.heads,)

    def settings(self, part: int) -> tuple[int, ...]:
        """Of a launch, which has one part."""
        time, channels = self.projected.shape[1:]
        return part * self.heads * self.width, self.heads, channels, time, self.tiles, self.span

    def constants(self, part: int) -> dict[str, Any]:
        sizes = {"WALKERS": self.walkers, "WIDTH": self.width, "TAPS": self.weight.shape[0]}
        kind = {"UNIT": self.units[part], "EPSILON": self.epsilon}
        return sizes | kind | {"STEPS": STEPS, "num_warps": WARPS}


def forward(given: Projections) -> list[Tensor]:
    """Of each part its rows, [batch × heads, time, width]."""
    made = [given.projected.new_empty(given.shape) for _ in given.units]
    for part, rows in enumerate(made):
        rows_kernel[given.grid](*given[:3], rows, *given.settings(part), **given.constants(part))
    return made


def backward(given: Projections, rows_bar: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of projections, weights and tail."""
    projected_bar, tail_bar = torch.empty_like(given.projected), torch.empty_like(given.tail)
    sums = given.weight.new_empty(len(given.projected), given.tiles, *given.weight.shape, dtype=torch.float32)
    for part, bar in enumerate(rows_bar):
        rows_backward_kernel[given.grid](
            *given[:3],
            bar.contiguous(),
            projected_bar,
            sums,
            tail_bar,
            *given.settings(part),
            **given.constants(part),
        )
    return projected_bar, sums.sum((0, 1)).to(given.weight.dtype), tail_bar


GIVEN = "Tensor projected, Tensor weight, Tensor tail"
SETTING = "int heads, bool[] units, float epsilon"


@torch.library.custom_op("lockstep::rows", mutates_args=(), schema=f"({GIVEN}, {SETTING}) -> Tensor[]")
def rows(projected: Tensor, weight: Tensor, tail: Tensor, *setting: Any) -> list[Tensor]:
    """As `forward`: each part convolved from the tail on, activated, and of unit length where `units` says so."""
    record(NAME)
    return forward(Projections(projected.contiguous(), weight.contiguous(), tail.contiguous(), *setting))


@rows.register_fake
def _(projected: Tensor, weight: Tensor, tail: Tensor, *setting: Any) -> list[Tensor]:
    given = Projections(projected, weight, tail, *setting)
    return [projected.new_empty(given.shape) for _ in given.units]


@torch.library.custom_op(
    "lockstep::rows_backward",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor[] rows_bar, {SETTING}) -> (Tensor, Tensor, Tensor)",
)
def rows_backward(
    projected: Tensor, weight: Tensor, tail: Tensor, rows_bar: list[Tensor], *setting: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """As `backward`."""
    given = Projections(projected.contiguous(), weight.contiguous(), tail.contiguous(), *setting)
    return backward(given, rows_bar)


@rows_backward.register_fake
def _(projected: Tensor, weight: Tensor, tail: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    bars = [x.new_empty(x.shape) for x in (projected, weight, tail)]
    return bars[0], bars[1], bars[2]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    projected, weight, tail, *ctx.setting = inputs
    ctx.save_for_backward(projected, weight, tail)


def _through(ctx: Any, rows_bar: list[Tensor]) -> tuple[Any, ...]:
    return *rows_backward(*ctx.saved_tensors, rows_bar, *ctx.setting), *[None] * len(ctx.setting)


rows.register_autograd(_through, setup_context=_keep)
