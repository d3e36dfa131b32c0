"""The page: one HTML file that says everything about a study and asks no other machine for anything.

Words and figures are made elsewhere; here they are laid out. Whatever a model wrote or a user named is escaped by the
template, and a policy in the page's head lets no script run but the two that are ours.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from lockstep.report.beside import beside_published
from lockstep.report.claims import CheckedClaim, check_claims
from lockstep.report.difference_table import difference_tables, first_baseline
from lockstep.report.drawing import Drawing
from lockstep.report.figures import figures
from lockstep.report.figures.style import Look
from lockstep.report.findings import Verdict, slower_because, verdict
from lockstep.report.provenance import machine_facts, own_fields, shared_facts
from lockstep.report.reasons import why_results_may_differ
from lockstep.report.results import Contestant, Measurements, Results
from lockstep.tables import in_short

SECTIONS = {
    "verdict": "Verdict",
    "differences": "Differences",
    "curves": "Training curves",
    "cooled": "Cooled points",
    "context": "Loss over context",
    "recall": "Recall and long context",
    "commonsense": "Common sense",
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
TOPICS = {
    "quality": "Quality",
    "speed": "Speed",
    "memory": "Memory",
    "cost": "Cost of a common loss",
    "recall": "Recall and long context",
    "commonsense": "Common sense",
    "certainty": "How sure we are",
}
CARDS = ("quality", "speed", "memory", "certainty")
"""Topics whose first sentence stands on a card of its own."""


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
            published=beside_published(results),
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


# Samples and sweep.


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
