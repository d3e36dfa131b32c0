"""How much of generated tasks is answered: over levels and lengths, by depth, and against the size of the state."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.answers import (
    TITLES,
    hardest,
    intervals_said,
    lengths_of,
    levels_of,
    nearest,
    rate,
    score_at,
    scores_of,
    tasks_of,
)
from lockstep.report.figure import Figure
from lockstep.report.figures.depths import depth_figures
from lockstep.report.figures.dots import dots
from lockstep.report.figures.drawing import (
    BYTES,
    HEIGHT,
    ROWS,
    Row,
    brightness,
    figure,
    lengths_axis,
    lines_with_points,
    log_ticks,
    names_in,
    panel_width,
    tooltip,
    training_rule,
)
from lockstep.report.figures.style import GREY, Look
from lockstep.report.figures.words import gaps, sentences
from lockstep.report.results import Contestant, Results, TaskScore
from lockstep.report.wording import joined
from lockstep.tables import in_bytes

MOST_BESIDE = 3
SHARE = alt.Scale(domain=[0, 1])
SHOWN = tooltip(
    "contestant", "level", length=",d", accuracy=".1%", low=".1%", high=".1%", chance=".2%", answers=",d", seeds="d"
)


def task_figures(results: Results, look: Look) -> Iterator[Figure]:
    """Masked models cannot answer, and are not asked."""
    asked = [one for one in results.contestants if one.track == "causal"]
    trained, alone = results.study.sequence_length, []
    remembered = next((task for task in REMEMBERING if task in tasks_of(asked)), None)
    for task in tasks_of(asked):
        if len(lengths_of(asked, task)) > 1:
            yield over_lengths(asked, task, trained, look)
        elif len(levels_of(asked, task)) > 1:
            yield over_levels(asked, task, look)
        else:
            alone.append(task)
        if task == remembered:
            yield from against_state(asked, task, trained, look)
        yield from depth_figures(asked, task, trained)
    if alone:
        yield of_one_level(asked, alone, look)


def score_row(one: Contestant, score: TaskScore) -> Row:
    found = rate(score)
    return {
        "contestant": one.name,
        "level": score.level,
        "length": score.length,
        "accuracy": found.accuracy,
        "low": found.low,
        "high": found.high,
        "interval_over": found.over,
        "chance": score.chance,
        "answers": sum(run.answers for run in score.runs),
        "seeds": len(score.runs),
    }


def task_rows(contestants: Sequence[Contestant], task: str) -> list[Row]:
    return [score_row(one, score) for one in contestants for score in scores_of(one, task)]


def best_first(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: -row["accuracy"])
    return joined([f"{row['contestant']} {100 * row['accuracy']:.1f} %" for row in ordered])


def explained(contestants: Sequence[Contestant], tasks: Sequence[str]) -> str:
    """What whiskers and the grey line are, and who is missing."""
    scores = [score for one in contestants for task in tasks for score in scores_of(one, task)]
    present = {one.name for one in contestants if any(scores_of(one, task) for task in tasks)}
    return sentences(f"Whiskers are {intervals_said(scores)}.", gaps(contestants, present))


# Lines.


def accuracy_axis(title: str | None = "right answers") -> alt.Y:
    return alt.Y("accuracy:Q", title=title, scale=SHARE, axis=alt.Axis(format=".0%", tickCount=5))


def lines(rows: Sequence[Row], look: Look, x: alt.X, y: alt.Y, named: str) -> alt.LayerChart:
    """With whiskers, and chance as a grey line that is named where `named` is true."""
    chart = lines_with_points(rows, look, x, y, SHOWN)
    whiskers = alt.Chart(ROWS).mark_rule(strokeWidth=1.5, strokeOpacity=0.5)
    guessed = alt.Chart(ROWS).encode(y="mean(chance):Q", color=alt.value(GREY))
    words = guessed.transform_filter(named).mark_text(align="left", dx=-8, dy=-6, fontSize=11, color=GREY)
    chart.layer = [
        *chart.layer,
        whiskers.encode(y="low:Q", y2="high:Q", opacity=brightness()),
        guessed.mark_line(strokeDash=[4, 3], strokeWidth=1.5),
        words.encode(text=alt.value("chance")),
    ]
    return chart


def over_levels(contestants: Sequence[Contestant], task: str, look: Look) -> Figure:
    rows, levels = task_rows(contestants, task), levels_of(contestants, task)
    (length,) = lengths_of(contestants, task)
    x = alt.X("level:O", sort=levels, title=None, axis=alt.Axis(labelAngle=0, grid=False))
    chart = lines(rows, look, x, accuracy_axis(), f"datum.level === {json.dumps(levels[0])}")
    worst = hardest(contestants, task, length)
    says = sentences(
        f"{worst}, the level answered least, at {length:,} tokens: "
        f"{best_first([row for row in rows if row['level'] == worst])}. The dashed line is chance.",
        explained(contestants, [task]),
    )
    return figure(f"task_{task}", f"{TITLES.get(task, task)}: right answers by level", says, chart, rows)


def over_lengths(contestants: Sequence[Contestant], task: str, trained: int, look: Look) -> Figure:
    """A panel for each level."""
    rows, levels = task_rows(contestants, task), levels_of(contestants, task)
    shortest, *_, longest = lengths_of(contestants, task)
    x = lengths_axis(rows, "tokens of an instance", short=True)
    chart = lines(rows, look, x, accuracy_axis(title=None), f"datum.length === {shortest}")
    chart.layer.append(training_rule(trained))
    beside = min(len(levels), MOST_BESIDE)
    width = panel_width(beside, most=MOST_BESIDE)
    drawn = chart.properties(width=width, height=HEIGHT if beside == 1 else HEIGHT - 100)
    facets = drawn.facet(facet=alt.Facet("level:N", sort=levels, title=None), columns=beside, data=ROWS)
    facets = facets.resolve_axis(x="independent")
    worst = hardest(contestants, task, longest)
    there = [row for row in rows if (row["level"], row["length"]) == (worst, longest)]
    says = sentences(
        f"{worst}, the level answered least at {longest:,} tokens: {best_first(there)}.",
        f"The dashed lines are chance and, upright, the training length, {trained:,} tokens.",
        explained(contestants, [task]),
    )
    return figure(f"task_{task}", f"{TITLES.get(task, task)}: right answers over length", says, facets, rows)


def of_one_level(contestants: Sequence[Contestant], tasks: Sequence[str], look: Look) -> Figure:
    """Tasks that were asked in one way only, beside each other."""
    titles = {task: TITLES.get(task, task) for task in tasks}
    rows = [{"task": titles[task], **row} for task in tasks for row in task_rows(contestants, task)]
    x = alt.X("accuracy:Q", title="right answers", scale=SHARE, axis=alt.Axis(format=".0%", tickCount=4))
    said = [f"{titles[task]}: {best_first([row for row in rows if row['task'] == titles[task]])}." for task in tasks]
    says = sentences(*said, "Grey ticks are chance.", explained(contestants, tasks))
    chart = dots(rows, look, x, "task", list(titles.values()), SHOWN)
    return figure("task_others", "Right answers to tasks of one level", says, chart, rows)


# The state.

REMEMBERING = ("recall", "needles", "babilong")
"""Tasks that a larger state may help with; the first that there is is drawn."""
LABEL_BROAD, LABEL_HIGH = 0.15, 0.05
"""The room that a name takes beside its point, as shares of both axes."""


def against_state(contestants: Sequence[Contestant], task: str, trained: int, look: Look) -> Iterator[Figure]:
    """At the level that all together answer least, at the tested length that is nearest to that of training."""
    length = nearest(lengths_of(contestants, task), trained)
    level = hardest(contestants, task, length)
    rows = [
        {**score_row(one, score), "state_bytes": one.state_bytes[nearest(one.state_bytes, length)]}
        for one in contestants
        if one.state_bytes and (score := score_at(one, task, length, level)) is not None
    ]
    rows = labelled([row for row in rows if row["state_bytes"]])
    if not rows:
        return
    said = [f"{row['contestant']} {in_bytes(row['state_bytes'])}" for row in sorted(rows, key=by_state)]
    says = sentences(
        f"{TITLES[task]}, {level}, at {length:,} tokens: {best_first(rows)}. States of one sequence: {joined(said)}. "
        "The dashed line is chance.",
        explained(contestants, [task]),
    )
    yield figure("task_by_state", f"{TITLES[task]} against the size of the state", says, states(rows, look), rows)


def by_state(row: Row) -> int:
    return int(row["state_bytes"])


def labelled(rows: Sequence[Row]) -> list[Row]:
    """With a name beside each point, unless another name stands so near that both would be unreadable."""
    places = [math.log(row["state_bytes"]) for row in rows]
    broad = LABEL_BROAD * (max(places) - min(places)) if rows else 0.0
    kept: list[Row] = []
    for row, place in zip(rows, places, strict=True):
        near = [
            other
            for other in kept
            if other["label"]
            and abs(math.log(other["state_bytes"]) - place) <= broad
            and abs(other["accuracy"] - row["accuracy"]) <= LABEL_HIGH
        ]
        kept.append({**row, "label": "" if near else row["contestant"]})
    return kept


def states(rows: Sequence[Row], look: Look) -> alt.LayerChart:
    names = names_in(rows)
    axis = alt.Axis(labelExpr=BYTES, values=log_ticks([row["state_bytes"] for row in rows]), grid=False)
    scale = alt.Scale(type="log", nice=False, padding=40)
    x = alt.X("state_bytes:Q", title="state of one sequence, bytes", scale=scale, axis=axis)
    base = alt.Chart(ROWS).encode(x=x)
    shown = [*SHOWN, *tooltip(state_bytes=",d")]
    points = base.mark_point(size=130).encode(
        color=look.color(names), shape=look.shape(names), opacity=brightness(), tooltip=shown
    )
    whiskers = base.mark_rule(strokeWidth=1.5, strokeOpacity=0.5).encode(
        y="low:Q", y2="high:Q", color=look.color(names), opacity=brightness()
    )
    words = base.mark_text(align="left", dx=10, dy=-8, fontSize=11, color=GREY).encode(text="label:N")
    guessed = alt.Chart(ROWS).encode(y="mean(chance):Q", color=alt.value(GREY))
    chance = guessed.mark_rule(strokeDash=[4, 3], strokeWidth=1.5)
    named = guessed.mark_text(align="left", dy=-6, dx=4, fontSize=11, color=GREY).encode(
        x=alt.value(0), text=alt.value("chance")
    )
    chart = alt.layer(points, whiskers, words, chance, named).encode(y=accuracy_axis())
    return chart.properties(width="container", height=HEIGHT)
