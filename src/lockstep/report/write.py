"""All files of a report."""

from __future__ import annotations

from pathlib import Path

from lockstep.durable import whole_file
from lockstep.report.figures import figures
from lockstep.report.files import write_figures
from lockstep.report.page import render_page
from lockstep.report.results import Measurements, Results
from lockstep.report.summary import summary

PAGE, SUMMARY = "report.html", "summary.md"


def write_report(results: Results, measured: Measurements, folder: Path) -> Path:
    """report.html, summary.md, figures and their data; the page comes last, when all it links to is there."""
    write_figures(figures(results, measured), results, measured, folder)
    whole_file(folder / SUMMARY, summary(results, measured))
    whole_file(folder / PAGE, render_page(results, measured))
    return folder / PAGE
