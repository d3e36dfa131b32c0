"""What a figure is, wherever it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One picture: interactive on the page, and a PNG, an SVG and a CSV beside it."""

    name: str
    """The stem of its files."""
    title: str
    says: str
    """What it shows, in a sentence or two with its numbers: the caption, and what a screen reader says."""
    spec: dict[str, Any]
    """Vega-Lite, with its rows inline under data.values; `contestant` names whose a row is."""
    axes: dict[str, str] = field(default_factory=dict)
    """Fields of the rows among which a reader may choose the x-axis, each with its title; empty where it is fixed."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.spec["data"]["values"]
        return rows
