"""Figures as the page shows them: in their section, with their data as a table."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from lockstep.report.figure import Figure

PLACES = {
    "training_curves": "curves",
    "cooled_points": "cooled",
    "differences": "cooled",
    "perplexity_over_length": "context",
    "loss_by": "context",
    "task": "recall",
    "beyond": "recall",
    "commonsense": "commonsense",
    "inference": "inference",
    "batch_time": "inference",
    "pareto": "cost",
    "scaling": "cost",
    "where_time_goes": "time",
    "memory": "memory",
    "model_state": "pictures",
    "tuning": "tuning",
}
"""The section of every figure, by how its name begins."""
SHORT = 100
"""Letters of all titles together, up to which a choice is a row of buttons and not a list."""
MOST_ROWS = 200
"""Of a figure's data as a table on the page."""


class Drawing:
    """A figure with what the page adds to it."""

    def __init__(self, number: int, figure: Figure) -> None:
        self.figure = figure
        self.id = f"drawn-{number}"
        """Names may hold what a contestant is called, and so anything."""
        self.title, self.says, self.axes = figure.title, figure.says, figure.axes
        self.href = f"figures/{quote(figure.name, safe='')}"
        self.axis = figure.spec.get("encoding", {}).get("x", {}).get("field")
        self.room_for_all = sum(map(len, figure.axes.values())) <= SHORT
        """Whether all axes to choose among stand beside each other."""
        self.wide = _panels(figure) > 1

    @property
    def place(self) -> str:
        return next((place for start, place in PLACES.items() if self.figure.name.startswith(start)), "context")

    @property
    def table(self) -> dict[str, Any]:
        """Its rows for those who cannot see it: evenly thinned where there are many."""
        rows = self.figure.rows
        every = -(-len(rows) // MOST_ROWS) or 1
        head = list(dict.fromkeys(key for row in rows for key in row))
        note = f"Every {every}th of its {len(rows):,} rows; the CSV has them all." if every > 1 else ""
        cells = [
            {"contestant": row.get("contestant"), "cells": [_plain(row.get(key)) for key in head]}
            for row in rows[::every]
        ]
        return {"head": head, "rows": cells, "note": note}


def _panels(figure: Figure) -> int:
    facet = figure.spec.get("facet", {})
    field = facet.get("column", facet.get("row", facet)).get("field")
    return len({row.get(field) for row in figure.rows})


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, float):
        return {"text": f"{value:.6g}", "number": True}
    return {"text": "—" if value is None else str(value), "number": isinstance(value, int)}
