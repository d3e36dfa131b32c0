"""Quality against cost: who is beaten by nobody in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, SHORT, Row, brightness, figure, tooltip
from lockstep.report.figures.style import GREY, Look
from lockstep.report.figures.tracks import quality, tracks
from lockstep.report.figures.words import gaps, sentences
from lockstep.report.outcome import mean_score
from lockstep.report.results import Contestant, Measured, Measurements, Results
from lockstep.report.wording import joined

AXES = {
    "decode_milliseconds": "time to write a token after a context of the training length, milliseconds",
    "training_seconds": "training time per million tokens, seconds",
    "training_flops": "training FLOPs per token",
    "state_bytes": "state of one sequence of the training length, bytes",
    "peak_bytes": "most held in training beyond the weights, bytes",
}
"""All costs: less is better."""


def pareto_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    for track in tracks(results):
        metric = quality(track.contestants)
        rows: list[Row] = []
        for one in track.contestants:
            score = mean_score(one, metric.field)
            if score is not None:
                costs = costs_of(one, measurements.contestants.get(one.name), results.study.sequence_length)
                rows.append({"contestant": one.name, "what": "contestant", metric.field: score, **costs})
        axes = {field: title for field, title in AXES.items() if any(row[field] is not None for row in rows)}
        if len(rows) < 2 or not axes:
            continue
        fronts = {field: front(rows, field, metric.field) for field in axes}
        joined = [front_row(row, field, metric.field) for field in axes for row in fronts[field]]
        says = sentences(front_said(fronts), gaps(track.contestants, {row["contestant"] for row in rows}))
        chart = scatter(rows, look, metric.field, f"{metric.title} on the test split", next(iter(axes)))
        title = f"Quality against cost{track.words}"
        yield figure(f"pareto{track.suffix}", title, says, chart, rows + joined, axes)


def costs_of(one: Contestant, timed: Measured | None, length: int) -> Row:
    """Each cost, or None where it was not measured."""
    at = min(timed.inference, key=lambda at: abs(at.length - length)) if timed and timed.inference else None
    rates = [clock.tokens_per_second.median for clock in timed.clocks if clock.tokens_per_second] if timed else []
    return {
        "decode_milliseconds": 1000 * at.decode_seconds.median if at else None,
        "training_seconds": 1e6 / median(rates) if rates else None,
        "training_flops": one.training_flops_per_token,
        "state_bytes": one.state_bytes.get(length),
        "peak_bytes": timed.training_peak_bytes if timed else None,
    }


def front(rows: Sequence[Row], cost: str, score: str) -> list[Row]:
    """Those that nobody beats in one without losing in the other, cheapest first."""
    known = sorted((row for row in rows if row[cost] is not None), key=lambda row: (row[cost], row[score]))
    kept: list[Row] = []
    for row in known:
        if not kept or row[score] < kept[-1][score]:
            kept.append(row)
    return kept


def front_row(row: Row, cost: str, score: str) -> Row:
    """A corner of one axis's front: it has no place on the other axes, so that their lines do not go through it."""
    return {"contestant": row["contestant"], "what": f"front by {cost}", score: row[score], cost: row[cost]}


def scatter(rows: Sequence[Row], look: Look, score: str, title: str, cost: str) -> alt.LayerChart:
    names = {row["contestant"] for row in rows}
    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X(f"{cost}:Q", title=AXES[cost], scale=scale, axis=alt.Axis(labelExpr=SHORT, tickCount=6))
    y = alt.Y(f"{score}:Q", title=f"{title} (lower is better)", scale=alt.Scale(zero=False, padding=24))
    base = alt.Chart(ROWS)
    line = base.transform_filter("datum.what != 'contestant'").mark_line(
        color=GREY, strokeDash=[4, 3], strokeWidth=1.5, invalid="filter"
    )
    own = base.transform_filter("datum.what == 'contestant'")
    shown = tooltip("contestant", **{score: ".4f"}, **dict.fromkeys(AXES, ".4~s"))
    points = own.mark_point(size=130, invalid="filter").encode(
        color=look.color(names), shape=look.shape(names), opacity=brightness(), tooltip=shown
    )
    words = own.mark_text(align="left", dx=10, dy=-8, fontSize=11, color=GREY, invalid="filter").encode(
        text="contestant:N"
    )
    chart = alt.layer(points, line, words).encode(x=x, y=y)
    return chart.properties(width="container", height=HEIGHT)


def front_said(fronts: dict[str, list[Row]]) -> str:
    said = []
    short = {
        "decode_milliseconds": "by time to write a token",
        "training_seconds": "by training time",
        "training_flops": "by training FLOPs",
        "state_bytes": "by state",
        "peak_bytes": "by training memory",
    }
    for field, rows in fronts.items():
        if rows:
            said.append(f"{short[field]}: {joined([row['contestant'] for row in rows])}")
    return f"Beaten by nobody in both quality and cost, {'; '.join(said)}. The dashed line joins them."
