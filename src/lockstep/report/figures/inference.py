"""What reading and writing costs, over the length of the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
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
)
from lockstep.report.figures.style import Look
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.results import Measurements, Results, Spread
from lockstep.report.wording import joined
from lockstep.tables import in_bytes

CONTEXT = "tokens of context"


def inference_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    timed = {one.name: measurements.contestants.get(one.name) for one in results.contestants}
    read = [
        {"contestant": name, "length": at.length, **per_token(at.prefill_seconds, at.length)}
        for name, one in timed.items()
        for at in (one.inference if one else ())
    ]
    written = [
        {"contestant": name, "length": at.length, **per_token(at.decode_seconds, 1)}
        for name, one in timed.items()
        for at in (one.inference if one else ())
    ]
    titles = {
        "inference_prefill": ("Time to read a context", "milliseconds per token of the context"),
        "inference_decode": ("Time to write a token", "milliseconds per token written"),
    }
    for rows, (name, (title, y)) in zip((read, written), titles.items(), strict=True):
        if rows:
            says = sentences(at_longest(rows), gaps(results.contestants, names_in(rows)))
            yield figure(name, title, says, timings(rows, look, y), rows)
    yield from memory_figures(results, measurements, look)
    yield from batch_figures(results, measurements, look)


def per_token(seconds: Spread, tokens: int) -> Row:
    """Milliseconds: the median, and what 5 % lie below and above."""
    ends = (seconds.median, seconds.low, seconds.high)
    median, low, high = (1000 * end / tokens for end in ends)
    return {"milliseconds": median, "low": low, "high": high, "measurements": seconds.count}


def timings(rows: Sequence[Row], look: Look, title: str, field: str = "milliseconds") -> alt.LayerChart:
    """Medians as lines; the band is where nine measurements of ten lie."""
    scale = alt.Scale(type="log", nice=False, padding=12)
    y = alt.Y(
        f"{field}:Q",
        title=title,
        scale=scale,
        axis=alt.Axis(format=",.6~g", values=log_ticks([row[field] for row in rows])),
    )
    shown = tooltip("contestant", length=",d", **dict.fromkeys((field, "low", "high"), ".4g"), measurements=",d")
    chart = lines_with_points(rows, look, lengths_axis(rows, CONTEXT), y, shown)
    band = alt.Chart(ROWS).mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    chart.layer.append(band.encode(opacity=brightness()))
    return chart


def at_longest(rows: Sequence[Row]) -> str:
    """The medians at the longest context that all have been measured at, fastest first."""
    names = names_in(rows)
    shared = [length for length in {row["length"] for row in rows} if names_at(rows, length) == names]
    if not shared:
        return ""
    there = sorted((row for row in rows if row["length"] == max(shared)), key=lambda row: row["milliseconds"])
    said = [f"{row['contestant']} takes {amount(row['milliseconds'])} ms" for row in there]
    return f"At {max(shared):,} tokens of context {joined(said)} per token. Bands hold 90 % of the measurements."


def names_at(rows: Sequence[Row], length: int) -> set[str]:
    return names_in([row for row in rows if row["length"] == length])


# Bytes.

HELD = {
    "state_bytes": "state carried on",
    "decode_peak_bytes": "most held while writing",
    "prefill_peak_bytes": "most held while reading",
}


def memory_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    rows = [
        {"contestant": one.name, "length": at.length, "what": title, "bytes": getattr(at, field)}
        for one in results.contestants
        if one.name in measurements.contestants
        for field, title in HELD.items()
        for at in measurements.contestants[one.name].inference
        if getattr(at, field) is not None
    ]
    if not rows:
        return
    state = [row for row in rows if row["what"] == HELD["state_bytes"]]
    longest = max(row["length"] for row in state)
    at_end = sorted((row for row in state if row["length"] == longest), key=lambda row: row["bytes"])
    said = joined([f"{row['contestant']} {in_bytes(row['bytes'])}" for row in at_end])
    says = f"After {longest:,} tokens the state of one sequence is {said}. Peaks are beyond the weights."
    says = sentences(says, gaps(results.contestants, names_in(rows)))
    yield figure("inference_memory", "Memory of one sequence", says, held(rows, look), rows)


def held(rows: Sequence[Row], look: Look) -> alt.FacetChart:
    kinds = [title for title in HELD.values() if any(row["what"] == title for row in rows)]
    x = lengths_axis(rows, CONTEXT)
    axis = alt.Axis(labelExpr=BYTES, values=log_ticks([max(1, row["bytes"]) for row in rows]))
    y = alt.Y("bytes:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=12), axis=axis)
    shown = tooltip("contestant", "what", length=",d", bytes=",d")
    chart = lines_with_points(rows, look, x, y, shown).properties(width=panel_width(len(kinds)), height=HEIGHT - 60)
    return chart.facet(column=alt.Column("what:N", sort=kinds, title=None), data=ROWS)


# Seed 003's measure.


def batch_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    rows: list[Row] = [
        {
            "contestant": one.name,
            "length": at.length,
            "batch": at.batch,
            "seconds": at.seconds.median,
            "low": at.seconds.low,
            "high": at.seconds.high,
            "measurements": at.seconds.count,
        }
        for one in results.contestants
        if one.name in measurements.contestants
        for at in measurements.contestants[one.name].batches
    ]
    if not rows:
        return
    longest = max(row["length"] for row in rows)
    there = sorted((row for row in rows if row["length"] == longest), key=lambda row: row["seconds"])
    said = joined([f"{row['contestant']} {amount(row['seconds'])} s" for row in there])
    sizes = joined([f"{size:,}" for size in sorted({row["batch"] for row in rows})])
    says = f"A batch of {sizes} sequences of {longest:,} tokens is read in: {said}."
    says = sentences(says, gaps(results.contestants, names_in(rows)))
    chart = timings(rows, look, f"seconds per batch of {sizes} sequences", "seconds")
    x = lengths_axis(rows, "sequence length, tokens")
    yield figure("batch_time", "Time to read a batch", says, chart.encode(x=x), rows)
