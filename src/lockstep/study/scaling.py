"""How loss falls with size: a power law per architecture, where a study has it at several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import least_squares

from lockstep.report.results import Contestant, Fit

FEWEST, FEWEST_WITH_FLOOR = 3, 4
"""Sizes: two points lie on any power law, and three on any with a floor."""


def fits(contestants: Sequence[Contestant]) -> Iterator[Fit]:
    """One per architecture that competes at enough sizes, over the mean of its repeats.

    Where two of one architecture compete at one size, they differ in something else, and are no series of sizes.
    """
    for architecture in dict.fromkeys(one.architecture for one in contestants):
        series = [one for one in contestants if one.architecture == architecture and one.track == "causal"]
        if len({one.group for one in series}) < len(series):
            continue
        sizes = {}
        for one in series:
            losses = [point.score.loss for run in one.runs for point in run.cooled if point.share == 1]
            if losses:
                sizes[one.non_embedding_parameters] = float(np.mean(losses))
        if len(sizes) >= FEWEST:
            yield fit(architecture, dict(sorted(sizes.items())))


def fit(architecture: str, sizes: dict[int, float]) -> Fit:
    """By Huber loss in log space (as Hoffmann et al., arXiv 2203.15556): one odd size does not decide."""
    parameters, losses = np.array(list(sizes), float), np.array(list(sizes.values()))
    slope, height = np.polyfit(np.log(parameters), np.log(losses), 1)
    has_floor = len(sizes) >= FEWEST_WITH_FLOOR

    def off(guess: np.ndarray) -> np.ndarray:
        floor = np.exp(guess[2]) if has_floor else 0.0
        predicted = floor + np.exp(guess[0] - guess[1] * np.log(parameters))
        return np.asarray(np.log(predicted) - np.log(losses))

    start = [height, -slope, *([np.log(losses.min() / 2)] if has_floor else [])]
    found = least_squares(off, start, loss="huber", f_scale=1e-3).x
    return Fit(
        architecture=architecture,
        parameters=tuple(int(one) for one in parameters),
        losses=tuple(float(one) for one in losses),
        scale=float(np.exp(found[0])),
        exponent=float(found[1]),
        floor=float(np.exp(found[2])) if has_floor else None,
    )
