"""Far beyond the training length: loss by position, perplexity after more context, and what reading on costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import (
    BYTES,
    Row,
    figure,
    lengths_axis,
    lines_with_points,
    log_ticks,
    names_in,
    tooltip,
    training_rule,
)
from lockstep.report.figures.inference import at_longest, per_token, timings
from lockstep.report.figures.lengths import BUCKET, bucket_row
from lockstep.report.figures.style import Look
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.results import Contestant, Measurements, Results
from lockstep.report.wording import joined
from lockstep.tables import in_bytes

LOG = alt.Scale(type="log", nice=False, padding=12)


def beyond_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    asked = [one for one in results.contestants if one.track == "causal"]
    trained = results.study.sequence_length
    yield from by_position(asked, trained, look)
    yield from by_context(asked, trained, look)
    yield from streamed(asked, measurements, look)


def trained_said(trained: int) -> str:
    return f"The dashed line is the training length, {trained:,} tokens."


def by_position(contestants: Sequence[Contestant], trained: int, look: Look) -> Iterator[Figure]:
    rows = [
        {"contestant": one.name, "position": math.sqrt(at.first * at.last), **bucket_row(at)}
        for one in contestants
        for at in one.beyond
        if at.first is not None and at.last is not None
    ]
    if not rows:
        return
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    axis = alt.Axis(format=",.0f", grid=False)
    x = alt.X("position:Q", title="position in one long text", scale=scale, axis=axis)
    y = alt.Y("loss:Q", title="loss on the test split, nats per token", scale=alt.Scale(zero=False))
    chart = lines_with_points(rows, look, x, y, BUCKET)
    chart.layer.append(training_rule(trained))
    last = max(row["last"] for row in rows)
    ends = sorted((row for row in rows if row["last"] == last), key=lambda row: row["loss"])
    said = joined([f"{row['contestant']} {amount(row['loss'])}" for row in ends])
    says = sentences(
        f"At positions {ends[0]['first']:,} to {last:,} of one text the loss is {said} nats per token.",
        trained_said(trained),
        gaps(contestants, names_in(rows)),
    )
    yield figure("beyond_positions", "Loss far beyond the training length", says, chart, rows)


def by_context(contestants: Sequence[Contestant], trained: int, look: Look) -> Iterator[Figure]:
    rows: list[Row] = [
        {
            "contestant": one.name,
            "context": at.context,
            "perplexity": at.perplexity,
            "loss": at.loss,
            "tokens": at.tokens,
        }
        for one in contestants
        for at in one.contexts
    ]
    if not rows:
        return
    x = lengths_axis(rows, "tokens of context before the scored ones", "context")
    ticks = log_ticks([row["perplexity"] for row in rows])
    y = alt.Y("perplexity:Q", title="perplexity on the test split", scale=LOG, axis=alt.Axis(values=ticks))
    shown = tooltip("contestant", context=",d", perplexity=".2f", loss=".4f", tokens=",d")
    chart = lines_with_points(rows, look, x, y, shown)
    chart.layer.append(training_rule(trained))
    longest = max(row["context"] for row in rows)
    ends = sorted((row for row in rows if row["context"] == longest), key=lambda row: row["perplexity"])
    said = joined([f"{row['contestant']} {amount(row['perplexity'])}" for row in ends])
    says = sentences(
        f"The same tokens after more or less context: after {longest:,} tokens the perplexity is {said}.",
        trained_said(trained),
        gaps(contestants, names_in(rows)),
    )
    yield figure("beyond_context", "Perplexity after more context", says, chart, rows)


# What reading on costs.

READ = "tokens read in pieces"


def streamed(contestants: Sequence[Contestant], measurements: Measurements, look: Look) -> Iterator[Figure]:
    found = [
        (one.name, at)
        for one in contestants
        if one.name in measurements.contestants
        for at in measurements.contestants[one.name].streamed
    ]
    if not found:
        return
    held = [
        {
            "contestant": name,
            "length": at.length,
            "peak_bytes": at.peak_bytes,
            "process_peak_bytes": at.process_peak_bytes,
            "state_bytes": at.state_bytes,
            "tokens_per_second": at.tokens_per_second,
        }
        for name, at in found
    ]
    written = [{"contestant": name, "length": at.length, **per_token(at.decode_seconds, 1)} for name, at in found]
    missing = gaps(contestants, names_in(held))
    chart = peaks(held, look)
    yield figure(
        "inference_streamed_memory", "Memory while reading on", sentences(peaks_said(held), missing), chart, held
    )
    says = sentences("A long text is read in pieces, then tokens are written.", at_longest(written), missing)
    chart = timings(written, look, "milliseconds per token written").encode(x=lengths_axis(written, READ))
    yield figure("inference_streamed_decode", "Time to write a token after reading on", says, chart, written)


def peaks(rows: Sequence[Row], look: Look) -> alt.LayerChart:
    axis = alt.Axis(labelExpr=BYTES, values=log_ticks([max(1, row["peak_bytes"]) for row in rows]))
    y = alt.Y("peak_bytes:Q", title="most held beyond the weights", scale=LOG, axis=axis)
    shown = tooltip("contestant", length=",d", peak_bytes=",d", state_bytes=",d", tokens_per_second=",.0f")
    return lines_with_points(rows, look, lengths_axis(rows, READ), y, shown)


def peaks_said(rows: Sequence[Row]) -> str:
    """Each at its longest."""
    said = []
    for name in dict.fromkeys(row["contestant"] for row in rows):
        last = max((row for row in rows if row["contestant"] == name), key=lambda row: row["length"])
        said.append(f"{name} {in_bytes(last['peak_bytes'])} by {last['length']:,} tokens")
    return f"The most that was held at once beyond the weights: {joined(said)}."
