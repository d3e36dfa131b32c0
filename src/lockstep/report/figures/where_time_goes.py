"""Where the time goes, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import PAGE, ROWS, Row, figure, names_in, tooltip
from lockstep.report.figures.style import PARTS, Look
from lockstep.report.figures.words import gaps, sentences
from lockstep.report.results import Measurements, Results
from lockstep.report.wording import joined

WORK = {"training": "a step of training", "prefill": "reading a context", "decode": "writing a token"}


LATER = ("MLP", "head", "backward", "optimizer", "rest")
"""Parts that everybody has; what comes before them is the mixer's own."""


def time_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    parts = all_parts(measurements)
    rows = [
        {
            "contestant": one.name,
            "what": WORK[profile.what],
            "part": part,
            "order": parts.index(part),
            "milliseconds": 1000 * seconds,
            "share": seconds / (sum(profile.seconds.values()) or 1),
        }
        for one in results.contestants
        if one.name in measurements.contestants
        for profile in measurements.contestants[one.name].profiles
        for part, seconds in profile.seconds.items()
    ]
    if rows:
        says = sentences(largest(rows), gaps(results.contestants, names_in(rows)))
        yield figure("where_time_goes", "Where the time goes", says, bars(rows, parts, look), rows)


def all_parts(measurements: Measurements) -> list[str]:
    """In one order for everybody: mixers first."""
    profiles = [profile for one in measurements.contestants.values() for profile in one.profiles]
    parts = {part: None for profile in profiles for part in profile.seconds}
    return sorted(parts, key=lambda part: LATER.index(part) if part in LATER else -1)


def bars(rows: Sequence[Row], parts: Sequence[str], look: Look) -> alt.FacetChart:
    """Each kind of work has its own scale: a step of training and a token written have nothing to be compared by."""
    names = names_in(rows)
    colours = [PARTS[place % len(PARTS)] for place in range(len(parts))]
    kinds = [kind for kind in WORK.values() if any(row["what"] == kind for row in rows)]
    chart = (
        alt.Chart(ROWS)
        .mark_bar(height={"band": 0.72})
        .encode(
            x=alt.X("milliseconds:Q", title="milliseconds", axis=alt.Axis(tickCount=5, format=",.6~g")),
            y=alt.Y("contestant:N", sort=look.shown(names), title=None),
            color=alt.Color("part:N", sort=parts, scale=alt.Scale(domain=list(parts), range=colours), title=None),
            order=alt.Order("order:Q"),
            tooltip=tooltip("contestant", "what", "part", milliseconds=".4g", share=".1%"),
        )
        .properties(width=PAGE - 120, height=26 * len(names))
    )
    rows_of = alt.Row("what:N", sort=kinds, title=None, header=alt.Header(orient="top"))
    facets: alt.FacetChart = chart.facet(row=rows_of).resolve_scale(x="independent").properties(spacing=14)
    return facets


def largest(rows: Sequence[Row]) -> str:
    """Each one's largest part of the first kind of work that there is."""
    kind = rows[0]["what"]
    there = [row for row in rows if row["what"] == kind]
    said = []
    for name in {row["contestant"]: None for row in there}:
        most = max((row for row in there if row["contestant"] == name), key=lambda row: row["share"])
        said.append(f"{name} {most['part']} ({100 * most['share']:.0f} %)")
    return f"The largest part of {kind}: {joined(said)}."
