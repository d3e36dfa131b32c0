"""The picture of a benchmark: time and perplexity over the length, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import Row, figure, lengths_axis, lines_with_points, log_ticks, tooltip
from lockstep.report.figures.overviews import beside
from lockstep.report.figures.style import Look
from lockstep.report.files import pixels, put, vector

NAME = "benchmark_results"
FAR = 3
"""Times the least number."""
LENGTH = "sequence length, tokens"


class Lineup(Look):
    """Colours, dashes and shapes of models that no study has brought together, in the order in which they are named."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}


def write_picture(
    names: Sequence[str], times: Sequence[Row], scores: Sequence[Row], batch: int, folder: Path
) -> list[Path]:
    """PNG and SVG; a panel without rows is left out, and so is a picture without panels.

    times have contestant, length and milliseconds of a batch of so many sequences; scores have contestant, length and
    perplexity.
    """
    look = Lineup(names)
    sequences = "one sequence" if batch == 1 else f"a batch of {batch:,} sequences"
    panels = [
        panel(rows, look, field, title, words)
        for rows, field, title, words in (
            (times, "milliseconds", "Inference time", f"milliseconds to read {sequences}"),
            (scores, "perplexity", "Perplexity", "perplexity on the test split"),
        )
        if rows
    ]
    written: list[Path] = []
    if not panels:
        # An older picture would be of other numbers.
        for suffix in ("svg", "png"):
            (folder / f"{NAME}.{suffix}").unlink(missing_ok=True)
    else:
        svg = vector(beside(panels, columns=2))
        put(folder, Path(f"{NAME}.svg"), svg, written)
        put(folder, Path(f"{NAME}.png"), pixels(svg), written)
    return [folder / path for path in written]


def panel(rows: Sequence[Row], look: Look, field: str, title: str, words: str) -> Figure:
    """One line per model, from the least number to the greatest; logarithmic where they are far apart."""
    found = [row[field] for row in rows]
    if max(found) > FAR * min(found):
        scale, ticks = alt.Scale(type="log", nice=False, padding=12), log_ticks(found)
        y = alt.Y(f"{field}:Q", title=words, scale=scale, axis=alt.Axis(format=",.6~g", values=ticks))
    else:
        y = alt.Y(f"{field}:Q", title=words, scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(format=",.6~g"))
    shown = tooltip("contestant", length=",d", **{field: ".4g"})
    return figure(field, title, "", lines_with_points(rows, look, lengths_axis(rows, LENGTH), y, shown), rows)
