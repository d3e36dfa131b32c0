"""What memories did while they read, layer by layer, and what their models lose without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import altair as alt

from lockstep.report.figure import Figure
from lockstep.report.figures.drawing import HEIGHT, ROWS, Chart, Row, figure, names_in, panel_width, tooltip
from lockstep.report.figures.style import GREY, PARTS, Look, ramp
from lockstep.report.figures.words import amount
from lockstep.report.results import Contestant, Results
from lockstep.report.wording import joined


def memory_figures(results: Results, look: Look) -> Iterator[Figure]:
    """None where nobody has a memory."""
    holders = [one for one in results.contestants if one.memory]
    if holders:
        yield from series(holders, look)
        yield from retrieval(holders, look)
        yield from utilisation(holders, look)
        yield from ablations(holders, look)


MOST_NAMED = 12
"""Layers in a legend; with more the colours' order has to do."""


def probes(holders: Sequence[Contestant]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in holders:
        for probe in (one.memory or {}).get("probes", ()):
            yield one.name, probe


def layers_color(rows: Sequence[Row]) -> alt.Color:
    layers = list({row["layer"]: None for row in rows})
    scale = alt.Scale(domain=layers, range=ramp(len(layers)))
    color = alt.Color("layer:N", sort=layers, scale=scale, title=None)
    return color if len(layers) <= MOST_NAMED else color.legend(None)


def per_contestant(chart: alt.Chart, rows: Sequence[Row], look: Look) -> Chart:
    """A panel for each; where there is one, it fits its container."""
    names = look.shown(names_in(rows))
    if len(names) == 1:
        return chart.properties(width="container", height=HEIGHT - 60)
    above = alt.Header(labelPadding=24)  # room for the title of y
    sized = chart.properties(width=panel_width(len(names)), height=HEIGHT - 100)
    return sized.facet(facet=alt.Facet("contestant:N", sort=names, title=None, header=above), columns=3)


def means_said(holders: Sequence[Contestant], read: Callable[[dict[str, Any]], float | None]) -> str:
    """Each holder's mean over its layers."""
    said = []
    for one in holders:
        found = [value for _, probe in probes([one]) if (value := read(probe)) is not None]
        if found:
            said.append(f"{one.name} {amount(sum(found) / len(found))}")
    return joined(said)


# Updates and surprise.

SERIES = {
    "update": (
        "How much each chunk changes the memory",
        "change of the weights, relative to them",
        "Mean change of the weights by a chunk, relative to them",
    ),
    "surprise": (
        "How surprised the memory is",
        "distance of a token's value from what the memory said",
        "Mean distance of a token's value from what the memory said at its chunk's start",
    ),
}


def series(holders: Sequence[Contestant], look: Look) -> Iterator[Figure]:
    for kind, (title, y_title, words) in SERIES.items():
        rows = [
            {"contestant": name, "layer": probe["layer"], "token": place * probe["chunk"], kind: value}
            for name, probe in probes(holders)
            for place, value in enumerate(probe[f"{kind}_series"])
            if value is not None
        ]
        if not rows:
            continue
        chart = (
            alt.Chart(ROWS)
            .mark_line(interpolate="step-after")
            .encode(
                x=alt.X(
                    "token:Q", title="token at the chunk's start", axis=alt.Axis(grid=False, format=",d", tickCount=6)
                ),
                y=alt.Y(f"{kind}:Q", title=y_title, scale=alt.Scale(zero=kind == "update")),
                color=layers_color(rows),
                tooltip=tooltip("contestant", "layer", token=",d", **{kind: ".4f"}),
            )
        )
        says = f"{words}: {means_said(holders, itemgetter(kind))}. One line per layer."
        yield figure(f"memory_{kind}", title, says, per_contestant(chart, rows, look), rows)


# Retrieval.


def retrieval(holders: Sequence[Contestant], look: Look) -> Iterator[Figure]:
    rows = [
        {"contestant": name, "layer": probe["layer"], "age": group["age"], "memory": memory, "cosine": group[field]}
        for name, probe in probes(holders)
        for memory, field in (("after reading", "cosine"), ("before its first write", "initial_cosine"))
        for group in probe["retrieval"]
        if group[field] is not None
    ]
    if not rows:
        return
    kinds = ["after reading", "before its first write"]
    dash = alt.Scale(domain=kinds, range=[[1, 0], [3, 3]])
    ages = sorted({row["age"] for row in rows})
    scale = alt.Scale(type="log", base=2, nice=False, padding=8)
    chart = (
        alt.Chart(ROWS)
        .mark_line()
        .encode(
            x=alt.X(
                "age:Q", title="tokens since it was stored, from", scale=scale, axis=alt.Axis(values=ages, grid=False)
            ),
            y=alt.Y("cosine:Q", title="cosine between what is read and what was stored"),
            color=layers_color(rows),
            strokeDash=alt.StrokeDash("memory:N", scale=dash, sort=kinds, title=None),
            tooltip=tooltip("contestant", "layer", "memory", age=",d", cosine=".3f"),
        )
    )
    newest = means_said(holders, lambda probe: probe["retrieval"][0]["cosine"] if probe["retrieval"] else None)
    oldest = means_said(holders, lambda probe: probe["retrieval"][-1]["cosine"] if probe["retrieval"] else None)
    says = f"Mean cosine over layers, of the newest: {newest}; of the oldest: {oldest}. "
    says += "Only what lies above the dashed line, the memory before its first write, has been retrieved."
    yield figure("memory_retrieval", "What the memory reads back", says, per_contestant(chart, rows, look), rows)


# Utilisation.


def utilisation(holders: Sequence[Contestant], look: Look) -> Iterator[Figure]:
    rows = [
        {
            "contestant": name,
            "layer": probe["layer"],
            "matrix": f"{probe['layer']}, matrix {place + 1}",
            "rank": kind,
            "share": ranks[field],
            "full": ranks["full"],
        }
        for name, probe in probes(holders)
        for place, ranks in enumerate(probe["utilisation"])
        for kind, field in (("stable rank", "stable_share"), ("effective rank", "effective_share"))
        if ranks[field] is not None
    ]
    if not rows:
        return
    said = means_said(holders, lambda probe: mean_of([ranks["stable_share"] for ranks in probe["utilisation"]]))
    says = f"Mean stable rank of the change of a matrix, as a share of its full rank: {said}."
    drawn = per_contestant(rank_points(rows), rows, look)
    yield figure("memory_utilisation", "How many directions the memory uses", says, drawn, rows)


def rank_points(rows: Sequence[Row]) -> alt.Chart:
    kinds = ["stable rank", "effective rank"]
    matrices = list({row["matrix"]: None for row in rows})
    colours = alt.Scale(domain=kinds, range=[PARTS[0], PARTS[1]])
    chart: alt.Chart = (
        alt.Chart(ROWS)
        .mark_point(size=80)
        .encode(
            x=alt.X(
                "share:Q",
                title="share of the full rank",
                axis=alt.Axis(format=".0%", tickCount=5),
                scale=alt.Scale(domainMin=0),
            ),
            y=alt.Y("matrix:N", sort=matrices, title=None, axis=alt.Axis(grid=True, labelLimit=260)),
            color=alt.Color("rank:N", scale=colours, sort=kinds, title=None),
            shape=alt.Shape(
                "rank:N", scale=alt.Scale(domain=kinds, range=["circle", "diamond"]), sort=kinds, title=None
            ),
            tooltip=tooltip("contestant", "matrix", "rank", share=".1%", full=",d"),
        )
    )
    return chart


def mean_of(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


# Ablations.

DONE = {
    "off": "reads are zero",
    "frozen": "nothing is written",
    "reset": "emptied every {reset_every} tokens",
    "warm": "has read other text before",
}


def ablations(holders: Sequence[Contestant], look: Look) -> Iterator[Figure]:
    rows = [row for one in holders for row in ablation_rows(one)]
    if not rows:
        return
    names = names_in(rows)
    kinds = list({row["done"]: None for row in rows})
    title = "change of loss, nats per token (right of 0: the memory was of use)"
    base = alt.Chart(ROWS).encode(
        x=alt.X("change:Q", title=title, axis=alt.Axis(tickCount=6)),
    )
    bars = base.mark_bar().encode(
        y=alt.Y("done:N", sort=kinds, title=None, axis=alt.Axis(labelLimit=260)),
        yOffset=alt.YOffset("contestant:N", sort=look.shown(names)),
        color=look.color(names),
        tooltip=tooltip("contestant", "done", loss=".4f", change="+.4f"),
    )
    zero = alt.Chart(ROWS).mark_rule(color=GREY).encode(x=alt.datum(0))
    height = len(kinds) * (14 + 16 * len(names))
    chart = alt.layer(bars, zero).properties(width="container", height=height)
    said = [f"{row['contestant']}, {row['done']}: {row['change']:+.4f}" for row in rows]
    says = f"Change of loss against the intact model, in nats per token. {'; '.join(said)}. "
    says += "Nothing was trained anew: this says how much a model leans on its memory, not what memory is worth."
    yield figure("memory_ablations", "What a model loses without its memory", says, chart, rows)


def ablation_rows(one: Contestant) -> Iterator[Row]:
    section = one.memory or {}
    scores = section.get("ablations", {})
    intact = scores.get("intact", {}).get("loss")
    for kind, words in DONE.items():
        loss = scores.get(kind, {}).get("loss")
        if loss is not None and intact is not None:
            yield {
                "contestant": one.name,
                "ablation": kind,
                "done": words.format(**section),
                "loss": loss,
                "change": loss - intact,
            }
