"""What can be said of a memory, each number with its definition. All of it is measured; nothing is modelled.

A number that does not exist, such as the rank of a change where nothing has changed, is not a number (NaN) here and
null in JSON: never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.memory import MemorySpec, Outer, recollect
from lockstep.memory.retentions import Retained
from lockstep.memory.types import Weights, arithmetic

CANDIDATES = 256
"""The most stored tokens of a sample among which a value is looked for."""
TIE = 1e-6
"""Cosines closer than this are equal: the same value may have been stored twice."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many directions the change of a matrix uses, mean over samples and heads."""

    full: int
    """The most that its shape allows."""
    stable: float
    """‖Δ‖_F² / ‖Δ‖_2²: the sum of the squared singular values over the largest of them."""
    effective: float
    """exp of the entropy of the singular values, divided by their sum (Roy and Vetterli 2007)."""
    stable_share: float
    effective_share: float
    """Both divided by full."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What the memory at the end of a sequence says to keys that were stored `age` to 2 × age - 1 tokens before.

    The last token has age 1. Means over samples, heads and the tokens of the group.
    """

    age: int
    tokens: int
    """Of each sample and head that fall into the group."""
    cosine: float
    """Between what is read with a key and the value that was stored under it."""
    top1: float
    """How often that value is the nearest to the read, by cosine, among the candidates of its sample and head."""
    strength: float
    """What is read along the stored value, in lengths of it: 1 is all of it. A cosine does not see how much is left."""
    initial_cosine: float
    initial_top1: float
    """The same from the memory before its first write: only what lies above has been retrieved."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A gate over all tokens, samples and heads."""

    mean: float
    deviation: float
    low: float
    """5 % of the tokens lie below."""
    high: float
    """5 % of the tokens lie above."""


def effective_weights(held: Weights, spec: MemorySpec) -> Weights:
    """The weights that a chunk starting here would use: for lq and kl they differ from what is held."""
    return tuple(Retained(matrix, spec).weights for matrix in held)


def update_magnitudes(before: Weights, after: Weights) -> Tensor:
    """‖W_after - W_before‖ / ‖W_before‖ over all matrices together, one number per sample and head.

    before, after [batch, heads, in, out] each. Rows that were empty before are left out: there the ratio means nothing.
    """
    pairs = zip(before, after, strict=True)
    change = torch.stack([(new - old).square().sum(dim=(-2, -1)) for old, new in pairs]).sum(dim=0)
    size = torch.stack([old.square().sum(dim=(-2, -1)) for old in before]).sum(dim=0)
    return (change / size).sqrt()[size != 0]


def surprises(keys: Tensor, values: Tensor, held: Weights, spec: MemorySpec, outer: Outer) -> Tensor:
    """‖M(k) - v‖ at what is held, [batch, heads, time]: the residual of the inner loss (under `dot`, which has none,
    the same distance).

    keys and values [batch, heads, time, dim]; `held` is that of the chunk's start, where the gradient is taken.
    """
    length: Tensor = torch.linalg.vector_norm(recollect(keys, held, spec, outer) - values, dim=-1)
    return length


def ranks(change: Tensor) -> Ranks:
    """Of a change of weights [..., in, out]; matrices that have not changed have no rank and are left out."""
    full = min(change.shape[-2:])
    rows = change.flatten(0, -3).double()
    rows = rows[(rows != 0).any(dim=-1).any(dim=-1)]
    stable = effective = math.nan
    if len(rows) and rows.isfinite().all():
        singular = torch.linalg.svdvals(rows)
        squares = (singular / singular[:, :1]).square()
        shares = singular / singular.sum(dim=-1, keepdim=True)
        stable = float(squares.sum(dim=-1).mean())
        effective = float(torch.special.entr(shares).sum(dim=-1).exp().mean())
    return Ranks(full, stable, effective, stable / full, effective / full)


def half_lives(keep: Tensor) -> list[float]:
    """Tokens until one half of a write is left, per head: ln 2 / mean(-ln keep); infinite where nothing decays.

    keep [batch, heads, time], as the gates were. Forgetting only: what later writes overwrite comes on top.
    """
    decay = keep.double().log().mean(dim=(0, 2)).abs().tolist()
    return [math.log(2) / rate if rate else math.inf for rate in decay]


def spread(gate: Tensor) -> Spread:
    """Of all the numbers of a gate."""
    numbers = gate.double().flatten().cpu().numpy()
    low, high = np.quantile(numbers, (0.05, 0.95))
    return Spread(float(numbers.mean()), float(numbers.std()), float(low), float(high))


def candidate_ages(length: int, most: int = CANDIDATES) -> list[int]:
    """Ages of the tokens that are looked for and looked among: all of them, or equally many of each group of ages."""
    if length <= most:
        return list(range(1, length + 1))
    groups = length.bit_length()
    chosen = []
    for first in (2**group for group in range(groups)):
        size = min(first, length + 1 - first)
        count = min(most // groups, size)
        chosen += [first + number * size // count for number in range(count)]
    return chosen


def retrievals(
    keys: Tensor, values: Tensor, held: Weights, initial: Weights, spec: MemorySpec, outer: Outer
) -> list[Retrieval]:
    """Retrieval quality by age, in powers of two up to the length.

    keys and values [batch, heads, time, dim] as they were stored; `held` is the memory after the last of them, read as
    a chunk that starts there would read it.
    """
    ages = candidate_ages(keys.shape[2])
    chosen = keys.shape[2] - torch.tensor(ages, device=keys.device)
    keys, values = keys[:, :, chosen], values[:, :, chosen].to(arithmetic(values.dtype))
    now, first = (compared(recollect(keys, memory, spec, outer), values) for memory in (held, initial))
    groups: dict[int, list[int]] = {}
    for place, age in enumerate(ages):
        groups.setdefault(2 ** (age.bit_length() - 1), []).append(place)

    def mean(x: Tensor, places: list[int]) -> float:
        return float(x[:, :, places].double().mean())

    return [
        Retrieval(
            age,
            len(places),
            cosine=mean(now.cosine, places),
            top1=mean(now.found, places),
            strength=mean(now.strength, places),
            initial_cosine=mean(first.cosine, places),
            initial_top1=mean(first.found, places),
        )
        for age, places in groups.items()
    ]


class Compared(NamedTuple):
    """Reads against what was stored, [batch, heads, tokens] each."""

    cosine: Tensor
    strength: Tensor
    found: Tensor


def compared(reads: Tensor, values: Tensor) -> Compared:
    """Reads and values [batch, heads, tokens, dim], one value per read."""
    reads = reads.to(values.dtype)
    cosines = F.normalize(reads, dim=-1) @ F.normalize(values, dim=-1).mT
    own = cosines.diagonal(dim1=-2, dim2=-1)
    strength = (reads * values).sum(dim=-1) / values.square().sum(dim=-1)
    # A read of nothing is as near to every value, and finds none.
    found = (own >= cosines.amax(dim=-1) - TIE) & (reads != 0).any(dim=-1)
    return Compared(own, strength, found)
