"""Dynamics: loss as training goes on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, SHORT, Chart, Row, brightness, figure, names_in, tooltip
from lockstep.report.figures.style import Look
from lockstep.report.figures.tracks import tracks
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.results import Clock, Contestant, CurvePoint, Measurements, Results, Run
from lockstep.report.wording import joined
from lockstep.tables import in_short

MOST_POINTS = 100
"""Of one run's training loss; where there are more, neighbours are averaged."""
SKIPPED = 0.05
"""The share of the tokens whose losses may lie above the picture."""
AXES = {
    "tokens": "tokens trained on",
    "flops": "training FLOPs",
    "seconds": "training time, seconds",
    "joules": "energy, joules",
}


def training_figures(results: Results, measurements: Measurements, look: Look) -> Iterator[Figure]:
    for track in tracks(results):
        rows = [row for one in track.contestants for row in curve_rows(one, measurements)]
        if not rows:
            continue
        axes = {field: title for field, title in AXES.items() if any(row[field] is not None for row in rows)}
        chart = curves(rows, look, *next(iter(axes.items())))
        says = sentences(
            last_losses(track.contestants),
            "Faint: training loss; strong: validation loss; one line per seed; the first steps lie above the picture; "
            "a cross is where a run diverged. "
            "At the trunk's learning rate these show dynamics; what is compared are the cooled points.",
            gaps(track.contestants, names_in(rows)),
        )
        yield figure(f"training_curves{track.suffix}", f"Loss during training{track.words}", says, chart, rows, axes)


def curve_rows(one: Contestant, measurements: Measurements) -> Iterator[Row]:
    """Every point of every run, on all axes."""
    timed = measurements.contestants.get(one.name)
    clocks = {clock.data_seed: clock for clock in timed.clocks} if timed else {}
    for run in one.runs:
        points = [("training", at.step, at.tokens, at.loss) for at in thinned(run.curve, MOST_POINTS)]
        points += [("validation", at.step, at.tokens, at.score.loss) for at in run.evaluated]
        for split, step, tokens, loss in points:
            if tokens > 0:
                seconds, joules = reading(clocks.get(run.data_seed), step)
                flops = tokens * one.training_flops_per_token
                at = {"step": step, "tokens": tokens, "flops": flops, "seconds": seconds, "joules": joules}
                last = run.status == "diverged" and (split, step) == ("training", run.curve[-1].step)
                about = {"contestant": one.name, "seed": run.data_seed, "split": split}
                yield {**about, **at, "loss": loss, "diverged": last}


def thinned(curve: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    """At most so many points: each the mean over the steps since the one before, as it was."""
    size = -(-len(curve) // most)
    if size <= 1:
        return list(curve)
    kept, before = [], 0
    for start in range(0, len(curve), size):
        group = curve[start : start + size]
        steps = [after.step - first for first, after in zip([before, *(at.step for at in group)], group, strict=False)]
        loss = sum(at.loss * count for at, count in zip(group, steps, strict=True)) / sum(steps)
        kept.append(group[-1].model_copy(update={"loss": loss, "bits_per_byte": None}))
        before = group[-1].step
    return kept


def reading(clock: Clock | None, step: int) -> tuple[float | None, float | None]:
    """Seconds and joules at a step, between the ticks around it in proportion; nothing beyond the last tick."""
    if clock is None or not clock.ticks or step > clock.ticks[-1].step:
        return None, None
    place = bisect_left([tick.step for tick in clock.ticks], step)
    after = clock.ticks[place]
    if after.step == step:
        return after.seconds, after.joules
    before = clock.ticks[place - 1] if place else None
    start, seconds, joules = (before.step, before.seconds, before.joules) if before else (0, 0.0, 0.0)
    share = (step - start) / (after.step - start)
    energy = None if joules is None or after.joules is None else joules + share * (after.joules - joules)
    return seconds + share * (after.seconds - seconds), energy


def curves(rows: Sequence[Row], look: Look, x: str, title: str) -> Chart:
    """A cross stands where a run diverged, at the upper edge if its loss was beyond."""
    names, (low, high) = names_in(rows), heights(rows)
    splits = alt.Scale(domain=["validation", "training"], range=[1, 0.3])
    widths = alt.Scale(domain=["validation", "training"], range=[1.8, 1])
    scale = alt.Scale(zero=False, domain=[low, high], nice=False)
    words = "loss, nats per token"
    dash = alt.condition("datum.split == 'validation'", look.dash(names), alt.value([1, 0]))
    base = alt.Chart(ROWS)
    lines = base.mark_line(invalid="filter", clip=True).encode(
        y=alt.Y("loss:Q", title=words, scale=scale),
        strokeDash=dash,
        strokeOpacity=alt.StrokeOpacity("split:N", scale=splits, title=None),
        strokeWidth=alt.StrokeWidth("split:N", scale=widths, title=None),
        detail=["seed:N", "split:N"],
        opacity=brightness(),
        tooltip=tooltip("contestant", "seed", "split", step=",d", tokens=",d", loss=".4f"),
    )
    lost = base.transform_filter("datum.diverged").transform_calculate(at=f"min(datum.loss, {high})")
    crosses = lost.mark_point(shape="cross", angle=45, size=160, invalid="filter").encode(
        y=alt.Y("at:Q", title=words, scale=scale),
        opacity=brightness(),
        tooltip=tooltip("contestant", "seed", step=",d", loss=".4f"),
    )
    axis = alt.Axis(labelExpr=SHORT, grid=False, tickCount=6)
    across = alt.X(f"{x}:Q", title=title, scale=alt.Scale(nice=False, zero=True), axis=axis)
    layers = alt.layer(lines, crosses).encode(x=across, color=look.color(names))
    return layers.properties(width="container", height=HEIGHT + 40)


def heights(rows: Sequence[Row]) -> list[float]:
    """From the lowest loss to what each run had left after its first steps, which alone would fill the picture."""
    start = SKIPPED * max(row["tokens"] for row in rows)
    first: dict[tuple[str, int, str], float] = {}
    for row in sorted(rows, key=lambda row: float(row["tokens"])):
        if row["tokens"] >= start:
            first.setdefault((row["contestant"], row["seed"], row["split"]), row["loss"])
    low, high = min(row["loss"] for row in rows), max(first.values())
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)]


def last_losses(contestants: Sequence[Contestant]) -> str:
    """Mean over the seeds that have one, each as far as it has come."""
    said = []
    for one in contestants:
        last = [run.evaluated[-1].score.loss for run in one.runs if run.evaluated]
        if last:
            said.append(f"{one.name} {amount(sum(last) / len(last))}")
    tokens = {at_end(run) for one in contestants for run in one.runs if run.evaluated}
    if not said:
        return ""
    when = f"After {in_short(tokens.pop())} tokens" if len(tokens) == 1 else "As far as each has come"
    return f"{when} the validation loss is {joined(said)} nats per token (mean over seeds)."


def at_end(run: Run) -> int:
    return run.evaluated[-1].tokens
