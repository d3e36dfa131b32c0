"""Tokens seen by each run, as plain text."""

from __future__ import annotations

from lockstep.study.audit import Audit
from lockstep.study.audited_run import AuditedRun


def token_table(audit: Audit) -> str:
    """One line a run: its tokens at the audited step, or at its newest where the runs have none in common."""
    pairs = zip(audit.runs, labels(audit), strict=True)
    return "\n".join(_line(run, label, run.newest if audit.step is None else audit.step) for run, label in pairs)


def labels(audit: Audit) -> list[str]:
    """The architecture of each run, or its name where two runs share an architecture."""
    architectures = [run.architecture for run in audit.runs]
    return [run.architecture if architectures.count(run.architecture) == 1 else run.name for run in audit.runs]


def _line(run: AuditedRun, label: str, step: int | None) -> str:
    tokens = None if step is None else run.tokens.get(step)
    shown_step = f"{'-':>6s}" if step is None else f"{step:6d}"
    shown_tokens = "-" if tokens is None else f"{tokens:,} ({tokens / 1e6:.2f}M)"
    return f"{label:10s} | Step: {shown_step} | Tokens: {shown_tokens}"


def pivot_table(audit: Audit) -> str:
    """Steps down, contestants across; `-` where a run has no sound checkpoint."""
    counts = [run.tokens for run in audit.runs]
    steps = sorted({step for tokens in counts for step in tokens})
    rows = [["step", *labels(audit)]]
    for step in steps:
        rows.append([str(step), *(f"{tokens[step]:,}" if step in tokens else "-" for tokens in counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
