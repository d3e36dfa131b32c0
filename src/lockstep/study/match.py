"""Sizes that make a contestant as large as the others: solved for on the meta device, where nothing is allocated.

A model's parameters, FLOPs and state grow by the same amount with every layer, and with every unit of the MLP's width.
So three small models tell what any depth and MLP width cost at one width of the model; the solver tries widths around
the one at which the proportions are those that the architecture aims at, and takes what deviates least from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.config.match import MatchSpec, Quantity
from lockstep.errors import UserError
from lockstep.models.cost import Cost
from lockstep.models.registry import find, specify
from lockstep.models.spec import ModelSpec
from lockstep.tables import in_short

ASPECT_SLACK = 2.5
"""Width over depth may be so many times more or less than aimed at."""
MLP_SLACK = 2.0
"""And the MLP's width so many times the architecture's own choice."""
WIDEST = 32_768
MOST_SKIPPED = 64
"""Widths in a row that do not fit what is given, before no more are tried."""
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


def match(name: str, fields: Mapping[str, Any], wanted: MatchSpec, length: int, source: str = "model") -> ModelSpec:
    """The specification whose size is the target's; what `fields` gives is left as it is."""
    sizes = Sizes(name, fields, wanted.on, length, source)
    if sizes.kind.brings_weights(fields):
        raise UserError(f"{source}: {name}: trained weights have a size of their own; use match: none")
    candidates = list(sizes.candidates(wanted.target))
    in_order = sorted(candidates, key=lambda one: (one.deviation, abs(one.amount - wanted.target)))
    for candidate in in_order:
        if abs(candidate.amount / wanted.target - 1) > wanted.tolerance:
            continue
        spec = sizes.chosen(candidate)
        # Lines are exact where layers are alike; where they are not, the model itself has the last word.
        if abs(amount_of(cost_on_meta(spec, length), wanted.on) / wanted.target - 1) <= wanted.tolerance:
            return spec
    raise UserError(f"{source}: {name}: {unreachable(candidates, wanted)}")


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

    def __init__(self, name: str, fixed: Mapping[str, Any], quantity: Quantity, length: int, source: str) -> None:
        self.name, self.fixed, self.quantity, self.length, self.source = name, fixed, quantity, length, source
        self.kind = find(name)
        self.lines: dict[int, Line] = {}
        self.specs: dict[int, ModelSpec | UserError] = {}

    def may_choose(self, field: str) -> bool:
        return field in self.kind.free and field not in self.fixed

    def at(self, dim: int) -> ModelSpec | UserError:
        """The specification at a width, with the first heads that fit; or why there is none."""
        if dim not in self.specs:
            self.specs[dim] = self.first_that_fits(dim)
        return self.specs[dim]

    def first_that_fits(self, dim: int) -> ModelSpec | UserError:
        width = {"dim": dim} if self.may_choose("dim") else {}
        choices = [{"heads": heads} for heads in head_counts(dim)] if self.may_choose("heads") else [{}]
        refused: UserError | None = None
        for heads in choices:
            try:
                return specify(self.name, {**self.fixed, **width, **heads}, self.source)
            except UserError as error:
                refused = refused or error
        assert refused is not None
        return refused

    def spec(self, dim: int, **sizes: int) -> ModelSpec:
        """At a width that fits, with other sizes too."""
        found = self.at(dim)
        if isinstance(found, UserError):
            raise found
        heads = {"heads": found.heads} if self.may_choose("heads") else {}
        width = {"dim": dim} if self.may_choose("dim") else {}
        return specify(self.name, {**self.fixed, **width, **heads, **sizes}, self.source)

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
            return [self.fixed.get("dim") or specify(self.name, self.fixed, self.source).dim]
        steps = list(width_steps())
        low, high = 0, len(steps)
        while low < high:
            middle = self.fitting(steps, (low + high) // 2, high)
            if middle is None:
                high = (low + high) // 2
            elif self.proportioned(steps[middle]) < target:
                low = middle + 1
            else:
                high = (low + high) // 2
        below = [dim for dim in reversed(steps[:low]) if not isinstance(self.at(dim), UserError)]
        above = [dim for dim in steps[low : low + MOST_SKIPPED] if not isinstance(self.at(dim), UserError)]
        if not below and not above:
            raise next(found for found in self.specs.values() if isinstance(found, UserError))
        return [*below[:WIDTHS_TRIED], *above[: WIDTHS_TRIED + 1]]

    def fitting(self, steps: Sequence[int], first: int, end: int) -> int | None:
        """The first index from there on whose width fits what is given."""
        places = range(first, min(end, first + MOST_SKIPPED))
        return next((at for at in places if not isinstance(self.at(steps[at]), UserError)), None)

    def proportioned(self, dim: int) -> float:
        """The amount at the depth that was given, or else at the one that is aimed at."""
        return self.line(dim).at(self.fixed.get("depth", dim / self.kind.aspect))

    def line(self, dim: int) -> Line:
        """How the amount grows with depth and the MLP's width, at one width of the model."""
        if dim not in self.lines:
            self.lines[dim] = self.measured_line(dim)
        return self.lines[dim]

    def measured_line(self, dim: int) -> Line:
        """From models of one period, of two, and of one with wider MLPs; at the given depth, where there is one."""
        spec = self.spec(dim)
        own = spec.mlp_width if self.may_choose("hidden") else None
        hidden = {} if own is None else {"hidden": own}
        if not self.may_choose("depth"):
            layers, depth = 0.0, {}
            base = once = self.amount(dim, **hidden)
        else:
            depth = {"depth": spec.period}
            once = self.amount(dim, **depth, **hidden)
            layers = (self.amount(dim, depth=2 * spec.period, **hidden) - once) / spec.period
            base = once - spec.period * layers
        slope = 0.0
        if own is not None:
            slope = (self.amount(dim, **depth, hidden=2 * own) - once) / own / depth.get("depth", spec.depth)
        return Line(base, layers, slope, own, spec.period)

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
            return [self.spec(dim).depth]
        aimed = dim / self.kind.aspect
        fewest, most = math.ceil(aimed / ASPECT_SLACK / period), math.floor(aimed * ASPECT_SLACK / period)
        return [period * repeats for repeats in range(max(fewest, 1), max(most, 1) + 1)]


@dataclass(frozen=True)
class Line:
    """amount = base + depth × (layer + (hidden - own_hidden) × slope), with nothing per layer at a given depth."""

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


def cost_on_meta(spec: ModelSpec, length: int) -> Cost:
    """Of a model that is never allocated."""
    with torch.device("meta"):
        return spec.build().cost(length)


def amount_of(cost: Cost, quantity: Quantity) -> float:
    return float({"total_parameters": cost.parameters}.get(quantity) or getattr(cost, quantity))


def head_counts(dim: int) -> list[int]:
    """Heads of 64, or of less where these would not fill the width or be fewer than four; wider ones come last."""
    widths = [width for width in (64, 32, 16, 8, 4, 2) if dim % width == 0]
    many = [dim // width for width in widths if dim >= 4 * width]
    return many + [heads for heads in (3, 2, 1) if dim % heads == 0 and heads not in many]


def width_steps() -> Iterator[int]:
    """Widths that whole heads fill, each step the width of a head."""
    dim = 32
    while dim <= WIDEST:
        yield dim
        dim += 64 if dim >= 256 else 32 if dim >= 128 else 16


def mlp_step(dim: int) -> int:
    """Multiples of 8, as hardware likes them, wherever that is fine enough."""
    return 8 if dim >= 256 else 2
