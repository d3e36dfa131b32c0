"""Who predicts better, in words: by the metric that was chosen beforehand, and only where it can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.report.outcome import HIGHER_IS_BETTER, baseline_of, compared, metric_of, ranked, share_of
from lockstep.report.results import Comparison, Contestant, Results
from lockstep.report.wording import UNITS, Sentence, amount_of, difference, joined, sentence

MASKED = "Masked models see both sides of a token and are never ranked against causal ones"


@dataclass(frozen=True)
class Ranking:
    """One group's, at one point of the budget."""

    metric: str
    unit: str
    share: float
    order: tuple[tuple[Contestant, float], ...]
    """The better ones first; who diverged is not among them."""
    against_first: tuple[Comparison | None, ...]
    """Each of the others minus the first."""

    @property
    def tied(self) -> list[Contestant]:
        """Who cannot be told apart from the first; a difference that is not on record proves nothing."""
        others = zip(self.order[1:], self.against_first, strict=True)
        return [one for (one, _), found in others if found is None or not found.separable]

    @property
    def over_seeds(self) -> bool:
        """Whether differences are told from those of other seeds; documents of one run do not tell that."""
        return all(found is not None and found.kind == "seeds" for found in self.against_first)

    @property
    def winner(self) -> Contestant | None:
        return self.order[0][0] if len(self.order) > 1 and self.over_seeds and not self.tied else None

    def said(self, place: int) -> str:
        """Name and score."""
        one, value = self.order[place]
        return f"{one.name} ({amount_of(self.metric, value)})"


def ranking(results: Results, group: Sequence[Contestant]) -> Ranking | None:
    """None where nothing can be compared yet."""
    share = share_of(group)
    if share is None:
        return None
    metric = metric_of(results, group, share)
    order = ranked(group, metric, share)
    first = order[0][0].name
    found = tuple(compared(results, metric, one.name, first, share) for one, _ in order[1:])
    unit = "pseudo-perplexity" if group[0].track == "masked" else UNITS[metric]
    return Ranking(metric, unit, share, tuple(order), found)


def winner_of(results: Results, group: Sequence[Contestant]) -> str | None:
    """Only at the end of a finished study."""
    found = ranking(results, group)
    if found is None or found.winner is None or found.share != 1 or not results.study.finished:
        return None
    return found.winner.name


def quality(results: Results, group: Sequence[Contestant]) -> list[Sentence]:
    """Of one group."""
    found = ranking(results, group)
    if found is None:
        return [Sentence("quality", "No scores of the same seeds exist yet: nothing can be compared.")]
    texts = [MASKED] if group[0].track == "masked" else []
    texts += [_when(results, found) + _standing(found), _against_first(found)]
    if len(found.order) > 2:
        texts += _against_baseline(results, found)
    return [Sentence("quality", sentence(text)) for text in texts if text]


def _when(results: Results, found: Ranking) -> str:
    if found.share == 1 and results.study.finished:
        names = {one.name for one, _ in found.order}
        edge = any(one.at_edge for one in results.sweeps if one.contestant in names)
        return "Provisionally, because an optimum lies at the edge of its grid: " if edge else ""
    return f"So far, at {100 * found.share:.4g} % of the budget: "


def _standing(found: Ranking) -> str:
    first, value = found.order[0]
    score = amount_of(found.metric, value)
    if len(found.order) == 1:
        return f"{first.name} came to {score} in {found.unit}; nobody else of its group can be compared with it"
    if found.winner is not None:
        end = "highest" if found.metric in HIGHER_IS_BETTER else "lowest"
        return f"{first.name} has the {end} {found.unit}, {score}; the next is {_behind(found, 1)}"
    if not found.tied:
        return f"No winner in {found.unit} from one run each. In this one {found.said(0)} is ahead of all others"
    tied = {one.name for one in found.tied}
    near = [found.said(place) for place, (one, _) in enumerate(found.order) if one.name in tied]
    behind = [found.said(place) for place, (one, _) in enumerate(found.order) if place and one.name not in tied]
    told = f"No winner in {found.unit}. First by its mean is {found.said(0)}, not separable from {joined(near)}"
    return f"{told}; {joined(behind)} {'lies' if len(behind) == 1 else 'lie'} behind" if behind else told


def _against_first(found: Ranking) -> str:
    """How far behind everybody is, where there is no winner to say it of."""
    if found.winner is not None or len(found.order) < 2:
        return ""
    told = "; ".join(_behind(found, place) for place in range(1, len(found.order)))
    return f"Against {found.order[0][0].name}: {told}"


def _behind(found: Ranking, place: int) -> str:
    one = found.against_first[place - 1]
    return f"{found.said(place)}, {'not compared' if one is None else difference(one)}"


def _against_baseline(results: Results, found: Ranking) -> list[str]:
    """Every one of the group, with its sign."""
    group = [one for one, _ in found.order]
    base = baseline_of(results, group)
    if base is None:
        return []
    told = []
    for one in group:
        if one.name != base.name and (pair := compared(results, found.metric, one.name, base.name, found.share)):
            told.append(f"{one.name} {difference(pair)}")
    value = next(value for one, value in found.order if one.name == base.name)
    return (
        [f"Against the baseline {base.name} ({amount_of(found.metric, value)} {found.unit}): {'; '.join(told)}"]
        if told
        else []
    )
