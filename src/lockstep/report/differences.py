"""Each contestant beside the baseline: signed differences, and nothing where something is missing."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.report.outcome import (
    baseline_of,
    common_length,
    common_state_length,
    compared,
    diverged,
    groups,
    inference_at,
    mean_score,
    measured_of,
    training_speed,
)
from lockstep.report.results import Contestant, Measurements, Results

SCORES = ("loss", "perplexity", "bits_per_byte", "accuracy")


@dataclass(frozen=True)
class Change:
    """A number beside the baseline's."""

    value: float
    baseline: float | None
    """None where the baseline has none, and for the baseline itself."""
    paired: float | None = None
    """Of scores: the mean difference over the seeds that both have."""

    @property
    def difference(self) -> float | None:
        if self.paired is not None or self.baseline is None:
            return self.paired
        return self.value - self.baseline

    @property
    def ratio(self) -> float | None:
        """Minus 1 and times 100 it is the change in percent."""
        return self.value / self.baseline if self.baseline else None


@dataclass(frozen=True)
class DifferenceRow:
    """One contestant at the end of the budget; whatever is missing is None."""

    name: str
    architecture: str
    group: str
    track: str
    is_baseline: bool
    baseline: str | None
    """Whom it is compared with: None for the baseline itself, and where its group has none."""
    loss: Change | None
    perplexity: Change | None
    bits_per_byte: Change | None
    interval: tuple[float, float] | None
    """Of the difference in bits per byte, 95 %."""
    separable: bool | None
    accuracy: Change | None
    """Shares; the difference times 100 is in points."""
    training_tokens_per_second: Change | None
    length: int | None
    """The context of the next three."""
    decode_seconds: Change | None
    prefill_seconds: Change | None
    decode_peak_bytes: Change | None
    training_peak_bytes: Change | None
    state_length: int | None
    state_bytes: Change | None
    parameters: Change
    training_flops_per_token: Change


def difference_rows(results: Results, measurements: Measurements, baseline: str | None = None) -> list[DifferenceRow]:
    """In the study's order; contestants are compared within their group alone."""
    rows = []
    found = groups(results)
    for one in results.contestants:
        group = found[one.group]
        base = baseline_of(results, group, baseline)
        lengths = common_length(measurements, group), common_state_length(group)
        ours = _numbers(one, measurements, *lengths)
        theirs = {} if base is None or base.name == one.name else _numbers(base, measurements, *lengths)
        rows.append(_row(results, one, base, lengths, ours, theirs))
    return rows


def _row(
    results: Results,
    one: Contestant,
    base: Contestant | None,
    lengths: tuple[int | None, int | None],
    ours: dict[str, float | None],
    theirs: dict[str, float | None],
) -> DifferenceRow:
    other = None if base is None or base.name == one.name else base.name
    pair = None if other is None else compared(results, "bits_per_byte", one.name, other)
    changes = {
        name: None if value is None else change(results, one, other, name, value, theirs)
        for name, value in ours.items()
        if name not in ("parameters", "training_flops_per_token")
    }
    return DifferenceRow(
        name=one.name,
        architecture=one.architecture,
        group=one.group,
        track=one.track,
        is_baseline=base is not None and base.name == one.name,
        baseline=other,
        interval=None if pair is None or pair.low is None or pair.high is None else (pair.low, pair.high),
        separable=None if pair is None else pair.separable,
        length=lengths[0],
        state_length=lengths[1],
        parameters=Change(one.parameters, theirs.get("parameters")),
        training_flops_per_token=Change(one.training_flops_per_token, theirs.get("training_flops_per_token")),
        **changes,
    )


def change(
    results: Results, one: Contestant, other: str | None, name: str, value: float, theirs: dict[str, float | None]
) -> Change:
    """Scores differ by what was compared seed by seed, and not at all for one that diverged."""
    if name not in SCORES:
        return Change(value, theirs.get(name))
    pair = None if other is None or diverged(one) else compared(results, name, one.name, other)
    return Change(value, None) if pair is None else Change(value, theirs.get(name), pair.effect)


def _numbers(
    one: Contestant, measurements: Measurements, length: int | None, state_length: int | None
) -> dict[str, float | None]:
    """By the names of the row's fields."""
    measured = measured_of(measurements, one)
    at, rate = inference_at(measured, length), training_speed(measured)
    return {
        **{metric: mean_score(one, metric) for metric in SCORES},
        "training_tokens_per_second": rate.median if rate else None,
        "decode_seconds": at.decode_seconds.median if at else None,
        "prefill_seconds": at.prefill_seconds.median if at else None,
        "decode_peak_bytes": at.decode_peak_bytes if at else None,
        "training_peak_bytes": measured.training_peak_bytes if measured else None,
        "state_bytes": one.state_bytes.get(state_length) if state_length is not None else None,
        "parameters": one.parameters,
        "training_flops_per_token": one.training_flops_per_token,
    }
