"""The sweep: what each contestant's learning rate was chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, Row, brightness, figure, names_in, tooltip
from lockstep.report.figures.style import GREY, Look
from lockstep.report.figures.words import amount, sentences
from lockstep.report.results import Results, Sweep
from lockstep.report.wording import joined
from lockstep.tables import in_short


def tuning_figures(results: Results, look: Look) -> Iterator[Figure]:
    field = axis_field(results.sweeps)
    if field is None:
        return
    rows = [row for sweep in results.sweeps for row in trial_rows(sweep, field)]
    drawn = [row for row in rows if row["loss"] is not None]
    if drawn:
        says = sentences(*(sweep_said(sweep, field) for sweep in results.sweeps), spent(results.sweeps))
        chart = sweep_chart(drawn, look, words(field))
        yield figure("tuning_sweep", "The sweep each contestant was tuned with", says, chart, rows)


def axis_field(sweeps: Sequence[Sweep]) -> str | None:
    """The learning rate, or whatever else was tuned first."""
    fields = [field for sweep in sweeps for trial in sweep.trials for field in trial.settings]
    return next((field for field in fields if field.endswith("learning_rate")), fields[0] if fields else None)


def words(field: str) -> str:
    return field.rpartition(".")[2].replace("_", " ")


def trial_rows(sweep: Sweep, field: str) -> Iterator[Row]:
    """One row per trial; those that diverged have no loss."""
    for place, trial in enumerate(sweep.trials):
        others = {words(name): value for name, value in trial.settings.items() if name != field}
        chosen = place == sweep.best
        yield {
            "contestant": sweep.contestant,
            "value": trial.settings.get(field),
            "others": ", ".join(f"{name} {value:g}" for name, value in others.items()),
            "loss": trial.loss,
            "status": trial.status,
            "chosen": chosen,
            "at_edge": chosen and bool(sweep.at_edge),
        }


def sweep_chart(rows: Sequence[Row], look: Look, title: str) -> alt.LayerChart:
    names = names_in(rows)
    there = sorted({row["value"] for row in rows if row["value"] is not None})
    scale = alt.Scale(type="log" if there and there[0] > 0 else "linear", nice=False, padding=16)
    x = alt.X("value:Q", title=title, scale=scale, axis=alt.Axis(values=there, format="~g", grid=False))
    title = "validation loss at the trial's end, nats per token"
    heights = alt.Scale(zero=False, padding=8)
    y = alt.Y("loss:Q", title=title, scale=heights)
    base = alt.Chart(ROWS).transform_filter("datum.loss != null").encode(opacity=brightness())
    best = alt.Y("min(loss):Q", title=title, scale=heights)
    lines = base.mark_line(strokeWidth=1.5).encode(y=best, strokeDash=look.unlisted_dash(names))
    shown = tooltip("contestant", "others", value="~g", loss=".4f")
    points = base.mark_point(size=45).encode(y=y, shape=look.shape(names), tooltip=shown)
    rings = (
        base.transform_filter("datum.chosen")
        .mark_point(shape="circle", filled=False, size=260, strokeWidth=2)
        .encode(y=y)
    )
    edges = (
        base.transform_filter("datum.at_edge")
        .mark_text(dy=-16, fontSize=11)
        .encode(y=y, text=alt.value("at the edge"), color=alt.value(GREY))
    )
    chart = alt.layer(lines, points, rings, edges).encode(x=x, color=look.color(names))
    return chart.properties(width="container", height=HEIGHT)


def sweep_said(sweep: Sweep, field: str) -> str:
    lost = [
        f"{trial.settings[field]:g}" for trial in sweep.trials if trial.status == "diverged" and field in trial.settings
    ]
    said = f"{sweep.contestant}: "
    if sweep.best is None:
        said += "nothing chosen yet"
    else:
        best = sweep.trials[sweep.best]
        said += f"{words(field)} {best.settings.get(field, float('nan')):g}"
        said += f", loss {amount(best.loss)}" if best.loss is not None else ""
    said += ", at the edge of the grid and therefore provisional" if sweep.at_edge else ""
    return f"{said}{f'; diverged at {joined(lost)}' if lost else ''}."


def spent(sweeps: Sequence[Sweep]) -> str:
    budgets = sorted({(len(sweep.trials), sweep.tokens) for sweep in sweeps})
    said = joined([f"{trials} trials and {in_short(tokens)} tokens" for trials, tokens in budgets])
    return f"Rings mark what was chosen. Each had {said}."
