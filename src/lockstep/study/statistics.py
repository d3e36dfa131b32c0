"""How sure we are: differences between contestants with intervals, and what is left of them when there are many.

Runs that share a data seed saw the same tokens in the same order, so that contestants are compared seed by seed: what a
lucky order gives, it gives to both. Over seeds, Student's t is used and not a bootstrap, which for three of them covers
three quarters of what it claims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lockstep.errors import UserError

CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_DOCUMENTS = 20
"""A bootstrap over fewer covers far less than it claims."""
AT_ONCE = 2**22
"""Documents drawn at a time, over all resamples: a split may have very many."""

Kind = Literal["seeds", "documents"]
"""What an interval is over: other seeds, or other documents scored by the same two runs."""


@dataclass(frozen=True)
class Difference:
    """One contestant's score minus another's."""

    effect: float
    low: float | None
    """Ends of the 95 % interval; None where there is nothing to take it from."""
    high: float | None
    p: float | None
    """How often chance alone would give as large an effect."""
    samples: int
    kind: Kind

    @property
    def separable(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def over_seeds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Mean difference of scores by data seed, which both must have; one seed has an effect and no interval."""
    if ours.keys() != theirs.keys() or not ours:
        raise UserError(f"scores of seeds {sorted(ours)} cannot be paired with those of {sorted(theirs)}")
    differences = np.array([ours[seed] - theirs[seed] for seed in sorted(ours)])
    effect, count = float(differences.mean()), len(differences)
    if count == 1:
        return Difference(effect, None, None, None, 1, "seeds")
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    p = float(2 * stats.t.sf(abs(effect) / error, count - 1)) if error > 0 else float(effect == 0)
    return Difference(effect, effect - reach, effect + reach, p, count, "seeds")


def over_documents(ours: NDArray[np.float64], theirs: NDArray[np.float64], weights: NDArray[np.float64]) -> Difference:
    """Of one run each: how the mean would vary had other documents been held out. Nothing is said of other seeds.

    ours, theirs, weights [documents]: mean loss of a document, and how many tokens (or bytes) it counts for.
    """
    differences, count = ours - theirs, len(ours)
    effect = float(np.average(differences, weights=weights))
    if count < FEWEST_DOCUMENTS:
        return Difference(effect, None, None, None, count, "documents")
    random, rows, parts = np.random.default_rng(0), max(1, AT_ONCE // count), []
    for start in range(0, RESAMPLES, rows):
        drawn = random.integers(count, size=(min(rows, RESAMPLES - start), count))
        parts.append((differences * weights)[drawn].sum(axis=1) / weights[drawn].sum(axis=1))
    means = np.concatenate(parts)
    low, high = (float(end) for end in np.quantile(means, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)))
    beyond = min(float((means <= 0).mean()), float((means >= 0).mean()))
    return Difference(effect, low, high, min(1.0, 2 * max(beyond, 1 / RESAMPLES)), count, "documents")


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted so that among all of them a false alarm is as rare as a single one was (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
