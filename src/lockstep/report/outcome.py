"""What each contestant came to, as plain numbers: means over seeds, differences, and the cost of a common loss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.report.results import (
    Clock,
    Comparison,
    Contestant,
    Inference,
    Measured,
    Measurements,
    Results,
    Run,
    Score,
    Spread,
)

HIGHER_IS_BETTER = frozenset({"accuracy"})


# Who is compared with whom.


def groups(results: Results) -> dict[str, list[Contestant]]:
    """Contestants that may be compared, by group, in the study's order."""
    found: dict[str, list[Contestant]] = {}
    for one in results.contestants:
        found.setdefault(one.group, []).append(one)
    return found


def baseline_of(results: Results, group: Sequence[Contestant], wanted: str | None = None) -> Contestant | None:
    """The study's baseline where it is of this group, else its namesake in architecture of this size."""
    name = results.study.baseline if wanted is None else wanted
    for one in group:
        if one.name == name:
            return one
    kinds = {one.architecture for one in results.contestants if one.name == name}
    return next((one for one in group if one.architecture in kinds), None)


def diverged(one: Contestant) -> bool:
    """Whether any of its runs did: its mean would be that of the lucky ones."""
    return any(run.status == "diverged" for run in one.runs)


def metric_of(results: Results, group: Sequence[Contestant], share: float) -> str:
    """What a group is ranked by: the primary metric, or perplexity where the track is masked or bytes are unknown."""
    scored = [one for one in group if mean_score(one, "loss", share) is not None]
    primary = results.study.primary
    known = all(mean_score(one, primary, share) is not None for one in scored)
    return primary if known and group[0].track == "causal" else "perplexity"


def share_of(group: Sequence[Contestant]) -> float | None:
    """The latest point of the budget at which all that did not diverge have scores of the same seeds."""
    sound = [one for one in group if not diverged(one)]
    for share in sorted({at.share for one in sound for run in one.runs for at in run.cooled}, reverse=True):
        seeds = [{run.data_seed for run in one.runs if score_at(run, share)} for one in sound]
        if all(one == seeds[0] for one in seeds):
            return share
    return None


# Quality.


def score_at(run: Run, share: float) -> Score | None:
    """On the test split, at a share of the budget."""
    return next((at.score for at in run.cooled if at.share == share), None)


def mean_score(one: Contestant, metric: str, share: float = 1.0) -> float | None:
    """Over the seeds that have come so far."""
    scores = [score for run in one.runs if (score := score_at(run, share)) is not None]
    values = [getattr(score, metric) for score in scores]
    return None if not values or None in values else statistics.fmean(values)


def compared(results: Results, metric: str, ours: str, theirs: str, share: float = 1.0) -> Comparison | None:
    """Ours minus theirs, whichever of them the record calls the baseline."""
    for one in results.comparisons:
        if one.metric != metric or one.share != share:
            continue
        if (one.contestant, one.baseline) == (ours, theirs):
            return one
        if (one.contestant, one.baseline) == (theirs, ours):
            return turned(one)
    return None


def turned(one: Comparison) -> Comparison:
    """The same difference, seen from the other side."""
    changed = {
        "contestant": one.baseline,
        "baseline": one.contestant,
        "effect": -one.effect,
        "baseline_mean": one.baseline_mean + one.effect,
        "low": None if one.high is None else -one.high,
        "high": None if one.low is None else -one.low,
    }
    return one.model_copy(update=changed)


def ranked(group: Sequence[Contestant], metric: str, share: float) -> list[tuple[Contestant, float]]:
    """Who did not diverge, with the mean score, the better ones first."""
    scored = [
        (one, mean) for one in group if not diverged(one) and (mean := mean_score(one, metric, share)) is not None
    ]
    return sorted(scored, key=lambda pair: pair[1], reverse=metric in HIGHER_IS_BETTER)


# Speed and memory.


def measured_of(measurements: Measurements, one: Contestant) -> Measured | None:
    return measurements.contestants.get(one.name)


def training_speed(measured: Measured | None) -> Spread | None:
    """Tokens per second over all runs: the median of their medians, and the width of all of them."""
    rates = [clock.tokens_per_second for clock in measured.clocks if clock.tokens_per_second] if measured else []
    if not rates:
        return None
    return Spread(
        median=statistics.median(rate.median for rate in rates),
        low=min(rate.low for rate in rates),
        high=max(rate.high for rate in rates),
        count=sum(rate.count for rate in rates),
    )


def common_length(measurements: Measurements, group: Sequence[Contestant]) -> int | None:
    """The longest context after which all of the group that were measured were measured."""
    lengths = [{at.length for at in one.inference} for one in _timed(measurements, group) if one.inference]
    return max(set.intersection(*lengths), default=None) if lengths else None


def _timed(measurements: Measurements, group: Sequence[Contestant]) -> list[Measured]:
    return [found for one in group if (found := measured_of(measurements, one)) is not None]


def inference_at(measured: Measured | None, length: int | None) -> Inference | None:
    return next((at for at in measured.inference if at.length == length), None) if measured else None


def peak_bytes(measured: Measured | None, length: int | None) -> int | None:
    """The most that was held beyond the weights while decoding."""
    found = inference_at(measured, length)
    return None if found is None else found.decode_peak_bytes


def common_state_length(group: Sequence[Contestant]) -> int | None:
    """The longest length for which the whole group's states are known."""
    return max(set.intersection(*(set(one.state_bytes) for one in group)), default=None) if group else None


# The cost of a common loss.


@dataclass(frozen=True)
class Cost:
    """What it took to reach a loss."""

    tokens: float
    flops: float
    seconds: float | None


def mean_curve(one: Contestant) -> list[tuple[int, int, float]]:
    """(step, tokens, validation loss), mean over the runs, at the steps that all of them have."""
    runs = [{at.step: at for at in run.evaluated} for run in one.runs]
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return [(step, runs[0][step].tokens, statistics.fmean(run[step].score.loss for run in runs)) for step in steps]


def common_loss(group: Sequence[Contestant]) -> float | None:
    """The worst of the last validation losses, which all of the group have reached."""
    last = [curve[-1][2] for one in group if (curve := mean_curve(one))]
    return max(last) if len(last) == len(group) and last else None


def cost_of(loss: float, one: Contestant, measured: Measured | None) -> Cost | None:
    """Where the mean curve first came down to this loss, on a line between evaluations."""
    curve = mean_curve(one)
    for place, (step, tokens, reached) in enumerate(curve):
        if reached > loss:
            continue
        if place == 0:
            at_step, at_tokens = float(step), float(tokens)
        else:
            before, tokens_before, loss_before = curve[place - 1]
            part = (loss_before - loss) / (loss_before - reached)
            at_step, at_tokens = before + part * (step - before), tokens_before + part * (tokens - tokens_before)
        return Cost(at_tokens, at_tokens * one.training_flops_per_token, seconds_at(measured, at_step))
    return None


def seconds_at(measured: Measured | None, step: float) -> float | None:
    """Of training, up to a step: mean over the runs whose clocks have come so far."""
    found = [at for clock in (measured.clocks if measured else ()) if (at := clock_at(clock, step)) is not None]
    return statistics.fmean(found) if found else None


def clock_at(clock: Clock, step: float) -> float | None:
    """On a line between ticks; the first of them starts from nothing."""
    before, seconds_before = 0, 0.0
    for tick in clock.ticks:
        if tick.step >= step and tick.step > before:
            return seconds_before + (step - before) / (tick.step - before) * (tick.seconds - seconds_before)
        before, seconds_before = tick.step, tick.seconds
    return None
