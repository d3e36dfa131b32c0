"""Sizes that make a contestant as large as the others: solved for on the meta device, where nothing is allocated.

A model's parameters, FLOPs and state grow by the same amount with every layer, and with every unit of the MLP's width.
So three small models tell what any depth and MLP width cost at one width of the model; the solver tries widths around
the one at which the proportions are those that the architecture aims at, and takes what deviates least from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.config.match import MatchSpec, Quantity
from lockstep.errors import UserError
from lockstep.models.block import Block
from lockstep.models.cost import Cost
from lockstep.models.registry import find, specify
from lockstep.models.spec import ModelSpec
from lockstep.tables import in_short

ASPECT_SLACK = 2.5
"""Width over depth may be so many times more or less than aimed at."""
MLP_SLACK = 1.6
"""And the MLP's width so many times the architecture's own choice."""
WIDEST = 32_768
WIDTHS_TRIED = 6
"""On either side of the width at which proportions would be perfect."""


@dataclass(frozen=True)
class Candidate:
    """One size."""

    dim: int
    depth: int
    hidden: int | None
    """None leaves the architecture's own."""
    amount: float
    deviation: float
    """From the proportions aimed at; 0 is perfect."""


def match(name: str, fields: Mapping[str, Any], wanted: MatchSpec, length: int) -> ModelSpec:
    """The specification whose size is the target's; what `fields` gives is left as it is."""
    sizes = Sizes(name, fields, wanted.on, length)
    candidates = list(sizes.candidates(wanted.target))
    fitting = [one for one in candidates if abs(one.amount / wanted.target - 1) <= wanted.tolerance]
    if not fitting:
        raise UserError(f"{name}: {unreachable(candidates, wanted)}")
    best = min(fitting, key=lambda one: (one.deviation, abs(one.amount - wanted.target)))
    return sizes.chosen(best)


def unreachable(candidates: list[Candidate], wanted: MatchSpec) -> str:
    """Why a target cannot be matched, and what could be."""
    what = f"{wanted.on} of {in_short(wanted.target)} within {wanted.tolerance:.2%}"
    if not candidates:
        return f"{what}: cannot be reached with sensible proportions"
    nearest = min(candidates, key=lambda one: abs(one.amount - wanted.target))
    mlp = "" if nearest.hidden is None else f", hidden {nearest.hidden}"
    size = f"dim {nearest.dim}, depth {nearest.depth}{mlp}"
    return f"{what} cannot be reached; the closest is {in_short(nearest.amount)} ({size})"


class Sizes:
    """What an architecture's sizes amount to."""

    def __init__(self, name: str, fixed: Mapping[str, Any], quantity: Quantity, length: int) -> None:
        self.name, self.fixed, self.quantity, self.length = name, fixed, quantity, length
        self.kind = find(name)
        self.lines: dict[int, Line] = {}

    def may_choose(self, field: str) -> bool:
        return field in self.kind.free and field not in self.fixed

    def spec(self, dim: int, **sizes: int) -> ModelSpec:
        """With whole heads at this width; `sizes` win over what was given."""
        heads = {"heads": dim // head_width(dim)} if self.may_choose("heads") else {}
        width = {"dim": dim} if self.may_choose("dim") else {}
        return specify(self.name, {**self.fixed, **heads, **width, **sizes})

    def amount(self, dim: int, **sizes: int) -> float:
        """Of a model with these sizes."""
        return amount_of(cost_on_meta(self.spec(dim, **sizes), self.length), self.quantity)

    def chosen(self, size: Candidate) -> ModelSpec:
        sizes = {"depth": size.depth} | ({} if size.hidden is None else {"hidden": size.hidden})
        return self.spec(size.dim, **{name: value for name, value in sizes.items() if self.may_choose(name)})

    def candidates(self, target: float) -> Iterator[Candidate]:
        """Sizes around the target, at every width that is worth trying."""
        for dim in self.widths(target):
            yield from self.at_width(dim, target)

    def widths(self, target: float) -> list[int]:
        """Around the smallest at which a model of perfect proportions is as large as the target."""
        if not self.may_choose("dim"):
            return [specify(self.name, self.fixed).dim]
        steps = list(width_steps())
        low, high = 0, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            if self.line(steps[middle]).at(steps[middle] / self.kind.aspect) < target:
                low = middle + 1
            else:
                high = middle
        return steps[max(low - WIDTHS_TRIED, 0) : low + WIDTHS_TRIED + 1]

    def line(self, dim: int) -> Line:
        """How the amount grows with depth and the MLP's width, at one width of the model."""
        if dim not in self.lines:
            self.lines[dim] = self.measured_line(dim)
        return self.lines[dim]

    def measured_line(self, dim: int) -> Line:
        """From models of one period, of two, and of one with wider MLPs."""
        spec = self.spec(dim)
        once = self.amount(dim, depth=spec.period)
        layer = (self.amount(dim, depth=2 * spec.period) - once) / spec.period
        own, slope = own_hidden(spec) if self.may_choose("hidden") else None, 0.0
        if own is not None:
            slope = (self.amount(dim, depth=spec.period, hidden=2 * own) - once) / own / spec.period
        return Line(once - spec.period * layer, layer, slope, own, spec.period)

    def at_width(self, dim: int, target: float) -> Iterator[Candidate]:
        line = self.line(dim)
        for depth in self.depths(dim, line.period):
            hidden = line.hidden_for(depth, target, mlp_step(dim))
            amount = line.at(depth, hidden)
            off = math.log(dim / depth / self.kind.aspect) ** 2
            if hidden is not None and line.own_hidden is not None:
                off += math.log(hidden / line.own_hidden) ** 2
            yield Candidate(dim, depth, hidden, amount, off)

    def depths(self, dim: int, period: int) -> list[int]:
        if not self.may_choose("depth"):
            return [specify(self.name, self.fixed).depth]
        aimed = dim / self.kind.aspect
        fewest, most = math.ceil(aimed / ASPECT_SLACK / period), math.floor(aimed * ASPECT_SLACK / period)
        return [period * repeats for repeats in range(max(fewest, 1), max(most, 1) + 1)]


@dataclass(frozen=True)
class Line:
    """amount = base + depth × (layer + (hidden - own_hidden) × slope)."""

    base: float
    layer: float
    slope: float
    own_hidden: int | None
    """None where no layer has an MLP, or its width is given."""
    period: int

    def at(self, depth: float, hidden: int | None = None) -> float:
        more = 0 if hidden is None or self.own_hidden is None else hidden - self.own_hidden
        return self.base + depth * (self.layer + more * self.slope)

    def hidden_for(self, depth: int, target: float, step: int) -> int | None:
        """The MLP's width that comes nearest to the target, within what is sensible."""
        if self.own_hidden is None or self.slope <= 0:
            return None
        exact = self.own_hidden + (target - self.at(depth)) / (depth * self.slope)
        within = min(max(exact, self.own_hidden / MLP_SLACK), self.own_hidden * MLP_SLACK)
        return max(round(within / step), 1) * step


def own_hidden(spec: ModelSpec) -> int | None:
    """The width that an architecture gives its MLP, if it has one."""
    if spec.hidden is not None:
        return spec.hidden
    with torch.device("meta"):
        blocks: list[Block] = [spec.block(layer) for layer in range(spec.period)]
    widths = [block.mlp.output.in_features for block in blocks if block.mlp is not None]
    return widths[0] if widths else None


def cost_on_meta(spec: ModelSpec, length: int) -> Cost:
    """Of a model that is never allocated."""
    with torch.device("meta"):
        return spec.build().cost(length)


def amount_of(cost: Cost, quantity: Quantity) -> float:
    return float({"total_parameters": cost.parameters}.get(quantity) or getattr(cost, quantity))


def head_width(dim: int) -> int:
    """Heads of 64, or of less where these would not fill the width or be fewer than four."""
    widths = (64, 32, 16, 8, 4, 2)
    return next((width for width in widths if dim % width == 0 and dim >= 4 * width), dim)


def width_steps() -> Iterator[int]:
    """Widths that whole heads fill, each step the width of a head."""
    dim = 32
    while dim <= WIDEST:
        yield dim
        dim += 64 if dim >= 256 else 32 if dim >= 128 else 16


def mlp_step(dim: int) -> int:
    """Multiples of 8, as hardware likes them, wherever that is fine enough."""
    return 8 if dim >= 256 else 2
