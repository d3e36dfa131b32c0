"""How figures look, in one place: colours, dashes and shapes of contestants, and the theme.

A contestant has one colour in all figures, and a dash and a shape besides, for those who do not see colours and for
paper. Every colour has a contrast of 3 : 1 or more both to white and to near-black, and differs from the others in
the common kinds of colour blindness.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import altair as alt

from lockstep.report.results import Results

PALETTE = ("#1858f8", "#f86010", "#007868", "#b810b8", "#3098f8", "#b84018", "#68a070", "#b870b8")
DASHES = ((1, 0), (6, 2), (2, 2), (8, 2, 2, 2), (4, 3), (1, 2), (10, 3), (5, 2, 1, 2, 1, 2))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
PARTS = ("#5b7fb5", "#c9803b", "#6a9a5b", "#a8668f", "#4b9aa0", "#b5685c", "#8a8446", "#7a72b8", "#909090")
"""Of a whole that no contestant owns; muted, so that none is taken for a contestant."""
GREY = "#8a8a8a"
"""For what is not separable, and for all lines that carry no number."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

THEME: dict[str, Any] = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domainColor": GREY,
        "tickColor": GREY,
        "gridColor": GREY,
        "gridOpacity": 0.18,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelOverlap": True,
    },
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -8},
    "axisYBand": {"titleY": -8, "grid": False, "domain": False, "ticks": False, "labelFontSize": 12},
    "axisXBand": {"labelAngle": 0},
    "axisXPoint": {"labelAngle": 0},
    "legend": {"orient": "top", "title": None, "labelFontSize": 12, "labelLimit": 260, "symbolSize": 90, "offset": 26},
    "header": {"title": None, "labelFontSize": 12, "labelFontWeight": "bold", "labelAnchor": "start"},
    "title": {"fontSize": 13, "anchor": "start", "offset": 10},
    "line": {"strokeWidth": 2},
    "point": {"filled": True, "size": 55, "opacity": 1},
}
"""Of every figure. It names no colour of text: on the page that comes from CSS (`svg text {fill: currentColor}`)."""

INK = "#1f2328"
PRINT: dict[str, Any] = {
    "background": "#ffffff",
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "axis": {"labelColor": INK, "titleColor": INK},
    "legend": {"labelColor": INK, "titleColor": INK},
    "header": {"labelColor": INK, "titleColor": INK},
    "title": {"color": INK},
    "text": {"color": INK},
}
"""What the theme has besides where no CSS reaches: in PNG and SVG files."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """The first, with what the second says; neither changes."""
    both = base | over
    shared = {key for key in base.keys() & over.keys() if isinstance(base[key], dict) and isinstance(over[key], dict)}
    return both | {key: merged(base[key], over[key]) for key in shared}


class Look:
    """Which colour, dash and shape belongs to whom: by place among all contestants of the study."""

    def __init__(self, results: Results) -> None:
        self.places = {one.name: place for place, one in enumerate(results.contestants)}

    def shown(self, names: Collection[str]) -> list[str]:
        """Those among the study's contestants, in its order."""
        return [name for name in self.places if name in names]

    def tint(self, name: str) -> str:
        return PALETTE[self.places[name] % len(PALETTE)]

    def color(self, names: Collection[str], legend: bool = True) -> alt.Color:
        shown = self.shown(names)
        scale = alt.Scale(domain=shown, range=[self.tint(name) for name in shown])
        color = alt.Color("contestant:N", scale=scale, sort=shown, title=None)
        return color if legend else color.legend(None)

    def dash(self, names: Collection[str]) -> alt.StrokeDash:
        shown = self.shown(names)
        dashes = [list(self.own(DASHES, name)) for name in shown]
        return alt.StrokeDash("contestant:N", scale=alt.Scale(domain=shown, range=dashes), sort=shown, title=None)

    def unlisted_dash(self, names: Collection[str]) -> alt.StrokeDashValue:
        """Beside shapes: without a scale, since a legend would draw the outline of its shapes dashed."""
        own = [
            {"test": f"datum.contestant === {json.dumps(name)}", "value": list(self.own(DASHES, name))}
            for name in self.shown(names)
        ]
        return alt.StrokeDashValue(value=[1, 0], condition=own)

    def shape(self, names: Collection[str]) -> alt.Shape:
        shown = self.shown(names)
        shapes = [self.own(SHAPES, name) for name in shown]
        return alt.Shape("contestant:N", scale=alt.Scale(domain=shown, range=shapes), sort=shown, title=None)

    def own(self, kinds: Sequence[Any], name: str) -> Any:
        """With more contestants than colours, the second to have a colour has another dash and shape."""
        place = self.places[name]
        return kinds[(place + place // len(PALETTE)) % len(kinds)]


def ramp(count: int, first: str = "#2f7fd0", last: str = "#e0761b") -> list[str]:
    """Colours of things in an order, such as layers: from the first to the last in equal steps."""
    ends = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (first, last)]
    shares = [place / max(1, count - 1) for place in range(count)]
    mixed = [[round(a + (b - a) * share) for a, b in zip(*ends, strict=True)] for share in shares]
    return ["#" + "".join(f"{channel:02x}" for channel in colour) for colour in mixed]
