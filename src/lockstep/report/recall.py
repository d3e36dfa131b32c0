"""What trained contestants answer and how far their context reaches, in words that hold nothing but their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lockstep.report.answers import (
    TITLES,
    beats_chance,
    chance_said,
    hardest,
    intervals_said,
    lengths_of,
    levels_of,
    nearest,
    rate,
    score_at,
    tasks_of,
)
from lockstep.report.results import Contestant, Results, TaskScore
from lockstep.report.wording import Sentence, joined, sentence, signed, times

SAME = 0.02
"""By how much perplexities may differ and still be called the same: positions hold different tokens."""

Found = list[tuple[str, TaskScore]]


def recall(results: Results, group: Sequence[Contestant]) -> list[Sentence]:
    """Of one group; masked models are not asked."""
    if group[0].track == "masked":
        return []
    trained = results.study.sequence_length
    texts = [text for task in tasks_of(group) for text in about_task(group, task, trained)]
    texts += beyond_training(group, trained)
    return [Sentence("recall", sentence(text)) for text in texts]


def about_task(group: Sequence[Contestant], task: str, trained: int) -> Iterator[str]:
    """At the hardest level near the training length, at the longest length, and where half is lost."""
    lengths, levels = lengths_of(group, task), levels_of(group, task)
    title, near = TITLES.get(task, task), nearest(lengths, trained)
    level = hardest(group, task, near)
    which = f", {level} (the hardest of {len(levels)} levels)" if len(levels) > 1 else ""
    yield f"{title}{which} at {near:,} tokens: {answered(found_at(group, task, near, level))}"
    if len(lengths) > 1:
        longest = lengths[-1]
        ratio = f" ({times(longest / trained)} times the training length)" if longest > trained else ""
        every = ", all levels" if len(levels) > 1 else ""
        yield f"{title}{every} at {longest:,} tokens{ratio}: {answered(found_at(group, task, longest))}"
        halved = where_halved(group, task, trained)
        if halved:
            yield f"{title}: {halved}"


def found_at(group: Sequence[Contestant], task: str, length: int, level: str | None = None) -> Found:
    """The best first."""
    scores = [(one.name, score) for one in group if (score := score_at(one, task, length, level)) is not None]
    return sorted(scores, key=lambda pair: -pair[1].accuracy)


def answered(found: Found) -> str:
    """Shares with their intervals, chance, and who cannot be told from it."""
    said = [f"{name}{'' if place else ' answers'} {share(score)}" for place, (name, score) in enumerate(found)]
    chance = joined(dict.fromkeys(chance_said(score.chance) for _, score in found))
    lost = [name for name, score in found if not beats_chance(score)]
    told = f"{joined(said)}; chance is {chance}; {intervals_said(score for _, score in found)}"
    return f"{told}. Not told from chance, or below it: {joined(lost)}" if lost else told


def share(score: TaskScore) -> str:
    """83.2 % (80.1 to 86.0)."""
    found = rate(score)
    return f"{100 * found.accuracy:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"


# Half.


def where_halved(group: Sequence[Contestant], task: str, trained: int) -> str:
    """Against the training length, over all levels; only of those for whom half would still be more than chance."""
    halved: dict[int, list[str]] = {}
    kept: dict[int, list[str]] = {}
    for one in group:
        start = score_at(one, task, trained)
        later = [length for length in lengths_of([one], task) if length > trained]
        if start is None or not later or not beats_chance(start) or start.accuracy / 2 <= start.chance:
            continue
        half = start.accuracy / 2
        found = next((at for at in later if (score := score_at(one, task, at)) and score.accuracy <= half), None)
        (kept if found is None else halved).setdefault(found or later[-1], []).append(one.name)
    told = [f"at {length:,} tokens in {joined(halved[length])}" for length in sorted(halved)]
    rest = [f"by {length:,} tokens in {joined(kept[length])}" for length in sorted(kept)]
    against = f"of what is right at the training length, {trained:,} tokens, half or more is lost"
    if told:
        return f"{against} first {joined(told)}" + (f", and not {joined(rest)}" if rest else "")
    return f"{against} by nobody: not {joined(rest)}" if rest else ""


# Loss beyond training.


def beyond_training(group: Sequence[Contestant], trained: int) -> Iterator[str]:
    """The last positions against those at the end of the training length, as a ratio of perplexities."""
    said: dict[tuple[int, int], list[str]] = {}
    for one in group:
        there = [(at.first, at.last, at.loss) for at in one.beyond if at.first is not None and at.last is not None]
        before = [loss for _, last, loss in there if last <= trained]
        if before and there[-1][0] > trained:
            first, last, far = there[-1]
            said.setdefault((first, last), []).append(f"{one.name} {changed(before[-1], far)}")
    for (first, last), told in said.items():
        yield (
            f"In one long text, at positions {first:,} to {last:,} against those up to the training length, "
            f"{trained:,} tokens: {'; '.join(told)}"
        )


def changed(before: float, far: float) -> str:
    """Better, the same or worse by its losses, with their difference and the factor."""
    change = far - before
    ratio = math.exp(min(change, 700.0))
    word = f"the same within {100 * SAME:.0f} %" if abs(ratio - 1) <= SAME else "worse" if ratio > 1 else "better"
    return f"{word}, {far:.3f} nats per token, {signed(change, 3)}, {times(ratio)} times the perplexity"
