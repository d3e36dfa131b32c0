"""How far a run has come, read from its folder without opening any weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.report.results import Status
from lockstep.training.checkpoint import METADATA, checkpoint_steps
from lockstep.training.run_folder import read_log


@dataclass(frozen=True)
class RunStatus:
    """Where a run, or a decay branch of one, stands."""

    status: Status
    step: int
    """Of the newest checkpoint."""
    message: str | None
    """Why it diverged."""
    metadata: dict[str, Any] | None
    """Of the newest checkpoint."""


def run_status(folder: Path) -> RunStatus:
    """A run is finished when the checkpoint of its last step is there; its branches are runs of their own."""
    steps = checkpoint_steps(folder)
    metadata = (
        json.loads((folder / f"checkpoint-{steps[-1]}" / METADATA).read_text(encoding="utf-8")) if steps else None
    )
    step = steps[-1] if steps else 0
    why = divergence(folder)
    if why is not None:
        return RunStatus("diverged", step, why, metadata)
    if metadata is None:
        return RunStatus("running" if records(folder) else "waiting", 0, None, None)
    cooling = metadata["cooling"]
    last = metadata["planned_steps"] if cooling is None else cooling["end"]
    return RunStatus("finished" if step == last else "running", step, None, metadata)


def divergence(folder: Path) -> str | None:
    """Why a run, or a branch, has no end; None where it has one or may yet have it."""
    for record in records(folder)[-1:]:
        if "diverged" in record:
            what, value = next(iter(record["diverged"].items()))
            return f"diverged at step {record['step']}: the {what} is {value}"
    return None


def branches(folder: Path) -> list[Path]:
    """The decay branches of a run, earliest first."""
    return sorted(folder.glob("cooled-*"), key=lambda branch: int(branch.name.rpartition("-")[2]))


def records(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, none where it has not begun."""
    log = folder / "metrics.jsonl"
    return read_log(log) if log.exists() else []
