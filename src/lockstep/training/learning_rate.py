"""The learning rate as a pure function of the step: there is no scheduler state to save or to lose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError

ONE_CYCLE_START = 1 / 25
"""Where one-cycle begins, as a share of the peak."""
ONE_CYCLE_END = 1e-4
"""Where one-cycle ends, as a share of the peak."""


@dataclass(frozen=True, order=True)
class Cooling:
    """A decay branch: it leaves the constant trunk at step `start` and takes its last step at `end` - 1."""

    start: int
    end: int


def learning_rate_at(step: int, training: TrainingSpec, steps: int, cooling: Cooling | None = None) -> float:
    """The rate of the optimizer step about to be taken: the one with 0-based index `step`, of `steps` in all.

    With `cooling`, the rate on that branch: the trunk until it leaves, then its own decay.
    """
    last = (steps if cooling is None else cooling.end) - 1
    if not 0 <= step <= last:
        raise ValueError(f"step {step} is not one of 0 to {last}")
    return training.learning_rate * _share_of_peak(step, training, steps, cooling)


def cooling_branches(training: TrainingSpec, steps: int) -> tuple[Cooling, ...]:
    """The decay branches that `cooled_at` asks for, in order, each once.

    A share that rounds to the last step needs no branch: the run's own decay cools the end.
    """
    warmup = warmup_length(training, steps)
    branches = set()
    for share in training.cooled_at:
        end = max(1, round(share * steps))
        if end == steps:
            continue
        start = _decay_start(training, end)
        if start < warmup:
            raise UserError(
                f"training.cooled_at: the branch at share {share:g} would start to decay at step {start}, but"
                f" warm-up lasts until step {warmup}; cool later, or warm up for fewer steps"
            )
        branches.add(Cooling(start, end))
    return tuple(sorted(branches))


def warmup_length(training: TrainingSpec, steps: int) -> int:
    """How many steps the warm-up takes; the last of them has the peak rate."""
    if training.warmup_steps is not None:
        return training.warmup_steps
    return round(training.warmup_ratio * steps)


def _share_of_peak(step: int, training: TrainingSpec, steps: int, cooling: Cooling | None) -> float:
    warmup = warmup_length(training, steps)
    if training.schedule == "one-cycle":
        return _one_cycle(step, warmup, steps)
    if step < warmup:
        return (step + 1) / warmup
    if cooling is not None:
        return _cooled(step, cooling)
    if training.schedule == "wsd":
        return _cooled(step, Cooling(max(warmup, _decay_start(training, steps)), steps))
    done = (step - warmup) / (steps - warmup)
    floor = training.min_learning_rate_ratio
    if training.schedule == "cosine":
        return _half_cosine(1, floor, done)
    if training.schedule == "polynomial":
        return floor + (1 - floor) * math.pow(1 - done, training.polynomial_power)
    return 1.0


def _decay_start(training: TrainingSpec, end: int) -> int:
    return end - max(1, round(training.decay_ratio * end))


def _cooled(step: int, cooling: Cooling) -> float:
    """Constant, then the 1 - sqrt decay of Hägele et al. (arXiv 2405.18392), which would reach 0 at `end`."""
    if step < cooling.start:
        return 1.0
    return 1 - math.sqrt((step - cooling.start) / (cooling.end - cooling.start))


def _one_cycle(step: int, warmup: int, steps: int) -> float:
    """Up and down again along half cosines; both the peak and the end fall on a step, as in torch's OneCycleLR."""
    if step < warmup:
        return _half_cosine(ONE_CYCLE_START, 1, step / (warmup - 1) if warmup > 1 else 1.0)
    return _half_cosine(1, ONE_CYCLE_END, (step - warmup + 1) / (steps - warmup))


def _half_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
