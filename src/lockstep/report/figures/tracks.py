"""Who may stand in one picture: losses of different tracks are different things."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scipy import stats

from lockstep.report.results import Contestant, Results, Score


class TrackOf(NamedTuple):
    """One track's contestants, and what its figures are called beyond their common name."""

    contestants: tuple[Contestant, ...]
    suffix: str
    words: str


def tracks(results: Results) -> Iterator[TrackOf]:
    """The first track that there is has plain names."""
    there = [track for track in ("causal", "masked") if any(one.track == track for one in results.contestants)]
    for place, track in enumerate(there):
        ours = tuple(one for one in results.contestants if one.track == track)
        yield TrackOf(ours, f"_{track}" if place else "", " (masked models)" if track == "masked" else "")


class Metric(NamedTuple):
    """A number of a score that can be drawn."""

    field: str
    title: str


LOSS = Metric("loss", "nats per token")
BITS = Metric("bits_per_byte", "bits per byte")


def quality(contestants: Sequence[Contestant]) -> Metric:
    """Bits per byte; loss where the bytes are not known."""
    scores = [at.score for one in contestants for run in one.runs for at in run.cooled]
    return LOSS if any(score.bits_per_byte is None for score in scores) else BITS


def number(score: Score, metric: Metric) -> float:
    found: float = getattr(score, metric.field)
    return found


def interval(numbers: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean, and the ends of its 95 % interval by Student's t; one number has none."""
    count = len(numbers)
    mean = sum(numbers) / count
    if count < 2:
        return mean, None, None
    deviation = math.sqrt(sum((one - mean) ** 2 for one in numbers) / (count - 1))
    reach = float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return mean, mean - reach, mean + reach
