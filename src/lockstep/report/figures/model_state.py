"""Heat maps of what a model attends to, what its memory changed, and what its output depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import ROWS, Row, figure, panel_width, tooltip
from lockstep.report.figures.words import plural, sentences
from lockstep.report.results import Contestant, Picture, Results

MOST_CELLS = 32
"""Along one side; larger pictures are averaged down."""
MOST_LAYERS = 4
LETTER = 5
"""Pixels that a letter of a title takes, about."""

MEANING = {
    "attention": "how much weight a row gives to a column",
    "memory": "how far each weight of the memory moved while the text was read",
    "influence": "how much the output at a row changes when the token at a column is another one",
}


def state_figures(results: Results) -> Iterator[Figure]:
    """Numbered by contestant: names may be alike once they are those of files."""
    for number, one in enumerate(results.contestants, start=1):
        for kind in MEANING:
            pictures = [picture for picture in one.pictures if picture.kind == kind and any(picture.values)]
            if pictures:
                yield heat_maps(one, number, kind, pictures)


def heat_maps(one: Contestant, number: int, kind: str, pictures: Sequence[Picture]) -> Figure:
    chosen = spread_out(pictures)
    labels = [picture.layer or "whole model" for picture in chosen]
    shrunk = [cells(picture.values) for picture in chosen]
    rows: list[Row] = [
        {"contestant": one.name, "panel": label, "row": down, "column": across, "value": value}
        for label, values in zip(labels, shrunk, strict=True)
        for down, line in enumerate(values)
        for across, value in enumerate(line)
    ]
    first = chosen[0]
    size = (len(first.values), len(first.values[0]))
    says = sentences(
        f"{one.name}: {MEANING[kind]}; rows are {first.rows}, columns {first.columns}.",
        f"{len(chosen)} of {plural(len(pictures), 'layer')} shown." if len(chosen) < len(pictures) else "",
        f"{size[0]} × {size[1]} cells, averaged down." if max(size) > MOST_CELLS else "",
    )
    chart = maps(first, labels, (len(shrunk[0]), len(shrunk[0][0])))
    return figure(f"model_state-{number}-{one.name}-{kind}", f"{one.name}: {first.title}", says, chart, rows)


def spread_out(pictures: Sequence[Picture]) -> list[Picture]:
    """The first, the last, and some between them."""
    if len(pictures) <= MOST_LAYERS:
        return list(pictures)
    return [pictures[round(place * (len(pictures) - 1) / (MOST_LAYERS - 1))] for place in range(MOST_LAYERS)]


def cells(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Blocks of equal size averaged, so that no side has more than MOST_CELLS."""
    high, wide = len(values), len(values[0])
    tall, broad = -(-high // MOST_CELLS), -(-wide // MOST_CELLS)
    return [
        [mean([line[x : x + broad] for line in values[y : y + tall]]) for x in range(0, wide, broad)]
        for y in range(0, high, tall)
    ]


def mean(block: Sequence[Sequence[float]]) -> float:
    numbers = [number for line in block for number in line]
    return sum(numbers) / len(numbers)


def axis_title(picture: Picture, width: int) -> str:
    """What rows and columns are, where there is room for it; the caption says it in full."""
    title = f"→ {picture.columns}, ↓ {picture.rows}"
    return title if LETTER * len(title) <= width else "→ columns, ↓ rows"


def maps(picture: Picture, labels: Sequence[str], shape: tuple[int, int]) -> alt.FacetChart:
    """The square root of the value is coloured: small weights are to be seen beside large ones."""
    side = min(280, panel_width(len(labels), most=MOST_LAYERS))
    # Cells of whole pixels: no seams between them.
    high, wide = (size * max(1, side // size) for size in shape)
    scale = alt.Scale(scheme="viridis", type="sqrt")
    legend = alt.Legend(orient="bottom", direction="horizontal", gradientLength=wide, format=".2~g", title=None)
    bare = alt.Axis(labels=False, ticks=False, domain=False, grid=False)
    chart = (
        alt.Chart(ROWS)
        .mark_rect()
        .encode(
            x=alt.X("column:O", title=axis_title(picture, wide), axis=bare),
            y=alt.Y("row:O", title=None, axis=bare),
            color=alt.Color("value:Q", scale=scale, legend=legend),
            tooltip=tooltip("panel", "row", "column", value=".4g"),
        )
        .properties(width=wide, height=high)
    )
    facets: alt.FacetChart = chart.facet(column=alt.Column("panel:N", sort=list(labels), title=None))
    return facets
