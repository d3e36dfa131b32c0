"""The images that the seed documents name: panels side by side, for paper only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import (
    BYTES,
    ROWS,
    Chart,
    Row,
    figure,
    lengths_axis,
    lines_with_points,
    log_ticks,
    names_in,
    panel_width,
    tooltip,
)
from lockstep.report.figures.style import GREY, THEME, Look
from lockstep.report.figures.tracks import tracks
from lockstep.report.figures.training import curves, thinned
from lockstep.report.outcome import common_length, inference_at
from lockstep.report.results import Contestant, Inference, Measurements, Results

Spec: TypeAlias = dict[str, Any]

OWN = ("color", "shape", "strokeDash", "strokeOpacity", "strokeWidth")
WIDTH, HEIGHT = 400, 280
"""Of one panel."""


def overviews(figures: Sequence[Figure], results: Results, measurements: Measurements) -> dict[str, Spec]:
    """By the stem of the file; an image without panels is left out."""
    look = Look(results)
    drawn = {figure.name: figure for figure in figures}
    holders = any(one.memory for one in results.contestants)
    memory = ("memory_utilisation", "memory_retrieval", "memory_update")
    images = {
        "training_comparison": list(training_panels(results, look)),
        "inference_comparison": chosen(drawn, "inference_decode", "inference_memory"),
        "comparative_metrics": list(change_panels(results, measurements, look)),
        "memory_efficiency": [*state_panels(results, look), *chosen(drawn, *memory)] if holders else [],
        "benchmark_results": chosen(drawn, "batch_time", "perplexity_over_length"),
    }
    return {name: beside(panels, 2 if name == "memory_efficiency" else 4) for name, panels in images.items() if panels}


def chosen(drawn: dict[str, Figure], *names: str) -> list[Figure]:
    return [drawn[name] for name in names if name in drawn]


def beside(panels: Sequence[Figure], columns: int) -> Spec:
    """Panels with titles; a legend of its own for each, since layers differ from contestants."""
    return {
        "concat": [titled(panel) for panel in panels],
        "columns": columns,
        "spacing": 48,
        "resolve": {"scale": dict.fromkeys(OWN, "independent")},
        "config": THEME,
    }


def titled(panel: Figure) -> Spec:
    """Without what belongs to a whole figure or to the page alone, such as the choice in the legend."""
    spec = {key: value for key, value in panel.spec.items() if key not in ("$schema", "config")}
    if spec.get("width") == "container":
        spec |= {"width": WIDTH, "height": HEIGHT}
    plain: Spec = without_choice(spec)
    return plain | {"title": panel.title}


def without_choice(spec: Any) -> Any:
    """A selection may occur once in an image; on paper nobody clicks."""
    if isinstance(spec, list):
        return [without_choice(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    kept = {key: without_choice(part) for key, part in spec.items() if key != "params"}
    if "'param': 'chosen'" in repr(kept.get("opacity")):
        del kept["opacity"]
    return kept


# Training.


def training_panels(results: Results, look: Look) -> Iterator[Figure]:
    """Loss, perplexity and accuracy of the first track, against the step."""
    ours = next(tracks(results)).contestants
    losses = [row for one in ours for row in step_rows(one)]
    if not losses:
        return
    yield figure("loss", "Loss", "", curves(losses, look, "step", "step"), losses)
    scores = [row for row in losses if row["split"] == "validation"]
    for field, title, form in (
        ("perplexity", "Validation perplexity", "~s"),
        ("accuracy", "Validation accuracy", ".0%"),
    ):
        if scores:
            yield figure(field, title, "", score_curves(scores, look, field, form), scores)


def step_rows(one: Contestant) -> Iterator[Row]:
    for run in one.runs:
        about = {"contestant": one.name, "seed": run.data_seed}
        for point in thinned(run.curve, 100):
            yield {**about, "split": "training", "step": point.step, "tokens": point.tokens, "loss": point.loss}
        for at in run.evaluated:
            score = {"loss": at.score.loss, "perplexity": at.score.perplexity, "accuracy": at.score.accuracy}
            yield {**about, "split": "validation", "step": at.step, "tokens": at.tokens, **score}


def score_curves(rows: Sequence[Row], look: Look, field: str, form: str) -> alt.Chart:
    names = names_in(rows)
    kind = alt.Scale(type="log", nice=False) if field == "perplexity" else alt.Scale(zero=False)
    chart: alt.Chart = (
        alt.Chart(ROWS)
        .mark_line()
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, format=",d", tickCount=6)),
            y=alt.Y(f"{field}:Q", title=field, scale=kind, axis=alt.Axis(format=form)),
            color=look.color(names),
            strokeDash=look.dash(names),
            detail="seed:N",
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


# Changes against the baseline.


def change_panels(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    """Of everybody in the baseline's group; a panel for each kind of number that both have."""
    baseline = next((one for one in results.contestants if one.name == results.study.baseline), None)
    if baseline is None:
        return  # it has not begun
    group = [one for one in results.contestants if one.group == baseline.group]
    length = common_length(measurements, group)
    after = "" if length is None else f" after {length:,} tokens"
    for title, unit, good, changes in (
        ("Perplexity", "%", "left", quality_changes(results, group, "perplexity")),
        ("Accuracy", "percentage points", "right", quality_changes(results, group, "accuracy")),
        (
            f"Time to write a token{after}",
            "%",
            "left",
            cost_changes(group, measurements, baseline.name, length, written),
        ),
        (f"Memory while writing{after}", "%", "left", cost_changes(group, measurements, baseline.name, length, held)),
    ):
        rows = [{"contestant": name, "change": change} for name, change in changes.items()]
        if rows:
            said = f"change from {baseline.name}, {unit} ({good} is better)"
            yield figure(title, title, "", change_bars(rows, look, said), rows)


def quality_changes(results: Results, group: Sequence[Contestant], metric: str) -> dict[str, float]:
    """From the comparisons at the end: perplexity in percent of the baseline's, accuracy in points."""
    baseline = results.study.baseline
    found = {}
    for one in group:
        for pair in results.comparisons:
            if pair.share == 1 and pair.metric == metric and {pair.contestant, pair.baseline} == {one.name, baseline}:
                turned = pair.contestant != one.name
                effect = -pair.effect if turned else pair.effect
                mean = pair.baseline_mean + pair.effect if turned else pair.baseline_mean
                found[one.name] = 100 * effect if metric == "accuracy" else 100 * effect / mean
    return found


def written(at: Inference) -> float | None:
    return at.decode_seconds.median


def held(at: Inference) -> float | None:
    return at.decode_peak_bytes


def cost_changes(
    group: Sequence[Contestant],
    measurements: Measurements,
    baseline: str,
    length: int | None,
    read: Callable[[Inference], float | None],
) -> dict[str, float]:
    """In percent, after the longest context that all were measured at, as in the table."""
    costs = {}
    for one in group:
        at = inference_at(measurements.contestants.get(one.name), length)
        cost = read(at) if at else None
        if cost is not None:
            costs[one.name] = cost
    base = costs.pop(baseline, None)
    return {name: 100 * (cost / base - 1) for name, cost in costs.items()} if base else {}


def change_bars(rows: Sequence[Row], look: Look, title: str) -> Chart:
    names = names_in(rows)
    y = alt.Y("contestant:N", sort=look.shown(names), title=None)
    scale = alt.Scale(padding=44)
    base = alt.Chart(ROWS).encode(x=alt.X("change:Q", title=title, axis=alt.Axis(tickCount=4), scale=scale), y=y)
    bars = base.mark_bar(height={"band": 0.6}).encode(color=look.color(names, legend=False))
    zero = alt.Chart(ROWS).mark_rule(color=GREY).encode(x=alt.datum(0))
    text = alt.Text("change:Q", format="+,.1f")
    right = base.transform_filter("datum.change >= 0").mark_text(align="left", dx=4).encode(text=text)
    left = base.transform_filter("datum.change < 0").mark_text(align="right", dx=-4).encode(text=text)
    return alt.layer(bars, zero, right, left).properties(width=panel_width(3) + 20, height=34 * len(names) + 10)


# Memory usage.


def state_panels(results: Results, look: Look) -> Iterator[Figure]:
    """What a sequence has to carry on, over its length: computed, so that everybody has it."""
    rows: list[Row] = [
        {"contestant": one.name, "length": length, "bytes": size}
        for one in results.contestants
        for length, size in one.state_bytes.items()
        if size > 0
    ]
    if rows:
        scale, ticks = alt.Scale(type="log", nice=False, padding=12), log_ticks([row["bytes"] for row in rows])
        y = alt.Y("bytes:Q", title="bytes per sequence", scale=scale, axis=alt.Axis(labelExpr=BYTES, values=ticks))
        x = lengths_axis(rows, "tokens read")
        yield figure("state", "Memory usage", "", lines_with_points(rows, look, x, y, tooltip("contestant")), rows)
