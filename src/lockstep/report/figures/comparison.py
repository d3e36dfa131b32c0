"""What is compared: scores at cooled points, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, Chart, Row, brightness, figure, names_in, tooltip
from lockstep.report.figures.style import GREY, Look
from lockstep.report.figures.tracks import Metric, number, quality, tracks
from lockstep.report.figures.words import amount, gaps, sentences
from lockstep.report.intervals import student
from lockstep.report.outcome import baseline_of, compared
from lockstep.report.results import Contestant, Results
from lockstep.report.wording import joined
from lockstep.tables import in_short


def comparison_figures(results: Results, look: Look) -> Iterator[Figure]:
    yield from cooled_points(results, look)
    yield from differences(results, look)


# Cooled points.


def cooled_points(results: Results, look: Look) -> Iterator[Figure]:
    for track in tracks(results):
        metric = quality(track.contestants)
        rows = [row for one in track.contestants for row in cooled_rows(one, metric)]
        if not rows:
            continue
        says = sentences(best_at_last(rows, metric), gaps(track.contestants, names_in(rows)))
        title = f"Test score at equal tokens{track.words}"
        yield figure(f"cooled_points{track.suffix}", title, says, cooled_chart(rows, look, metric), rows)


def cooled_rows(one: Contestant, metric: Metric) -> Iterator[Row]:
    """Per share of the budget: each seed's score, then their mean with its interval."""
    found: dict[float, list[tuple[int, int, float]]] = {}
    for run in one.runs:
        for at in run.cooled:
            found.setdefault(at.share, []).append((run.data_seed, at.tokens, number(at.score, metric)))
    for share, scores in sorted(found.items()):
        place = {"contestant": one.name, "share": share, "tokens": scores[0][1]}
        place["when"] = (
            f"{share:.3g} of the budget: {in_short(scores[0][1])} tokens"
            if share < 1
            else f"the whole budget: {in_short(scores[0][1])} tokens"
        )
        for seed, _, score in scores:
            yield {**place, "what": "seed", "seed": seed, metric.field: score, "low": None, "high": None}
        mean, low, high = student([score for _, _, score in scores])
        yield {**place, "what": "mean", "seed": None, metric.field: mean, "low": low, "high": high}


def cooled_chart(rows: Sequence[Row], look: Look, metric: Metric) -> alt.LayerChart:
    names = names_in(rows)
    whens = list({row["when"]: None for row in sorted(rows, key=lambda row: row["share"])})
    shown = tooltip("contestant", "when", "seed", **dict.fromkeys((metric.field, "low", "high"), ".4f"))
    scale = alt.Scale(zero=False, padding=10)
    y = alt.Y(f"{metric.field}:Q", title=f"{metric.title} on the test split (lower is better)", scale=scale)
    base = alt.Chart(ROWS).encode(opacity=brightness())
    mean, seeds = base.transform_filter("datum.what == 'mean'"), base.transform_filter("datum.what == 'seed'")
    dots = seeds.mark_tick(thickness=1, size=16).encode(y=y, tooltip=shown)
    bars = mean.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    means = mean.mark_point(size=80).encode(y=y, shape=look.shape(names), tooltip=shown)
    return (
        alt.layer(bars, dots, means)
        .encode(
            x=alt.X("when:N", sort=whens, title=None, axis=alt.Axis(labelLimit=240)),
            xOffset=alt.XOffset("contestant:N", sort=look.shown(names), scale=alt.Scale(paddingOuter=0.8)),
            color=look.color(names),
        )
        .properties(width="container", height=HEIGHT)
    )


def best_at_last(rows: Sequence[Row], metric: Metric) -> str:
    """The means at the latest point that anybody has come to, best first."""
    last = max(row["share"] for row in rows)
    means = sorted(
        (row for row in rows if row["what"] == "mean" and row["share"] == last), key=lambda row: row[metric.field]
    )
    said = [f"{row['contestant']} {row[metric.field]:.4f}" for row in means]
    text = f"At {means[0]['when']}. {joined(said)} {metric.title}; bars are 95 % intervals over seeds, ticks the seeds."
    if any(row["low"] is None for row in means):
        text += " Where there is one seed there is no interval."
    return text


# Differences.


def differences(results: Results, look: Look) -> Iterator[Figure]:
    """One forest per group: everybody against the baseline, or the group's first where it has none."""
    groups = list({one.group: None for one in results.contestants})
    for group in groups:
        members = [one for one in results.contestants if one.group == group]
        chosen = baseline_of(results, members) or members[0]
        baseline, metric = chosen.name, quality(members)
        rows = forest_rows(results, members, baseline, metric)
        if rows:
            name = "differences" if baseline == results.study.baseline else f"differences_{groups.index(group) + 1}"
            says = sentences(told(rows, baseline, metric), gaps(members, {*names_in(rows), baseline}))
            chart = forest(rows, look, baseline, metric)
            yield figure(name, f"Difference from {baseline}", says, chart, rows)


def forest_rows(results: Results, members: Sequence[Contestant], baseline: str, metric: Metric) -> list[Row]:
    """At the end of the budget."""
    rows = []
    for one in members:
        pair = None if one.name == baseline else compared(results, metric.field, one.name, baseline)
        if pair is not None:
            verdict = "not separable" if not pair.separable else "better" if pair.effect < 0 else "worse"
            ends = {"effect": pair.effect, "low": pair.low, "high": pair.high}
            about = {"p": pair.p, "p_adjusted": pair.p_adjusted, "samples": pair.samples, "over": pair.kind}
            rows.append({"contestant": one.name, "baseline": baseline, **ends, **about, "verdict": verdict})
    return rows


def forest(rows: Sequence[Row], look: Look, baseline: str, metric: Metric) -> Chart:
    names = names_in(rows)
    title = f"difference in {metric.title} from {baseline} (left of 0 is better)"
    hue = alt.condition("datum.verdict == 'not separable'", alt.value(GREY), look.color(names, legend=False))
    shown = tooltip(
        "contestant", "verdict", "over", effect="+.4f", low="+.4f", high="+.4f", p_adjusted=".3g", samples=",d"
    )
    scale = alt.Scale(range=[0, alt.ExprRef("width - 130")], padding=8)
    x = alt.X("effect:Q", title=title, scale=scale)
    base = alt.Chart(ROWS).encode(y=alt.Y("contestant:N", sort=look.shown(names), title=None), color=hue)
    zero = alt.Chart(ROWS).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=alt.XDatum(0, scale=scale))
    bars = base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q", title=title, scale=scale), x2="high:Q")
    means = base.mark_point(size=110).encode(x=x, shape=look.shape(names).legend(None), tooltip=shown)
    said = base.transform_calculate(said="format(datum.effect, '+.4f') + ', ' + datum.verdict")
    words = said.mark_text(align="right").encode(x=alt.value("width"), text="said:N", color=alt.value(GREY))
    return alt.layer(zero, bars, means, words).properties(width="container", height=36 * len(names) + 16)


def told(rows: Sequence[Row], baseline: str, metric: Metric) -> str:
    said = []
    for row in rows:
        reach = "" if row["low"] is None else f" [{row['low']:+.4f}, {row['high']:+.4f}]"
        said.append(f"{row['contestant']} {row['effect']:+.4f}{reach}, {row['verdict']}")
    over = joined(sorted({f"{amount(row['samples'])} {row['over']}" for row in rows if row["low"] is not None}))
    how = f"with 95 % intervals over {over}" if over else "without intervals, which need a second seed"
    text = f"Against {baseline}, in {metric.title} {how}: {'; '.join(said)}."
    return f"{text} Grey: not separable."
