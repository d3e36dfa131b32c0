"""summary.md: the verdict and the differences, for pasting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lockstep.report.beside import Beside, beside_published
from lockstep.report.differences import Change, DifferenceRow, difference_rows
from lockstep.report.findings import verdict
from lockstep.report.results import Measurements, Results
from lockstep.report.wording import amount_of, change_of, duration, milliseconds, percent, sentence
from lockstep.tables import in_bytes, in_short

MISSING = "–"
HASH_SHOWN = 12
TITLES = {
    "quality": "Quality",
    "speed": "Speed",
    "memory": "Memory",
    "cost": "Cost",
    "recall": "Recall and long context",
    "commonsense": "Common sense",
    "certainty": "How sure",
    "status": "Status",
}


def summary(results: Results, measurements: Measurements) -> str:
    """Markdown."""
    study, found = results.study, verdict(results, measurements)
    lines = [f"# {escaped(study.name)}", "", f"{_shared(results)}", ""]
    lines += [f"- **{TITLES[one.topic]}.** {escaped(one.text)}" for one in found.sentences]
    rows = difference_rows(results, measurements)
    for group in dict.fromkeys(row.group for row in rows):
        lines += ["", *difference_table([row for row in rows if row.group == group])]
    lines += ["", escaped(_legend(rows))] if rows else []
    for table in beside_published(results):
        lines += ["", *published_table(table)]
    lines += ["", escaped(audit_line(results)), "", escaped(cost_line(results, measurements))]
    lines += ["", escaped(provenance_line(results))]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Plain text that Markdown shows as it is, in a table too."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", line)
    return line.replace("&", "&amp;")


def _shared(results: Results) -> str:
    study = results.study
    seeds = f"{len(study.seeds)} {'pair' if len(study.seeds) == 1 else 'pairs'} of seeds"
    text = (
        f"{in_short(study.tokens)} tokens of {study.corpus} in {study.steps:,} steps, {study.tokenizer} of "
        f"{study.vocab_size:,} tokens, sequences of {study.sequence_length:,}, {seeds}; "
        f"primary metric: {study.primary.replace('_', ' ')}; baseline: {study.baseline}"
    )
    return escaped(sentence(text))


# The table.

COLUMNS = (
    "contestant",
    "test loss",
    "perplexity",
    "bits per byte",
    "difference (95 % interval)",
    "accuracy",
    "training tokens/s",
    "decode per token",
    "prefill",
    "decode peak",
    "training peak",
    "state",
    "parameters",
    "FLOPs/token",
)


def difference_table(rows: Sequence[DifferenceRow]) -> list[str]:
    """One line a contestant of one group; changes against its baseline in brackets."""
    masked = any(row.track == "masked" for row in rows)
    head = ["pseudo-perplexity" if masked and title == "perplexity" else title for title in COLUMNS]
    lines = [head, ["---", *("---:" for _ in COLUMNS[1:])], *(cells(row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cells(row: DifferenceRow) -> tuple[str, ...]:
    name = (
        f"{row.name} (baseline)" if row.is_baseline else f"{row.name} (masked)" if row.track == "masked" else row.name
    )
    return (
        escaped(name),
        _cell(row.loss, lambda value: f"{value:.4f}", relative=False),
        _cell(row.perplexity, lambda value: amount_of("perplexity", value)),
        MISSING if row.bits_per_byte is None else amount_of("bits_per_byte", row.bits_per_byte.value),
        _difference(row),
        _accuracy(row.accuracy),
        _cell(row.training_tokens_per_second, in_short),
        _cell(row.decode_seconds, milliseconds),
        _cell(row.prefill_seconds, duration),
        _cell(row.decode_peak_bytes, in_bytes),
        _cell(row.training_peak_bytes, in_bytes),
        _cell(row.state_bytes, in_bytes, relative=False),
        _cell(row.parameters, in_short),
        _cell(row.training_flops_per_token, in_short),
    )


def _cell(change: Change | None, show: Callable[[float], str], relative: bool = True) -> str:
    if change is None:
        return MISSING
    ratio = change.ratio
    return show(change.value) if ratio is None or not relative else f"{show(change.value)} ({percent(ratio - 1)})"


def _difference(row: DifferenceRow) -> str:
    if row.bits_per_byte is None or row.bits_per_byte.difference is None:
        return MISSING
    told = change_of("bits_per_byte", row.bits_per_byte.difference)
    if row.interval is not None:
        low, high = (change_of("bits_per_byte", end) for end in row.interval)
        told += f" ({low} to {high})"
    return told if row.separable else f"{told}, not separable"


def _accuracy(change: Change | None) -> str:
    if change is None:
        return MISSING
    gap = change.difference
    shown = amount_of("accuracy", change.value)
    return shown if gap is None else f"{shown} ({change_of('accuracy', gap)})"


def _legend(rows: Sequence[DifferenceRow]) -> str:
    """At what lengths."""
    lengths = sorted({row.length for row in rows if row.length is not None})
    states = sorted({row.state_length for row in rows if row.state_length is not None})
    told = ["Test split, end of the budget, means over seeds; changes are against the baseline of the same group"]
    if lengths:
        told.append(f"decode and prefill after {', '.join(f'{length:,}' for length in lengths)} tokens")
    if states:
        told.append(f"state per sequence at {', '.join(f'{length:,}' for length in states)} tokens")
    return sentence("; ".join(told))


def published_table(table: Beside) -> list[str]:
    """Ours and published accuracies, one line a model, with a line of words before and one after."""
    rows = [["model", *table.lengths], ["---", *("---:" for _ in table.lengths)]]
    for line in table.lines:
        rows.append([escaped(f"{line.name} ({line.source or 'here'})"), *(cell or MISSING for cell in line.cells)])
    title = sentence(f"{table.title}: right answers in percent by tokens of an instance, beside published ones")
    notes = " ".join(sentence(note) for note in table.notes)
    return [escaped(title), "", *(f"| {' | '.join(row)} |" for row in rows), "", escaped(notes)]


# The last lines.


def audit_line(results: Results) -> str:
    audit = results.audit
    if audit is None:
        return "Audit: not yet."
    notes = f" Notes: {'; '.join(audit.notes)}." if audit.notes else ""
    if audit.passed:
        return f"Audit: passed over {max(len(audit.table) - 1, 0)} runs.{notes}"
    return sentence(f"Audit: not passed: {'; '.join(audit.findings)}") + notes


def cost_line(results: Results, measurements: Measurements) -> str:
    """What all runs took together."""
    runs = [(one, run) for one in results.contestants for run in one.runs]
    tokens = sum(run.tokens for _, run in runs)
    flops = sum(run.tokens * one.training_flops_per_token for one, run in runs)
    last = [clock.ticks[-1] for one in measurements.contestants.values() for clock in one.clocks if clock.ticks]
    told = [f"{len(runs)} runs", f"{in_short(tokens)} tokens", f"{in_short(flops)} FLOPs"]
    if last:
        told.append(f"{duration(sum(tick.seconds for tick in last))} of training")
    if last and all(tick.joules is not None for tick in last):
        told.append(f"{in_short(sum(tick.joules or 0.0 for tick in last))} joules")
    return sentence(f"Cost: {', '.join(told)}")


def provenance_line(results: Results) -> str:
    study = results.study
    told = [
        f"revision {study.revision or 'unknown'}",
        study.device,
        f"torch {study.versions.get('torch', 'unknown')}",
        f"corpus {study.corpus_digest[:HASH_SHOWN]}",
        f"study {study.study_digest[:HASH_SHOWN]}",
    ]
    return sentence(f"Provenance: {', '.join(told)}")
