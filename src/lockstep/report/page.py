"""The page: one HTML file that says everything about a study and asks no other machine for anything.

Words and figures are made elsewhere; here they are laid out. Whatever a model wrote or a user named is escaped by the
template, and a policy in the page's head lets no script run but the two that are ours.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from lockstep.report.claims import CheckedClaim, check_claims
from lockstep.report.figure import Figure
from lockstep.report.figures import figures
from lockstep.report.figures.style import Look
from lockstep.report.findings import DifferenceRow, Verdict, difference_rows, slower_because, verdict
from lockstep.report.outcome import HIGHER_IS_BETTER, compared
from lockstep.report.reasons import why_results_may_differ
from lockstep.report.results import Contestant, Measurements, Results, StudyFacts
from lockstep.report.wording import amount_of, change_of, duration, joined, percent
from lockstep.tables import in_bytes, in_short

SECTIONS = {
    "verdict": "Verdict",
    "differences": "Differences",
    "curves": "Training curves",
    "cooled": "Cooled points",
    "context": "Loss over context",
    "inference": "Inference against length",
    "cost": "Quality against cost",
    "time": "Where the time goes",
    "memory": "Inside the memory",
    "pictures": "State pictures",
    "samples": "Samples",
    "tuning": "Tuning",
    "audit": "Audit",
    "claims": "Published claims",
    "reasons": "Why results may differ",
    "provenance": "Provenance",
}
PLACES = {
    "training_curves": "curves",
    "cooled_points": "cooled",
    "differences": "cooled",
    "perplexity_over_length": "context",
    "loss_by": "context",
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
TOPICS = {
    "quality": "Quality",
    "speed": "Speed",
    "memory": "Memory",
    "cost": "Cost of a common loss",
    "certainty": "How sure we are",
}
CARDS = ("quality", "speed", "memory", "certainty")
"""Topics whose first sentence stands on a card of its own."""
SHORT = 100
"""Letters of all titles together, up to which a choice is a row of buttons and not a list."""
MOST_ROWS = 200
"""Of a figure's data as a table on the page."""


def render_page(results: Results, measurements: Measurements) -> str:
    """One self-contained HTML file; its figures as files are expected in figures/ beside it."""
    drawn = [Drawing(place, one) for place, one in enumerate(figures(results, measurements))]
    found = verdict(results, measurements)
    look = Look(results)
    colours = {one.name: look.tint(one.name) for one in results.contestants}
    tables = list(difference_tables(results, measurements))
    data = {
        "contestants": list(colours),
        "figures": {one.id: {"spec": one.figure.spec, "axes": one.figure.axes} for one in drawn},
    }
    return (
        _page()
        .render(
            sections=SECTIONS,
            results=results,
            study=results.study,
            colours=colours,
            headline=headline(results),
            standing=standing(results, found),
            **in_cards(found),
            tables=tables,
            baseline=first_baseline(results.study, tables),
            drawn={place: [one for one in drawn if one.place == place] for place in SECTIONS},
            slower=slower_because(results, measurements),
            samples=samples(results.contestants),
            sweeps=list(sweeps(results)),
            claims=claims(results, measurements),
            reasons=by_topic((one.topic, one.text) for one in why_results_may_differ(results, measurements)),
            shared=shared_facts(results.study),
            machine=machine_facts(results.study),
            fields=own_fields(results, measurements),
            data=data,
            style=_asset("style.css"),
            library=_library(),
            script=_asset("page.js"),
            policy=_policy(_library(), _asset("page.js")),
        )
        .lstrip()
    )


# What the page is made of.


@cache
def _page() -> Template:
    loader = PackageLoader("lockstep.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"visible": visible, "unbroken": unbroken}
    return environment.get_template("page.html.j2")


@cache
def _asset(name: str) -> str:
    return files("lockstep.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and their embedding, about 900 kB; to bundle them takes a second or two, once a process."""
    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    return bundle.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(*scripts: str) -> str:
    """Only these scripts run, and nothing is loaded from anywhere."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}; base-uri 'none'"


# Words.


def headline(results: Results) -> list[str]:
    study = results.study
    return [
        f"{len(results.contestants)} contestants",
        f"{in_short(study.tokens)} tokens of {study.corpus} each",
        f"{len(study.seeds)} {'seed' if len(study.seeds) == 1 else 'seeds'}",
        study.match or "sizes as stated by hand",
        study.device,
    ]


def standing(results: Results, found: Verdict) -> dict[str, Any] | None:
    """What a reader must know before the verdict; None where nothing is amiss."""
    if results.audit is not None and not results.audit.passed:
        title = "No verdict: the audit failed."
    elif not results.study.finished:
        title = "This study is not finished."
    else:
        title = "Not everything went well."
    texts = found.about("status")
    return {"title": title, "texts": texts} if texts else None


def in_cards(found: Verdict) -> dict[str, Any]:
    """The first sentence of the main topics, and all others by topic."""
    cards = [{"title": TOPICS[topic], "text": texts[0]} for topic in CARDS if (texts := found.about(topic))]
    rest = {
        title: texts for topic, title in TOPICS.items() if (texts := found.about(topic)[1 if topic in CARDS else 0 :])
    }
    return {"cards": cards, "sentences": rest}


def by_topic(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for topic, text in pairs:
        found.setdefault(topic[:1].upper() + topic[1:], []).append(text)
    return found


def claims(results: Results, measurements: Measurements) -> dict[str, list[CheckedClaim]]:
    """Those that the study says something about apart from those that it cannot."""
    checked = check_claims(results, measurements)
    return {
        "tested": [one for one in checked if one.verdict != "not testable here"],
        "untested": [one for one in checked if one.verdict == "not testable here"],
    }


def visible(text: str) -> str:
    """With signs for control characters, which a browser would swallow."""
    signs = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
    return text.translate(signs | dict.fromkeys(range(0x80, 0xA0), 0xFFFD))


def unbroken(text: str) -> str:
    """No line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|(?:ms|s|min|h|days|B|kB|MB|GB|TB|tokens/s|nats|times)\b))", "\u00a0", text)


# Differences.


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    text: str
    value: float | None = None
    """What the column is sorted by."""
    notes: tuple[str, ...] = ()
    tone: str = ""
    """better or worse, where that can be told."""


SCORES = {"bits_per_byte": "Bits per byte", "perplexity": "Perplexity", "accuracy": "Accuracy", "loss": "Loss, nats"}
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "training_tokens_per_second": ("Training speed", lambda rate: f"{in_short(rate)} tokens/s"),
    "decode_seconds": ("Decode time", duration),
    "prefill_seconds": ("Prefill time", duration),
    "decode_peak_bytes": ("Decode memory", in_bytes),
    "training_peak_bytes": ("Training memory", in_bytes),
    "state_bytes": ("State", in_bytes),
    "parameters": ("Parameters", in_short),
    "training_flops_per_token": ("FLOPs per token", in_short),
}


def difference_tables(results: Results, measurements: Measurements) -> Iterable[dict[str, Any]]:
    """One for every contestant that somebody can be compared with."""
    for one in results.contestants:
        rows = difference_rows(results, measurements, one.name)
        bases = {row.baseline for row in rows if row.baseline is not None}
        kept = [row for row in rows if row.baseline is not None or row.name in bases]
        if one.name not in bases:
            continue
        columns = [name for name in (*SCORES, *COSTS) if any(getattr(row, name) is not None for row in kept)]
        primary = results.study.primary
        columns.sort(key=lambda name: name != primary)
        yield {
            "baseline": one.name,
            "note": table_note(rows, kept),
            "heads": [SCORES[name] if name in SCORES else COSTS[name][0] for name in columns],
            "rows": [
                {
                    "contestant": row.name,
                    "against": "baseline" if row.baseline is None else "" if row.baseline == one.name else row.baseline,
                    "cells": [cell(results, row, name) for name in columns],
                }
                for row in kept
            ],
        }


def first_baseline(study: StudyFacts, tables: Sequence[dict[str, Any]]) -> str | None:
    """The study's, unless nobody can be compared with it."""
    names = [table["baseline"] for table in tables]
    return study.baseline if study.baseline in names else next(iter(names), None)


def table_note(rows: Sequence[DifferenceRow], kept: Sequence[DifferenceRow]) -> str:
    """Where the lengths are from, and who is left out."""
    told = []
    lengths = sorted({row.length for row in kept if row.length is not None})
    states = sorted({row.state_length for row in kept if row.state_length is not None})
    if lengths:
        told.append(f"Decoding and prefill are those after {joined([f'{at:,}' for at in lengths])} tokens.")
    if states:
        told.append(f"States are those at {joined([f'{at:,}' for at in states])} tokens.")
    apart = [row.name for row in rows if row not in kept]
    if apart:
        told.append(f"Not of a group with it, and so not compared: {joined(apart)}.")
    return " ".join(told)


def cell(results: Results, row: DifferenceRow, name: str) -> Cell:
    """A signed difference, with the contestant's own number beneath it."""
    change = getattr(row, name)
    if change is None:
        return Cell("—")
    own = amount_of(name, change.value) if name in SCORES else COSTS[name][1](change.value)
    if row.baseline is None:
        return Cell(own, 0.0)
    if change.difference is None or (name in COSTS and change.ratio is None):
        return Cell("—", notes=(own,))
    if name in COSTS:
        return Cell(percent(change.ratio - 1), change.ratio - 1, (own,))
    pair = compared(results, name, row.name, row.baseline)
    tone = ""
    if pair is not None and pair.separable and results.audit is not None and results.audit.passed:
        tone = "better" if (change.difference > 0) == (name in HIGHER_IS_BETTER) else "worse"
    reach = "" if pair is None or pair.low is None or pair.high is None else _reach(name, pair.low, pair.high)
    apart = "" if pair is None or pair.separable else "not separable"
    notes = tuple(note for note in (own, reach, apart) if note)
    return Cell(change_of(name, change.difference), change.difference, notes, tone)


def _reach(metric: str, low: float, high: float) -> str:
    return f"{change_of(metric, low)} to {change_of(metric, high)}".replace(" points to", " to")


# Figures.


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


# Samples, sweep and provenance.


def samples(contestants: Sequence[Contestant]) -> dict[str, list[dict[str, str]]]:
    """By prompt, so that they stand side by side."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in contestants:
        for sample in one.samples:
            repetition = "unknown" if sample.repetition is None else f"{100 * sample.repetition:.1f} %"
            entropy = "unknown" if sample.entropy is None else f"{sample.entropy:.2f} nats"
            numbers = {"repetition": repetition, "entropy": entropy}
            found.setdefault(sample.prompt, []).append({"contestant": one.name, "text": sample.text, **numbers})
    return found


def sweeps(results: Results) -> Iterable[dict[str, Any]]:
    """Every trial in words, the chosen one marked."""
    for one in results.sweeps:
        trials = [
            {
                "settings": ", ".join(f"{name} {value:.4g}" for name, value in trial.settings.items()),
                "loss": "—" if trial.loss is None else f"{trial.loss:.4f}",
                "outcome": "chosen" if place == one.best else trial.status,
            }
            for place, trial in enumerate(one.trials)
        ]
        yield {"contestant": one.contestant, "at_edge": one.at_edge, "trials": trials}


def shared_facts(study: StudyFacts) -> dict[str, str]:
    return {
        "Corpus": study.corpus,
        "Tokenizer": f"{study.tokenizer}, {study.vocab_size:,} entries, {study.bytes_per_token:.3g} bytes per token",
        "Budget": f"{study.steps:,} steps of {study.tokens_per_step:,} tokens, {study.tokens:,} in all",
        "Sequence length": f"{study.sequence_length:,} tokens",
        "Schedule": study.schedule,
        "Optimizer": study.optimizer,
        "Precision": study.precision,
        "Noise": f"{study.noise:g}",
        "Sizes": study.match or "as stated by hand",
        "Seeds": "; ".join(f"data {data}, init {init}" for data, init in study.seeds),
        "Baseline": study.baseline,
        "Primary metric": f"{study.primary.replace('_', ' ')}, chosen beforehand",
        "Cooled at": f"{joined([f'{100 * share:.4g} %' for share in study.cooled_at])} of the budget",
    }


def machine_facts(study: StudyFacts) -> dict[str, str]:
    return {
        "Device": study.device,
        **{name.capitalize(): version for name, version in study.versions.items()},
        "Revision": study.revision or "unknown",
        "Corpus digest": study.corpus_digest,
        "Study digest": study.study_digest,
    }


def own_fields(results: Results, measurements: Measurements) -> dict[str, dict[str, str]]:
    """By field, what each contestant has there; a dash where it has no such field."""
    columns = {one.name: _fields_of(one, measurements) for one in results.contestants}
    names = dict.fromkeys(field for column in columns.values() for field in column)
    return {field: {name: column.get(field, "—") for name, column in columns.items()} for field in names}


def _fields_of(one: Contestant, measurements: Measurements) -> dict[str, str]:
    measured = measurements.contestants.get(one.name)
    timed = {"Device": measured.device, "Kernels": measured.kernel_backend} if measured else {}
    decoding = one.decoding_flops_per_token
    return {
        "Architecture": one.architecture,
        "Track": one.track,
        "Group": one.group,
        "Parameters": f"{one.parameters:,}",
        "Non-embedding parameters": f"{one.non_embedding_parameters:,}",
        "Training FLOPs per token": in_short(one.training_flops_per_token),
        **({} if decoding is None else {"Decoding FLOPs per token": in_short(decoding)}),
        **timed,
        **{name: str(value) for name, value in (one.settings | one.model).items()},
    }
