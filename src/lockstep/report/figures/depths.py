"""Where in a text something stood that was answered: heat maps of length against depth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.answers import TITLES, lengths_of, levels_of, scores_of
from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import ROWS, Row, figure, names_in, panel_width, tooltip
from lockstep.report.figures.words import sentences
from lockstep.report.results import Contestant
from lockstep.report.wording import in_tokens, joined

DEEP = ("needles", "babilong")
"""Tasks whose answers lie at depths that were chosen; others are drawn where they have several lengths."""
BROAD = 26
"""Pixels of a cell that has room for its number."""
MOST_BESIDE = 3
CELL = 30
DARK = 0.42
"""Up to this accuracy cells are so dark that numbers in them are white: the contrast is the same on either side."""


def depth_figures(contestants: Sequence[Contestant], task: str, trained: int) -> Iterator[Figure]:
    """One figure per level, with a panel for each contestant."""
    lengths = lengths_of(contestants, task)
    if task not in DEEP and (len(lengths) < 2 or task not in ("recall", "induction")):
        return
    levels = levels_of(contestants, task)
    for number, level in enumerate(levels, start=1):
        rows = [row for one in contestants for row in cells(one, task, level)]
        if rows:
            title = TITLES.get(task, task) + (f", {level}" if len(levels) > 1 else "")
            says = sentences(weakest(rows), trained_said(lengths, trained))
            chart = maps(rows, contestants, lengths, trained)
            yield figure(
                f"task_{task}_depth_{number}", f"{title}: right answers by length and depth", says, chart, rows
            )


def cells(one: Contestant, task: str, level: str) -> Iterator[Row]:
    """Bands of depth over all seeds; those without answers are left out."""
    for score in scores_of(one, task):
        for band in score.bands if score.level == level else ():
            if band.answers:
                yield {
                    "contestant": one.name,
                    "level": level,
                    "length": score.length,
                    "tokens": in_tokens(score.length),
                    "depth": f"{100 * band.first:.0f}–{100 * band.last:.0f} %",
                    "first": band.first,
                    "accuracy": band.right / band.answers,
                    "right": band.right,
                    "answers": band.answers,
                }


def weakest(rows: Sequence[Row]) -> str:
    """Where each contestant answers least, and how much."""
    said = []
    for name in dict.fromkeys(row["contestant"] for row in rows):
        worst = min((row for row in rows if row["contestant"] == name), key=lambda row: row["accuracy"])
        said.append(f"{name} {100 * worst['accuracy']:.0f} % ({worst['tokens']} tokens, depth {worst['depth']})")
    return f"Answered least: {joined(said)}. Depth 0 is the beginning of an instance, whose end asks."


def trained_said(lengths: Sequence[int], trained: int) -> str:
    if max(lengths) <= trained:
        return f"No length is beyond that of training, {trained:,} tokens."
    if min(lengths) > trained:
        return f"All lengths are beyond that of training, {trained:,} tokens."
    return f"Right of the dashed line instances are longer than in training, {trained:,} tokens."


def maps(
    rows: Sequence[Row], contestants: Sequence[Contestant], lengths: Sequence[int], trained: int
) -> alt.FacetChart:
    """Colours are on one scale from 0 to 100 % in all of them."""
    there = names_in(rows)
    names = [one.name for one in contestants if one.name in there]
    depths = list({row["depth"]: None for row in sorted(rows, key=lambda row: row["first"])})
    labels = [in_tokens(length) for length in lengths]
    beside, width = laid_out(len(names), len(labels))
    x = alt.X("tokens:O", sort=labels, title="tokens of an instance", axis=alt.Axis(labelAngle=0, grid=False))
    y = alt.Y("depth:O", sort=depths, title=None, axis=alt.Axis(grid=False))
    legend = alt.Legend(
        orient="bottom", direction="horizontal", gradientLength=180, format=".0%", title="right answers", offset=12
    )
    base = alt.Chart(ROWS).encode(x=x, y=y)
    colour = alt.Color("accuracy:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=legend)
    shown = tooltip("contestant", "depth", length=",d", accuracy=".1%", right=",d", answers=",d")
    layers = [base.mark_rect().encode(color=colour, tooltip=shown)]
    if width >= BROAD * len(labels):
        layers.append(numbers(base))
    if any(length <= trained for length in lengths) and max(lengths) > trained:
        layers += end_of_training(labels[sum(length <= trained for length in lengths) - 1], labels)
    chart = alt.layer(*layers).properties(width=width, height=CELL * len(depths))
    facets: alt.FacetChart = chart.facet(
        facet=alt.Facet("contestant:N", sort=names, title=None), columns=beside, data=ROWS
    ).resolve_axis(x="independent")
    return facets


def laid_out(panels: int, columns: int) -> tuple[int, int]:
    """How many panels stand beside each other, so that their cells have room for numbers, and how wide each is.

    Cells are of whole pixels: no seams between them.
    """
    choices = [(beside, panel_width(beside, gap=60) // columns) for beside in range(min(panels, MOST_BESIDE), 0, -1)]
    beside, cell = next((one for one in choices if one[1] >= BROAD), choices[-1])
    return beside, columns * max(1, min(cell, 2 * CELL))


def numbers(base: alt.Chart) -> alt.Chart:
    """Percent, dark on light cells and light on dark ones; the page leaves the colour of what is named so alone."""
    ink = alt.condition(f"datum.accuracy >= {DARK}", alt.value("#000000"), alt.value("#ffffff"))
    text = base.transform_calculate(percent="format(100 * datum.accuracy, '.0f')")
    drawn: alt.Chart = text.mark_text(fontSize=10).encode(text="percent:N", color=ink).properties(name="cell_numbers")
    return drawn


def end_of_training(label: str, labels: Sequence[str]) -> list[alt.Chart]:
    """A dark line with a light rim, at the right edge of the last length that is no longer than in training."""
    x = alt.X("tokens:O", sort=list(labels), bandPosition=1)
    base = alt.Chart(ROWS).transform_filter(f"datum.tokens === {json.dumps(label)}").encode(x=x)
    return [
        base.mark_rule(color="#ffffff", strokeWidth=4),
        base.mark_rule(color="#000000", strokeWidth=1.5, strokeDash=[4, 3]),
    ]
