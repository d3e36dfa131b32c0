"""From a chart and its rows to a figure; and the pieces that many charts have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.style import GREY, THEME, Look

Row: TypeAlias = dict[str, Any]
Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

ROWS = alt.NamedData("rows")
"""Stands for a figure's rows in every part of its chart."""
HEIGHT = 300
PAGE = 680
"""Where panels stand side by side, the width of all of them: Vega-Lite cannot fit those to their container."""

CHOSEN = alt.selection_point(name="chosen", fields=["contestant"], bind="legend")
"""A click on a name in the legend leaves that contestant alone bright."""

BYTES = "datum.value >= 1 ? replace(format(datum.value, '.3~s'), 'k', 'K') + 'B' : ''"
"""The label of a number of bytes, such as 20MB."""


TOKENS = (
    "datum.value % 1048576 === 0 ? datum.value / 1048576 + 'M' : "
    "datum.value % 1024 === 0 ? datum.value / 1024 + 'K' : format(datum.value, ',d')"
)
"""The label of a length where there is little room, such as 4K."""


SHORT = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
"""The label of a number of any size, such as 0.8, 12 or 33M."""


def figure(
    name: str, title: str, says: str, chart: Chart, rows: Sequence[Row], axes: Mapping[str, str] | None = None
) -> Figure:
    """Its name can be that of a file. The rows lie at the top of the specification, once.

    Where x can be chosen, it is `encoding.x` at the top too, and layers inherit it.
    """
    spec = unnamed(chart.to_dict())
    spec.pop("datasets", None)
    if "'param': 'chosen'" in repr(spec):
        # By hand: Altair would give the view a number that counts all charts of the process.
        select = {"type": "point", "fields": ["contestant"]}
        first_view(spec)["params"] = [{"name": "chosen", "select": select, "bind": "legend"}]
    spec |= {"data": {"values": list(rows)}, "config": THEME}
    return Figure(re.sub(r"[^A-Za-z0-9._+@-]", "_", name), title, says, spec, dict(axes or {}))


def first_view(spec: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a layered chart belongs into one of its layers."""
    while "layer" in spec or "spec" in spec:
        spec = spec["layer"][0] if "layer" in spec else spec["spec"]
    return spec


def unnamed(spec: Any) -> Any:
    """Without the stand-in for the rows."""
    if isinstance(spec, dict):
        return {key: unnamed(value) for key, value in spec.items() if value != {"name": "rows"}}
    return [unnamed(value) for value in spec] if isinstance(spec, list) else spec


def brightness(faint: float = 0.12) -> Any:
    """Full, unless somebody else was chosen in the legend."""
    return alt.when(CHOSEN).then(alt.value(1)).otherwise(alt.value(faint))


def tooltip(*names: str, **formats: str) -> list[alt.Tooltip]:
    """What is shown of a row under the pointer: names as they are, numbers by their format."""
    plain = [alt.Tooltip(f"{name}:N") for name in names]
    return plain + [alt.Tooltip(f"{field}:Q", format=form) for field, form in formats.items()]


def log_ticks(numbers: Sequence[float]) -> list[float]:
    """Round numbers for a logarithmic axis: some six of them, whatever it spans."""
    low, high = min(numbers), max(numbers)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9):
        ticks = [float(f"{step}e{power}") for power in decades for step in steps]
        there = [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]
        if len(there) >= 4:
            return there
    # Numbers too close for round ones: four of three digits, evenly spaced.
    return sorted({float(f"{low + (high - low) * part / 3:.3g}") for part in range(4)})


def names_in(rows: Sequence[Row]) -> set[str]:
    return {row["contestant"] for row in rows}


def lengths_axis(rows: Sequence[Row], title: str, field: str = "length", short: bool = False) -> alt.X:
    """Lengths, each double the one before at equal distance; all that occur are labelled, if need be in short."""
    there = sorted({row[field] for row in rows if row[field] is not None})
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    axis = alt.Axis(values=there, labelExpr=TOKENS if short else "format(datum.value, ',d')", grid=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)


def lines_with_points(rows: Sequence[Row], look: Look, x: alt.X, y: alt.Y, shown: list[alt.Tooltip]) -> alt.LayerChart:
    """One line per contestant, with its shape at every number."""
    names = names_in(rows)
    base = alt.Chart(ROWS).encode(y=y)
    lines = base.mark_line().encode(strokeDash=look.unlisted_dash(names), opacity=brightness())
    points = base.mark_point().encode(shape=look.shape(names), opacity=brightness(), tooltip=shown)
    return alt.layer(lines, points).encode(x=x, color=look.color(names)).properties(width="container", height=HEIGHT)


def training_rule(length: int) -> alt.Chart:
    """A dashed line at the training length."""
    rule = alt.Chart(ROWS).mark_rule(color=GREY, strokeDash=[3, 3], strokeWidth=1).encode(x=alt.datum(length))
    coloured: alt.Chart = rule.encode(color=alt.value(GREY))
    return coloured


def panel_width(count: int, gap: int = 40, most: int = 3) -> int:
    """Of one of so many panels beside each other."""
    beside = min(count, most)
    return (PAGE - gap * (beside - 1)) // beside
