"""Loss over size, where an architecture was trained at several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, Row, figure, tooltip
from lockstep.report.figures.style import DASHES, PALETTE, SHAPES
from lockstep.report.figures.words import amount
from lockstep.report.results import Fit, Results

POINTS = 24
"""Of a fitted line."""


def scaling_figures(results: Results) -> Iterator[Figure]:
    rows = [row for fit in results.fits for row in fit_rows(fit)]
    if rows:
        says = " ".join(formula(fit) for fit in results.fits)
        yield figure("scaling", "Loss over size", says, scaling_chart(rows), rows)


def fit_rows(fit: Fit) -> Iterator[Row]:
    """What was measured, then the fitted line between the smallest and the largest."""
    for size, loss in zip(fit.parameters, fit.losses, strict=True):
        yield {"contestant": fit.architecture, "what": "measured", "parameters": size, "loss": loss}
    first, last = math.log(min(fit.parameters)), math.log(max(fit.parameters))
    for place in range(POINTS):
        between = math.exp(first + (last - first) * place / (POINTS - 1))
        loss = (fit.floor or 0.0) + fit.scale * between**-fit.exponent
        yield {"contestant": fit.architecture, "what": "fitted", "parameters": between, "loss": loss}


def scaling_chart(rows: Sequence[Row]) -> alt.LayerChart:
    """Coloured by architecture: a fit is no contestant of its own."""
    names = list({row["contestant"]: None for row in rows})
    tints, shapes = (alt.Scale(domain=names, range=list(kinds)) for kinds in (PALETTE, SHAPES))
    dashes = alt.Scale(domain=names, range=[list(dash) for dash in DASHES])
    log = alt.Scale(type="log", nice=False, padding=16)
    base = alt.Chart(ROWS).encode(y=alt.Y("loss:Q", title="loss on the test split, nats per token", scale=log))
    lines = base.transform_filter("datum.what == 'fitted'").mark_line()
    points = base.transform_filter("datum.what == 'measured'").mark_point(size=80)
    chart = alt.layer(
        lines.encode(strokeDash=alt.StrokeDash("contestant:N", scale=dashes, title=None)),
        points.encode(
            shape=alt.Shape("contestant:N", scale=shapes, title=None),
            tooltip=tooltip("contestant", "what", parameters=",d", loss=".4f"),
        ),
    )
    x = alt.X("parameters:Q", title="parameters", scale=log, axis=alt.Axis(format="~s"))
    colour = alt.Color("contestant:N", scale=tints, sort=names, title=None)
    return chart.encode(x=x, color=colour).properties(width="container", height=HEIGHT)


def formula(fit: Fit) -> str:
    floor = "" if fit.floor is None else f"{amount(fit.floor)} + "
    return f"{fit.architecture}: loss = {floor}{amount(fit.scale)} × parameters^-{amount(fit.exponent)}."
