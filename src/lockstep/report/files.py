"""The figures as files: PNG, SVG and CSV of each, and the images and texts that the seed documents name."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from lockstep.durable import whole_file
from lockstep.report.figure import Figure
from lockstep.report.figures.overviews import overviews
from lockstep.report.figures.style import PRINT, THEME, merged
from lockstep.report.results import Measurements, Results

WIDTH = 680
"""Of a figure that fits its container where it stands alone."""
SCALE = 2
"""Pixels of a PNG per pixel of the figure."""
VEGA_LITE = "6.4"


def write_figures(figures: Sequence[Figure], results: Results, measurements: Measurements, folder: Path) -> list[Path]:
    """Everything under `folder`; the paths that were written, relative to it."""
    written: list[Path] = []
    for figure in figures:
        svg = vector(figure.spec | {"title": figure.title})
        png = pixels(svg)
        put(folder, Path("figures", f"{figure.name}.svg"), svg, written)
        put(folder, Path("figures", f"{figure.name}.png"), png, written)
        put(folder, Path("figures", f"{figure.name}.csv"), table(figure.rows), written)
        if figure.name.startswith("model_state-"):
            put(folder, Path("model_state", f"{figure.name.removeprefix('model_state-')}.png"), png, written)
    for name, spec in overviews(figures, results, measurements).items():
        put(folder, Path(f"{name}.png"), pixels(vector(spec)), written)
    samples = samples_text(results)
    if samples:
        put(folder, Path("generation_samples.txt"), samples, written)
    return written


def put(folder: Path, path: Path, content: str | bytes, written: list[Path]) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    whole_file(folder / path, content)
    written.append(path)


def vector(spec: dict[str, Any]) -> str:
    """As SVG, on white, with dark text."""
    fixed = spec | {"config": merged(merged(THEME, spec.get("config", {})), PRINT), "padding": 12}
    if fixed.get("width") == "container":
        fixed["width"] = WIDTH
    return renumbered(vl_convert.vegalite_to_svg(fixed, vl_version=VEGA_LITE))


def renumbered(svg: str) -> str:
    """Vega counts clips and gradients over the life of the process: here each picture starts from one."""
    numbers: dict[str, int] = {}

    def own(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{numbers.setdefault(match[0][len(match[1]) :], len(numbers) + 1)}"

    return re.sub(r'(id="|url\(#)(clip|gradient_)(\d+)', own, svg)


def pixels(svg: str) -> bytes:
    png: bytes = vl_convert.svg_to_png(svg, scale=SCALE)
    return png


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As CSV; what is not known is an empty cell."""
    columns = list({key: None for row in rows for key in row})
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def samples_text(results: Results) -> str:
    """What the models wrote, one after another; empty where none did."""
    parts = []
    for one in results.contestants:
        for sample in one.samples:
            numbers = [
                f"{name} {value:.3f}"
                for name, value in (("repetition", sample.repetition), ("entropy", sample.entropy))
                if value is not None
            ]
            head = "  ".join([f"=== {one.name}", *numbers])
            parts.append(f"{head}\nprompt: {spelled_out(sample.prompt)}\n{spelled_out(sample.text)}\n")
    return "\n".join(parts)


DIRECTIONS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def spelled_out(text: str) -> str:
    """Characters that would command a terminal, or turn what follows round, are spelled out: models write anything."""
    return "".join(character if harmless(character) else ascii(character)[1:-1] for character in text)


def harmless(character: str) -> bool:
    return character in "\n\t" or (unicodedata.category(character) not in ("Cc", "Cs") and character not in DIRECTIONS)
