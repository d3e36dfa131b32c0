"""95 % intervals: of a mean over seeds, and of a share of right answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

NORMAL = 1.959963984540054
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""


def student(numbers: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean, and the ends of its interval by Student's t; one number has none."""
    count = len(numbers)
    mean = sum(numbers) / count
    if count < 2:
        return mean, None, None
    deviation = math.sqrt(sum((one - mean) ** 2 for one in numbers) / (count - 1))
    reach = float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return mean, mean - reach, mean + reach


def wilson(right: int, answers: int) -> tuple[float, float]:
    """The ends of Wilson's interval of a share: it stays within 0 and 1, and has a width at either end too."""
    share, square = right / answers, NORMAL**2 / answers
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def newcombe(ours: tuple[int, int], theirs: tuple[int, int]) -> tuple[float, float]:
    """The ends of the interval of a difference of two shares, each given as (right, answers), from Wilson's of each."""
    (share, low, high), (other, least, most) = ((one[0] / one[1], *wilson(*one)) for one in (ours, theirs))
    effect = share - other
    return effect - math.hypot(share - low, most - other), effect + math.hypot(high - share, other - least)
