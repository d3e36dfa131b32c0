"""Common sense: questions to trained models, set by set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.dots import dots
from lockstep.report.figures.drawing import Row, figure, log_ticks, names_in, tooltip
from lockstep.report.figures.style import Look
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.results import CommonsenseScore, Contestant, Results
from lockstep.report.wording import joined

PERPLEXITY = "perplexity"


def commonsense_figures(results: Results, look: Look) -> Iterator[Figure]:
    asked = [one for one in results.contestants if one.track == "causal"]
    rows = [score_row(one, score) for one in asked for score in one.commonsense]
    shares = [row for row in rows if row["metric"] != PERPLEXITY]
    if shares:
        axis = alt.Axis(format=".0%", tickCount=4)
        x = alt.X("value:Q", title="right answers", scale=alt.Scale(zero=True), axis=axis)
        yield drawn(asked, shares, look, x, "commonsense", "Common sense: right answers")
    words = [row for row in rows if row["metric"] == PERPLEXITY]
    if words:
        axis = alt.Axis(format=",.6~g", values=log_ticks([row["value"] for row in words]))
        scale = alt.Scale(type="log", nice=False, padding=12)
        x = alt.X("value:Q", title="perplexity of the last word", scale=scale, axis=axis)
        yield drawn(asked, words, look, x, "commonsense_perplexity", "Common sense: perplexity of last words")


def score_row(one: Contestant, score: CommonsenseScore) -> Row:
    """Ends lie a standard error away; a perplexity that is less certain than that has no lower one."""
    error = score.standard_error
    low = None if error is None else score.value - error
    return {
        "contestant": one.name,
        "panel": panel_of(score),
        "set": score.set,
        "metric": score.metric,
        "value": score.value,
        "low": low if low is None or low > 0 or score.metric != PERPLEXITY else score.value,
        "high": None if error is None else score.value + error,
        "chance": score.chance,
        "examples": score.examples,
    }


def panel_of(score: CommonsenseScore) -> str:
    return f"{score.set}, by length" if score.metric == "accuracy by length" else score.set


def drawn(
    contestants: Sequence[Contestant], rows: Sequence[Row], look: Look, x: alt.X, name: str, title: str
) -> Figure:
    shares = rows[0]["metric"] != PERPLEXITY
    form = ".1%" if shares else ",.4g"
    shown = tooltip("contestant", "panel", value=form, low=form, high=form, chance=form, examples=",d")
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    said = [f"{panel}: {best_first([row for row in rows if row['panel'] == panel], shares)}." for panel in panels]
    explained = "Whiskers are one standard error over the questions" + ("; grey ticks are chance." if shares else ".")
    says = sentences(*said, explained, gaps(contestants, names_in(rows)))
    return figure(name, title, says, dots(rows, look, x, "panel", panels, shown), rows)


def best_first(rows: Sequence[Row], shares: bool) -> str:
    ordered = sorted(rows, key=lambda row: -row["value"] if shares else row["value"])
    return joined(
        [
            f"{row['contestant']} {100 * row['value']:.1f} %"
            if shares
            else f"{row['contestant']} {amount(row['value'])}"
            for row in ordered
        ]
    )
