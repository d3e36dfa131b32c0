"""One dot per contestant, with its whisker and chance beside it, in a panel for each thing that was asked."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from lockstep.report.figures.drawing import ROWS, Row, names_in, panel_width
from lockstep.report.figures.style import GREY, Look

STEP = 26
"""Pixels from one contestant to the next."""
MOST_BESIDE = 2


def dots(
    rows: Sequence[Row], look: Look, x: alt.X, panel: str, panels: Sequence[str], shown: list[alt.Tooltip]
) -> alt.FacetChart:
    """Rows have low and high, and chance or None; `panel` is the field by which they are told apart."""
    names = names_in(rows)
    y = alt.Y("contestant:N", sort=look.shown(names), title=None)
    base = alt.Chart(ROWS).encode(y=y)
    colour, shape = look.color(names, legend=False), look.shape(names).legend(None)
    chart = alt.layer(
        base.mark_tick(thickness=2, size=STEP - 8, invalid="filter").encode(x="chance:Q", color=alt.value(GREY)),
        base.mark_rule(strokeWidth=2, invalid="filter").encode(x="low:Q", x2="high:Q", color=colour),
        base.mark_point(size=90).encode(x=x, color=colour, shape=shape, tooltip=shown),
    )
    beside = min(len(panels), MOST_BESIDE)
    drawn = chart.properties(width=panel_width(beside, gap=130, most=MOST_BESIDE), height=STEP * len(names))
    facets: alt.FacetChart = drawn.facet(
        facet=alt.Facet(f"{panel}:N", sort=list(panels), title=None), columns=beside, data=ROWS
    ).resolve_axis(x="independent")
    return facets
