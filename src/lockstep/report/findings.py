"""What a study found, in sentences that hold nothing but its own numbers.

There is no verdict without a passed audit; whoever cannot be told apart is said to be so; only contestants of one group
are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.report.certainty import certainty
from lockstep.report.commonsense import commonsense
from lockstep.report.differences import DifferenceRow, difference_rows
from lockstep.report.outcome import diverged, groups, mean_score, metric_of, share_of
from lockstep.report.pace import cost, memory, speed
from lockstep.report.quality import quality, winner_of
from lockstep.report.recall import recall
from lockstep.report.results import Contestant, Measurements, Results, Run
from lockstep.report.slowness import slower_because
from lockstep.report.wording import UNITS, Sentence, amount_of, joined, sentence

__all__ = ["DifferenceRow", "Sentence", "Verdict", "difference_rows", "slower_because", "verdict"]


@dataclass(frozen=True)
class Verdict:
    """All sentences, in the order in which they are read."""

    standing: Literal["final", "preliminary", "none"]
    sentences: tuple[Sentence, ...]
    winners: dict[str, str]
    """By group, who is better than everybody else of it in the primary metric; absent where nobody is."""

    def about(self, topic: str) -> list[str]:
        return [one.text for one in self.sentences if one.topic == topic]


def verdict(results: Results, measurements: Measurements) -> Verdict:
    """Quality, speed, memory, cost, recall, common sense, and how sure we are; or why there is no verdict."""
    opening = [*_missing(results), *_divergences(results)]
    refusal = _refusal(results)
    if refusal is not None:
        return Verdict("none", (refusal, *opening), {})
    sentences, winners = list(opening), {}
    found = groups(results)
    for name, group in found.items():
        title = f"{name}: " if len(found) > 1 else ""
        sentences += [Sentence(one.topic, title + one.text) for one in about_group(results, measurements, group)]
        winner = winner_of(results, group)
        if winner is not None:
            winners[name] = winner
    sentences += certainty(results, measurements)
    return Verdict("final" if results.study.finished else "preliminary", tuple(sentences), winners)


def about_group(results: Results, measurements: Measurements, group: Sequence[Contestant]) -> list[Sentence]:
    """What one group's contestants came to against each other."""
    return [
        *quality(results, group),
        *speed(group, measurements),
        *memory(group, measurements),
        *cost(group, measurements),
        *recall(results, group),
        *commonsense(group),
    ]


def _refusal(results: Results) -> Sentence | None:
    audit = results.audit
    if audit is None:
        return Sentence("status", "There is no verdict: nothing has been audited yet.")
    if audit.passed:
        return None
    why = "; ".join(found.rstrip(". ") for found in audit.findings) or "no finding was recorded"
    return Sentence("status", sentence(f"There is no verdict: the audit did not pass ({why})"))


def _missing(results: Results) -> list[Sentence]:
    """What an unfinished study waits for."""
    if results.study.finished:
        return []
    steps = results.study.steps
    told = [f"{name} {why}" for name, why in results.study.absent.items()]
    told += [
        f"{one.name} {_progress(open_runs, steps)}"
        for one in results.contestants
        if (open_runs := [run for run in one.runs if run.status in ("waiting", "running")])
    ]
    missing = "; ".join(told) or "all runs have ended, but not all were evaluated and measured"
    return [
        Sentence("status", sentence(f"The study is not finished, and its numbers are preliminary. Missing: {missing}"))
    ]


def _progress(runs: Sequence[Run], steps: int) -> str:
    """Seeds that stand at the same step, together."""
    places: dict[str, list[str]] = {}
    for run in runs:
        where = "waiting" if run.status == "waiting" else f"at step {run.step:,} of {steps:,}"
        places.setdefault(where, []).append(str(run.data_seed))
    return joined(
        [f"{'seed' if len(seeds) == 1 else 'seeds'} {joined(seeds)} {where}" for where, seeds in places.items()]
    )


def _divergences(results: Results) -> list[Sentence]:
    """Who lost a run is named and not ranked; what the others came to is told."""
    told = [f"{name} {why}" for name, why in results.study.absent.items()] if results.study.finished else []
    for group in groups(results).values():
        for one in group:
            if diverged(one):
                told.append(_diverged(results, group, one))
            told += [f"{one.name}, seed {run.data_seed}: {run.message}" for run in one.runs if lost_a_branch(run)]
    return [Sentence("status", sentence(text)) for text in told]


def lost_a_branch(run: Run) -> bool:
    """A run that came to its end, but not to all cooled points before it."""
    return run.status != "diverged" and run.message is not None


def _diverged(results: Results, group: Sequence[Contestant], one: Contestant) -> str:
    lost = [run for run in one.runs if run.status == "diverged"]
    where = [f"seed {run.data_seed}: {run.message or f'at step {run.step:,}'}" for run in lost]
    text = f"{one.name} diverged in {len(lost)} of {len(one.runs)} runs ({'; '.join(where)}) and is not ranked"
    share = share_of(group)
    metric = metric_of(results, group, share) if share is not None else None
    if share is None or metric is None or (mean := mean_score(one, metric, share)) is None:
        return text
    unit = "pseudo-perplexity" if one.track == "masked" else UNITS[metric]
    return f"{text}; its other runs came to {amount_of(metric, mean)} {unit} at {100 * share:.4g} % of the budget"
