"""Differences between contestants, with what is known of their certainty."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.report.results import Comparison, Score
from lockstep.study.statistics import CONFIDENCE, Difference, holm, over_documents, over_seeds

Metric = Literal["loss", "bits_per_byte", "perplexity", "accuracy"]
METRICS: tuple[Metric, ...] = ("loss", "bits_per_byte", "perplexity", "accuracy")
PRIMARY: Metric = "bits_per_byte"
"""Chosen beforehand for every study: it does not depend on the tokenizer."""


@dataclass(frozen=True)
class DocumentSums:
    """Of one run, [documents] each."""

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    bytes: NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """One contestant at one point of the budget."""

    name: str
    scores: Mapping[int, Score]
    """By data seed."""
    documents: DocumentSums | None = None
    """Of its only run; None where there are several."""
    tokenizer: str = ""
    """Its fingerprint: what is counted per token means nothing beside another one's."""


def compare_all(
    by_share: Mapping[float, Sequence[Scored]], baseline: str, ranked_by: Metric = PRIMARY
) -> list[Comparison]:
    """Every pair of one group, at every point of the budget, in every metric.

    The verdict rests on the metric that the group is ranked by, at the end of the budget: there chance is given one in
    twenty over all pairs of the group together (Holm). All else is told with its interval, and as exploration.
    """
    found = []
    for share, scored in sorted(by_share.items()):
        for first, second in itertools.combinations(scored, 2):
            # The baseline is what is subtracted, wherever it takes part.
            ours, theirs = (second, first) if first.name == baseline else (first, second)
            found += [one for metric in METRICS if (one := compare(metric, share, ours, theirs)) is not None]
    return corrected(found, ranked_by)


def compare(metric: Metric, share: float, ours: Scored, theirs: Scored) -> Comparison | None:
    """One difference; None where the two have no repeat in common, or no such score."""
    if metric != "bits_per_byte" and ours.tokenizer != theirs.tokenizer:
        return None
    seeds = sorted(ours.scores.keys() & theirs.scores.keys())
    pairs = [(getattr(ours.scores[seed], metric), getattr(theirs.scores[seed], metric)) for seed in seeds]
    if not pairs or any(None in pair for pair in pairs):
        return None
    mine, others = ({seed: pair[side] for seed, pair in zip(seeds, pairs, strict=True)} for side in (0, 1))
    difference = over_seeds(mine, others)
    if len(seeds) == 1:
        difference = by_documents(metric, ours, theirs) or difference
    return Comparison(
        metric=metric,
        contestant=ours.name,
        baseline=theirs.name,
        share=share,
        effect=difference.effect,
        baseline_mean=float(np.mean(list(others.values()))),
        low=difference.low,
        high=difference.high,
        p=difference.p,
        p_adjusted=None,
        samples=difference.samples,
        kind=difference.kind,
        separable=difference.separable,
    )


def by_documents(metric: Metric, ours: Scored, theirs: Scored) -> Difference | None:
    """Within one run each: how sure the difference is of other documents."""
    mine, others = ours.documents, theirs.documents
    if mine is None or others is None or metric not in ("loss", "bits_per_byte"):
        return None
    scored = (mine.bytes > 0) & (mine.tokens > 0)
    same = np.array_equal(mine.tokens, others.tokens) and np.array_equal(mine.bytes, others.bytes)
    if not (same and scored.any()):
        return None
    weights, unit = (mine.tokens, 1.0) if metric == "loss" else (mine.bytes, float(np.log(2)))
    rates = [(one.nats[scored] / weights[scored] / unit) for one in (mine, others)]
    return over_documents(rates[0], rates[1], weights[scored])


def corrected(found: Sequence[Comparison], ranked_by: Metric) -> list[Comparison]:
    """With p values adjusted where the verdict rests on them."""
    places = [
        place for place, one in enumerate(found) if one.metric == ranked_by and one.share == 1 and one.p is not None
    ]
    adjusted = dict(zip(places, holm([found[place].p or 0.0 for place in places]), strict=True))
    return [
        one
        if (p := adjusted.get(place)) is None
        else one.model_copy(update={"p_adjusted": p, "separable": p < 1 - CONFIDENCE})
        for place, one in enumerate(found)
    ]
