"""Others' claims beside our measurements: reproduced, not reproduced, or not testable here, and why.

An ordering is testable where both compete at a size that is not far below the claimed one, and ours is told with it. An
absolute number is testable only on the same text at about the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.report.answer_claims import answers_more, loses_less_by_noise
from lockstep.report.claim import Answers, Because, Better, Changed, Claim, Elsewhere, Entrant, Faster, Score
from lockstep.report.claims_table import CLAIMS
from lockstep.report.outcome import (
    HIGHER_IS_BETTER,
    common_length,
    compared,
    diverged,
    groups,
    inference_at,
    mean_score,
    measured_of,
    metric_of,
    training_speed,
)
from lockstep.report.results import Comparison, Contestant, Measured, Measurements, Profile, Results
from lockstep.report.slowness import parts_of_difference
from lockstep.report.tested import Outcome, Tested, here, untestable
from lockstep.report.wording import (
    UNITS,
    amount_of,
    change_of,
    difference,
    interval,
    milliseconds,
    percent,
    sentence,
    signed,
    times,
)
from lockstep.tables import in_bytes, in_short

SAME_SIZE = 0.2
"""How far parameters may lie off a claim's."""
SAME_SCORE = 0.01
"""Bits per byte: the least by which two rows of the claimed table differ."""

PARTS = {
    "memory": ("use_memory", False),
    "a deep memory": ("memory_depth", 1),
    "convolution": ("conv", 0),
    "momentum": ("momentum", False),
    "forgetting": ("decay", False),
    "persistent tokens": ("persistent", 0),
}
"""What a contestant may lack, and the field that says so."""

AGREEING = 0.3
"""How far a difference by profiles may lie off the one by the clock: a profile costs time of its own."""
FAR_BELOW = 10
"""A model that is so many times smaller says nothing about an ordering of larger ones."""
WIDE = 0.02
"""An interval of more than two percent, or two points of accuracy, cannot confirm a change of nearly nothing."""


@dataclass(frozen=True)
class CheckedClaim:
    source: str
    claim: str
    ours: str | None
    """Our numbers; None where we have none."""
    verdict: Outcome
    reason: str


def check_claims(results: Results, measurements: Measurements) -> list[CheckedClaim]:
    """Every claim at least once, and once for each pair of contestants that it is about."""
    checked = []
    for claim in CLAIMS:
        for found in _tested(claim, results, measurements):
            checked.append(CheckedClaim(claim.source, claim.text, found.ours, found.verdict, sentence(found.reason)))
    return checked


def _tested(claim: Claim, results: Results, measurements: Measurements) -> list[Tested]:
    if isinstance(claim, Elsewhere):
        return [untestable(f"needs {claim.needs}")]
    missing = _unsound(results)
    if missing is not None:
        return [untestable(missing)]
    match claim:
        case Score():
            return _score(claim, results)
        case Better(better=one, worse=other, noisy=True):
            tests = [test for pair in pairs(results, one, other) for test in _better_on_noise(claim, results, *pair)]
        case Answers(better=one, worse=other):
            tests = [answers_more(claim, results, *pair) for pair in pairs(results, one, other)]
        case Better(better=one, worse=other):
            tests = [_better(claim, results, *pair) for pair in pairs(results, one, other)]
        case Faster(faster=one, slower=other):
            tests = [_faster(claim, results, measurements, *pair) for pair in pairs(results, one, other)]
        case Changed(entrant=one, against=other):
            tests = [_changed(claim, results, measurements, *pair) for pair in pairs(results, one, other)]
        case Because(entrant=one, against=other):
            tests = [_because(claim, measurements, *pair) for pair in pairs(results, one, other)]
        case _:
            raise TypeError(type(claim).__name__)
    return tests or [untestable(f"needs {one} and {other} in one group")]


def _unsound(results: Results) -> str | None:
    """Why this study can test nothing."""
    if not results.study.finished:
        return "the study is not finished"
    if results.audit is None or not results.audit.passed:
        return "the audit did not pass"
    return None


# Who a claim is about.


def lacks(one: Contestant) -> set[str]:
    """Parts that were taken from it; fields that its architecture does not have take nothing."""
    parts = {part for part, (field, value) in PARTS.items() if field in one.model and one.model[field] == value}
    windowed = one.architecture == "transformer++" and one.model.get("window") is not None
    return parts | {"full attention"} if windowed else parts


def is_meant(entrant: Entrant, one: Contestant) -> bool:
    wanted = set() if entrant.without is None else {entrant.without}
    return one.architecture in entrant.architectures and lacks(one) == wanted


def pairs(results: Results, one: Entrant, other: Entrant) -> Iterator[tuple[Contestant, Contestant]]:
    """All pairs of one group that a claim is about."""
    for group in groups(results).values():
        for ours in group:
            for theirs in group:
                if is_meant(one, ours) and is_meant(other, theirs):
                    yield ours, theirs


def near(size: float, one: Contestant) -> bool:
    sizes = (one.parameters, one.non_embedding_parameters)
    return any(abs(ours / size - 1) <= SAME_SIZE for ours in sizes)


# One test for each kind of claim.


def _better(claim: Better, results: Results, ours: Contestant, theirs: Contestant) -> Tested:
    metric = metric_of(results, [ours, theirs], 1.0)
    pair = compared(results, metric, ours.name, theirs.name)
    lost = [one.name for one in (ours, theirs) if diverged(one)]
    if lost or pair is None:
        return untestable(
            f"{' and '.join(lost)} diverged" if lost else f"{ours.name} was not compared with {theirs.name}"
        )
    told = f"{_both(pair, ours, theirs)}, {difference(pair)}"
    if claim.noisy and not results.study.noise:
        return untestable("needs noisy text; this study's has none", told)
    if claim.parameters is not None and not near(claim.parameters, ours):
        return untestable(
            f"needs {in_short(claim.parameters)} parameters, because smaller ones have the other order", told
        )
    if claim.smallest is not None and ours.parameters < claim.smallest / FAR_BELOW:
        return untestable(f"said of {in_short(claim.smallest)} parameters; here {in_short(ours.parameters)}", told)
    if pair.low is None:
        return untestable("one seed gives no interval", told)
    where = here(results, ours)
    if not pair.separable:
        return Tested(told, "not reproduced", f"not separable {where}")
    if (pair.effect > 0) == (metric in HIGHER_IS_BETTER):
        return Tested(told, "reproduced", f"separable in the claimed direction {where}")
    return Tested(told, "not reproduced", f"the opposite is separable {where}")


def _better_on_noise(claim: Better, results: Results, ours: Contestant, theirs: Contestant) -> list[Tested]:
    """By the task whose showings are corrupted, where both were asked it; by text, where it is noisy or all we have."""
    by_task = loses_less_by_noise(results, ours, theirs)
    by_text = [_better(claim, results, ours, theirs)] if by_task is None or results.study.noise else []
    return by_text if by_task is None else [*by_text, by_task]


def _both(pair: Comparison, ours: Contestant, theirs: Contestant) -> str:
    own, other = pair.baseline_mean + pair.effect, pair.baseline_mean
    shown = f"{ours.name} {amount_of(pair.metric, own)} against {theirs.name} {amount_of(pair.metric, other)}"
    return f"{shown} {UNITS[pair.metric]}"


def _faster(
    claim: Faster, results: Results, measurements: Measurements, ours: Contestant, theirs: Contestant
) -> Tested:
    own, other = (training_speed(measured_of(measurements, one)) for one in (ours, theirs))
    if own is None or other is None:
        return untestable("training speed was not measured")
    told = f"{ours.name} {in_short(own.median)} against {theirs.name} {in_short(other.median)} tokens/s"
    told += f", {times(own.median / other.median)} times"
    length = results.study.sequence_length
    if claim.length is not None and claim.length != length:
        return untestable(f"needs sequences of {claim.length:,} tokens; here they have {length:,}", told)
    found = [measured_of(measurements, one) for one in (ours, theirs)]
    kernels = " and ".join(dict.fromkeys(f"{one.kernel_backend} kernels on {one.device}" for one in found if one))
    where = f"at {length:,} tokens with {kernels}"
    if own.low > other.high:
        return Tested(told, "reproduced", f"beyond the spread in the claimed direction {where}")
    if other.low > own.high:
        return Tested(told, "not reproduced", f"the opposite, beyond the spread, {where}")
    return Tested(told, "not reproduced", f"not separable: the spreads overlap {where}")


def _score(claim: Score, results: Results) -> list[Tested]:
    needs = f"needs {claim.corpus} at {in_short(claim.parameters)}"
    entrants = [one for one in results.contestants if is_meant(claim.entrant, one)]
    tests = []
    for one in entrants:
        value = mean_score(one, "bits_per_byte")
        told = None if value is None else f"{one.name} {value:.4f} bits per byte"
        if results.study.corpus != claim.corpus or not near(claim.parameters, one):
            tests.append(untestable(f"{needs}; here {results.study.corpus} at {in_short(one.parameters)}", told))
        elif value is None or diverged(one):
            tests.append(untestable(f"{one.name} has no score of all its seeds", told))
        else:
            gap = value - claim.bits_per_byte
            verdict: Outcome = "reproduced" if abs(gap) <= SAME_SCORE else "not reproduced"
            tests.append(Tested(told, verdict, f"{signed(gap, 4)} against the claim {here(results, one)}"))
    return tests or [untestable(f"{needs}, and {claim.entrant} among the contestants")]


def _changed(
    claim: Changed, results: Results, measurements: Measurements, ours: Contestant, theirs: Contestant
) -> Tested:
    if claim.measure == "perplexity" or claim.measure == "accuracy":
        return _changed_score(claim, results, ours, theirs)
    group = groups(results)[ours.group]
    length = common_length(measurements, group)
    found = [inference_at(measured_of(measurements, one), length) for one in (ours, theirs)]
    own, other = found
    if own is None or other is None:
        return untestable("decoding was not measured")
    if claim.measure == "decode time":
        values = own.decode_seconds.median, other.decode_seconds.median
        shown = [milliseconds(value) for value in values]
    elif own.decode_peak_bytes is None or not other.decode_peak_bytes:
        return untestable("memory while decoding was not measured")
    else:
        values = float(own.decode_peak_bytes), float(other.decode_peak_bytes)
        shown = [in_bytes(value) for value in values]
    ratio = values[0] / values[1]
    told = f"{ours.name} {shown[0]} against {theirs.name} {shown[1]}, {percent(ratio - 1)}, {times(ratio)} times"
    off = abs(ratio / (1 + claim.change) - 1)
    verdict: Outcome = "reproduced" if off <= claim.within else "not reproduced"
    word = "within" if off <= claim.within else "not within"
    return Tested(told, verdict, f"{word} {100 * claim.within:.0f} % of the claimed ratio, after {length:,} tokens")


def _changed_score(claim: Changed, results: Results, ours: Contestant, theirs: Contestant) -> Tested:
    """Reproduced where the claimed change lies within our interval, and that is narrow enough to say so."""
    pair = compared(results, claim.measure, ours.name, theirs.name)
    if pair is None:
        return untestable(f"{ours.name} was not compared with {theirs.name}")
    told = f"{_both(pair, ours, theirs)}, {difference(pair)}"
    if pair.low is None or pair.high is None:
        return untestable("one seed gives no interval", told)
    claimed = claim.change if claim.measure == "accuracy" else claim.change * pair.baseline_mean
    inside = pair.low <= claimed <= pair.high
    word = "lies within" if inside else "lies outside"
    where = here(results, ours)
    reason = f"the claim, {change_of(claim.measure, claimed)} here, {word} our {interval(pair)} {where}"
    unit = 1.0 if claim.measure == "accuracy" else pair.baseline_mean
    if inside and pair.high - pair.low > WIDE * unit:
        return untestable(f"{reason}, which is too wide to tell it from many others", told)
    return Tested(told, "reproduced" if inside else "not reproduced", reason)


def _because(claim: Because, measurements: Measurements, ours: Contestant, theirs: Contestant) -> Tested:
    profiles = [_decode_profile(measured_of(measurements, one)) for one in (ours, theirs)]
    own, other = profiles
    if own is None or other is None:
        return untestable("decoding was not profiled")
    whole = sum(own.seconds.values()) - sum(other.seconds.values())
    if whole <= 0:
        return untestable(f"{ours.name} does not decode slower than {theirs.name} in the profiles")
    timed = [_decode_times(measured_of(measurements, one)) for one in (ours, theirs)]
    gaps = [timed[0][at] - timed[1][at] for at in timed[0] if at in timed[1]]
    if not any(abs(whole / gap - 1) <= AGREEING for gap in gaps if gap > 0):
        return untestable("profiles and clock disagree about how much slower it is")
    parts = [part for part in parts_of_difference(own, other) if part.name.startswith(claim.parts)]
    seconds = sum(part.seconds for part in parts)
    told = f"{ours.name}: {milliseconds(seconds)} of {milliseconds(whole)} more than {theirs.name} per token"
    verdict: Outcome = "reproduced" if seconds > whole / 2 else "not reproduced"
    return Tested(told, verdict, f"{100 * seconds / whole:.0f} % of the difference goes into its parts")


def _decode_times(measured: Measured | None) -> dict[int, float]:
    return {at.length: at.decode_seconds.median for at in measured.inference} if measured else {}


def _decode_profile(measured: Measured | None) -> Profile | None:
    return next((one for one in measured.profiles if one.what == "decode"), None) if measured else None
