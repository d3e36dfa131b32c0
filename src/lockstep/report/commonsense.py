"""Common sense, in words: what was answered, how sure that is, and who has shown no more than a guess would."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.report.answers import chance_said
from lockstep.report.results import CommonsenseScore, Contestant
from lockstep.report.wording import Sentence, joined, sentence


def commonsense(group: Sequence[Contestant]) -> list[Sentence]:
    """Set by set, the best first; who lies within two standard errors of chance has shown nothing."""
    texts = []
    for key in dict.fromkeys((score.set, score.metric) for one in group for score in one.commonsense):
        found = [(one.name, score) for one in group for score in one.commonsense if (score.set, score.metric) == key]
        shares = key[1] != "perplexity"
        found.sort(key=lambda pair: -pair[1].value if shares else pair[1].value)
        said = joined([f"{name} {value_of(score)}" for name, score in found])
        chance = found[0][1].chance
        lost = [name for name, score in found if not shows_sense(score)]
        told = f"{key[0]}, {key[1]}: {said}" + ("" if chance is None else f"; chance is {chance_said(chance)}")
        texts.append(told + (f". Not more than chance by two standard errors: {joined(lost)}" if lost else ""))
    return [Sentence("commonsense", sentence(text)) for text in texts]


def value_of(score: CommonsenseScore) -> str:
    """With its standard error."""
    scale, unit, digits = (1.0, "", 1) if score.metric == "perplexity" else (100.0, " %", 1)
    error = "" if score.standard_error is None else f" ± {scale * score.standard_error:,.{digits}f}"
    return f"{scale * score.value:,.{digits}f}{error}{unit}"


def shows_sense(score: CommonsenseScore) -> bool:
    """More than chance; where chance is nothing, as with free answers, there is nothing to beat."""
    return score.chance is None or score.value - 2 * (score.standard_error or 0.0) > score.chance
