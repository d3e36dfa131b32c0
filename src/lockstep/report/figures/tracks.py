"""Who may stand in one picture: losses of different tracks are different things."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
