"""Where in a sequence the loss lies: over length, position, and distance to the last occurrence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import (
    HEIGHT,
    ROWS,
    Row,
    brightness,
    figure,
    lengths_axis,
    lines_with_points,
    log_ticks,
    names_in,
    tooltip,
    training_rule,
)
from lockstep.report.figures.style import Look
from lockstep.report.figures.tracks import TrackOf, tracks
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.results import Bucket, Results
from lockstep.report.wording import joined

BUCKET = tooltip("contestant", first=",d", last=",d", tokens=",d", loss=".4f")
LOSS_TITLE = "loss on the test split, nats per token"


def length_figures(results: Results, look: Look) -> Iterator[Figure]:
    for track in tracks(results):
        yield from over_length(results, track, look)
        yield from by_position(track, look)
        yield from by_repeat(track, look)


def over_length(results: Results, track: TrackOf, look: Look) -> Iterator[Figure]:
    rows: list[Row] = [
        {
            "contestant": one.name,
            "length": at.length,
            "perplexity": at.perplexity,
            "loss": at.loss,
            "bits_per_byte": at.bits_per_byte,
        }
        for one in track.contestants
        for at in one.lengths
    ]
    if not rows:
        return
    trained = results.study.sequence_length
    x = lengths_axis(rows, "tokens read at once")
    y = alt.Y(
        "perplexity:Q",
        title="perplexity on the test split",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=log_ticks([row["perplexity"] for row in rows])),
    )
    shown = tooltip("contestant", length=",d", perplexity=".2f", loss=".4f", bits_per_byte=".4f")
    chart = lines_with_points(rows, look, x, y, shown)
    chart.layer.append(training_rule(trained))
    says = sentences(
        longest_said(rows, "perplexity"),
        f"The dashed line is the training length, {trained:,} tokens.",
        gaps(track.contestants, names_in(rows)),
    )
    title = f"Perplexity over length{track.words}"
    yield figure(f"perplexity_over_length{track.suffix}", title, says, chart, rows)


def longest_said(rows: Sequence[Row], field: str) -> str:
    longest = max(row["length"] for row in rows)
    there = sorted((row for row in rows if row["length"] == longest), key=lambda row: row[field])
    said = [f"{row['contestant']} {amount(row[field])}" for row in there]
    return f"At {longest:,} tokens the {field} is {joined(said)}."


# Position.


def by_position(track: TrackOf, look: Look) -> Iterator[Figure]:
    rows = [
        {"contestant": one.name, "position": math.sqrt(at.first * at.last), **bucket_row(at)}
        for one in track.contestants
        for at in one.positions
        if at.first is not None and at.last is not None
    ]
    if not rows:
        return
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    x = alt.X("position:Q", title="position in the sequence", scale=scale, axis=alt.Axis(format=",.0f", grid=False))
    y = alt.Y("loss:Q", title=LOSS_TITLE, scale=alt.Scale(zero=False))
    chart = lines_with_points(rows, look, x, y, BUCKET)
    last = max(row["last"] for row in rows)
    ends = sorted((row for row in rows if row["last"] == last), key=lambda row: row["loss"])
    said = joined([f"{row['contestant']} {amount(row['loss'])}" for row in ends])
    says = f"At positions {ends[0]['first']:,} to {last:,} the loss is {said} nats per token."
    says = sentences(says, gaps(track.contestants, names_in(rows)))
    yield figure(f"loss_by_position{track.suffix}", f"Loss by position{track.words}", says, chart, rows)


def bucket_row(at: Bucket) -> Row:
    return {"first": at.first, "last": at.last, "tokens": at.tokens, "loss": at.loss}


# Repeats.

NEW = "new"


def by_repeat(track: TrackOf, look: Look) -> Iterator[Figure]:
    rows = [
        {"contestant": one.name, "distance": span(at), **bucket_row(at)}
        for one in track.contestants
        for at in one.repeats
    ]
    if not rows:
        return
    order = list({row["distance"]: None for row in sorted(rows, key=lambda row: row["first"] or math.inf)})
    names = names_in(rows)
    axis = alt.Axis(labelAngle=0)
    y = alt.Y("loss:Q", title=LOSS_TITLE, scale=alt.Scale(zero=False))
    base = alt.Chart(ROWS).encode(y=y, opacity=brightness())
    lines = base.mark_line().encode(strokeDash=look.unlisted_dash(names)).transform_filter("datum.first != null")
    points = base.mark_point().encode(shape=look.shape(names), tooltip=BUCKET)
    title = "tokens since the same text of about 8 bytes ended"
    x = alt.X("distance:N", sort=order, title=title, axis=axis)
    chart = alt.layer(lines, points).encode(x=x, color=look.color(names)).properties(width="container", height=HEIGHT)
    says = sentences(repeat_said(rows), gaps(track.contestants, names))
    name, title = f"loss_by_repeat_distance{track.suffix}", f"Loss by distance to the last occurrence{track.words}"
    yield figure(name, title, says, chart, rows)


def span(at: Bucket) -> str:
    """Such as 5–8; `new` has no occurrence before."""
    if at.first is None or at.last is None:
        return NEW
    return f"{at.first:,}" if at.first == at.last else f"{at.first:,}–{at.last:,}"


def repeat_said(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["first"] is not None]
    said = []
    for name in {row["contestant"]: None for row in known}:
        far = max((row for row in known if row["contestant"] == name), key=lambda row: row["first"])
        said.append(f"{name} {amount(far['loss'])}")
    text = f"Where the text was last seen longest ago the loss is {joined(said)} nats per token." if said else ""
    new = f"“{NEW}”: the text of about 8 bytes that ends with the token had not stood in the sequence before."
    return sentences("By how far back the same text ended: where memory may help.", text, new)
