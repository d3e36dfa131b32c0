"""Claims about generated tasks: who answers more."""

from __future__ import annotations

from lockstep.report.answers import TITLES, beats_chance, gap, lengths_of, pooled, score_at, scores_of
from lockstep.report.claim import Answers
from lockstep.report.outcome import diverged
from lockstep.report.published import same_length
from lockstep.report.results import Contestant, Results, TaskScore
from lockstep.report.tested import Tested, here, untestable
from lockstep.report.wording import change_of, in_tokens

CLEAN = "0 % corrupted"
"""The level of the noise task that has none."""


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


def recalls_more_from_noise(results: Results, ours: Contestant, theirs: Contestant) -> Tested | None:
    """Over all corrupted levels that both were asked; None where there are none."""
    both = {key(one) for one in scores_of(ours, "noise")} & {key(one) for one in scores_of(theirs, "noise")}
    own, other = (
        pooled([score for score in scores_of(one, "noise") if key(score) in both and score.level != CLEAN])
        for one in (ours, theirs)
    )
    return None if own is None or other is None else judged(results, (ours, own), (theirs, other), own.level)


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
    where = f"{here(results, ours[0])}; {what}"
    if not found.separable:
        return Tested(told, "not reproduced", f"not separable {where}")
    if found.effect > 0:
        return Tested(told, "reproduced", f"separable in the claimed direction {where}")
    return Tested(told, "not reproduced", f"the opposite is separable {where}")
