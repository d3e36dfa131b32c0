"""Claims about generated tasks: who answers more."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.report.answers import TITLES, Gap, beats_chance, gap, lengths_of, pooled, score_at, scores_of
from lockstep.report.claim import Answers
from lockstep.report.intervals import student
from lockstep.report.outcome import diverged
from lockstep.report.published import same_length
from lockstep.report.results import Contestant, Results, TaskScore
from lockstep.report.tested import Tested, here, untestable
from lockstep.report.wording import change_of, in_tokens

CLEANEST = "0 % corrupted"
"""The level of the noise task that has only what all its levels have."""


def answers_more(claim: Answers, results: Results, ours: Contestant, theirs: Contestant) -> Tested:
    asked = set(lengths_of([ours], claim.task)) & set(lengths_of([theirs], claim.task))
    wanted = [at for at in asked if (at > claim.length if claim.beyond else same_length(at, claim.length))]
    found = [score_at(one, claim.task, max(wanted), claim.level) if wanted else None for one in (ours, theirs)]
    own, other = found
    if own is None or other is None:
        level = "" if claim.level is None else f", {claim.level},"
        more = "more than " if claim.beyond else ""
        return untestable(f"needs {TITLES[claim.task].lower()}{level} at {more}{in_tokens(claim.length)} tokens")
    return judged(results, (ours, own), (theirs, other), f"{own.length:,} tokens an instance")


def loses_less_by_noise(results: Results, ours: Contestant, theirs: Contestant) -> Tested | None:
    """How far accuracy falls from the cleanest level to the corrupted ones together: a better memory is better without
    noise too, and that is not what is claimed. None where both were not asked the same levels."""
    both = {key(one) for one in scores_of(ours, "noise")} & {key(one) for one in scores_of(theirs, "noise")}
    own, other = (falls([one for one in scores_of(who, "noise") if key(one) in both]) for who in (ours, theirs))
    if own is None or other is None:
        return None
    lost = [one.name for one in (ours, theirs) if diverged(one)]
    if lost:
        return untestable(f"{' and '.join(lost)} diverged")
    means = [sum(one.values()) / len(one) for one in (own, other)]
    told = " against ".join(
        f"{one.name} {change_of('accuracy', mean)}" for one, mean in zip((ours, theirs), means, strict=True)
    )
    effect, low, high = student([own[seed] - other[seed] for seed in own.keys() & other.keys()])
    if low is None or high is None:
        return untestable("one seed gives no interval", told)
    told = f"{told} by corruption, a difference of {change_of('accuracy', effect)}"
    told += f" (95 % interval {change_of('accuracy', low)} to {change_of('accuracy', high)})"
    return decided(results, ours, told, Gap(effect, low, high, len(own)), "noisy showings")


def falls(scores: Sequence[TaskScore]) -> dict[int, float] | None:
    """Accuracy at all corrupted levels together minus that at the cleanest, by seed."""
    clean, corrupted = (
        pooled([one for one in scores if (one.level == CLEANEST) == cleanest]) for cleanest in (True, False)
    )
    if clean is None or corrupted is None:
        return None
    before = {run.data_seed: run.right / run.answers for run in clean.runs}
    after = {run.data_seed: run.right / run.answers for run in corrupted.runs}
    return {seed: after[seed] - before[seed] for seed in before.keys() & after.keys()} or None


def key(score: TaskScore) -> tuple[str, int]:
    return score.level, score.length


def judged(
    results: Results, ours: tuple[Contestant, TaskScore], theirs: tuple[Contestant, TaskScore], what: str
) -> Tested:
    """Reproduced where ours answers separably more; where neither answers more than a guess, nothing is said."""
    lost = [one.name for one, _ in (ours, theirs) if diverged(one)]
    if lost:
        return untestable(f"{' and '.join(lost)} diverged")
    told = " against ".join(f"{one.name} {100 * score.accuracy:.1f} %" for one, score in (ours, theirs)) + " right"
    if not any(beats_chance(score) for _, score in (ours, theirs)):
        return untestable("neither is told from chance", told)
    found = gap(ours[1], theirs[1])
    if found is None:
        return untestable("one seed gives no interval", told)
    effect, low, high = (change_of("accuracy", number) for number in found[:3])
    told = f"{told}, {effect} (95 % interval {low} to {high})"
    return decided(results, ours[0], told, found, what)


def decided(results: Results, ours: Contestant, told: str, found: Gap, what: str) -> Tested:
    where = f"{here(results, ours)}; {what}"
    if not found.separable:
        return Tested(told, "not reproduced", f"not separable {where}")
    if found.effect > 0:
        return Tested(told, "reproduced", f"separable in the claimed direction {where}")
    return Tested(told, "not reproduced", f"the opposite is separable {where}")
