"""Trackers: where a run's curves are shown besides metrics.jsonl, which stays the log of record.

A tracker is a convenience: one that is missing or fails costs a warning, never the run.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.config.logging import LoggingSpec, TrackerName


class Tracker(Protocol):
    """Shows the values of a run, step by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` as they stand after `step` completed steps."""

    def close(self) -> None:
        """Write out what is still pending."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about the run when it opens."""

    spec: LoggingSpec
    name: str
    folder: Path
    config: Mapping[str, Any]
    resume_step: int
    """Steps completed so far; 0 in a fresh run."""


def open_trackers(
    spec: LoggingSpec, name: str, folder: Path, config: Mapping[str, Any], resume_step: int
) -> list[Tracker]:
    """The trackers that `spec` names, without those that cannot be opened: each of these is one warning."""
    run = TrackedRun(spec, name, folder, config, resume_step)
    kinds: Mapping[TrackerName, type[WandbTracker] | type[TensorboardTracker] | type[TrackioTracker]] = {
        "wandb": WandbTracker,
        "tensorboard": TensorboardTracker,
        "trackio": TrackioTracker,
    }
    opened: list[Tracker] = []
    for kind in spec.tracker_names():
        try:
            opened.append(ForgivingTracker(kind, kinds[kind](run)))
        except ImportError:
            _warn(f"{kind} is not installed (pip install 'lockstep-lm[track]'); the run goes on without it")
        except Exception as error:
            _warn(f"{kind} could not be opened ({_reason(error)}); the run goes on without it")
    return opened


class ForgivingTracker:
    """A tracker whose failures end the tracking and not the run."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.log(step, values)
        except Exception as error:
            self._tracker = None
            _warn(f"{self._name} failed at step {step} ({_reason(error)}); the run goes on without it")

    def close(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        try:
            tracker.close()
        except Exception as error:
            _warn(f"{self._name} failed to close ({_reason(error)}); its last values may be missing")


class WandbTracker:
    """Weights & Biases; its files lie in the run folder, and a resumed run continues under the same id."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.spec.project,
            name=run.name,
            id=_wandb_id(run.folder),
            resume="allow",
            # None leaves the choice to WANDB_MODE.
            mode="offline" if run.spec.offline else None,
            dir=str(run.folder),
            config=dict(run.config),
            tags=list(run.spec.tags),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class TensorboardTracker:
    """TensorBoard event files in the run folder; what a crashed run had logged beyond its checkpoint is hidden."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            log_dir=str(run.folder / "tensorboard"),
            # The step resumed from was logged and is not taken again: the first to be hidden is the next one.
            purge_step=run.resume_step + 1 if run.resume_step else None,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, global_step=step)

    def close(self) -> None:
        self._writer.close()


class TrackioTracker:
    """Trackio; its database lies where TRACKIO_DIR says, because its dashboard shows many runs side by side."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        # Trackio greets on standard output, which belongs to the command's own results.
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=run.spec.project,
                name=run.name,
                config=dict(run.config),
                resume="allow" if run.resume_step else "never",
                embed=False,
            )
        self._finish = trackio.finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._finish()


def _wandb_id(folder: Path) -> str:
    """The id that this run folder goes by at W&B, chosen once."""
    file = folder / "wandb-id.txt"
    known = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    if known:
        return known
    fresh = secrets.token_hex(4)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(fresh + "\n", encoding="utf-8")
    return fresh


def _warn(message: str) -> None:
    warnings.warn(f"logging.trackers: {message}", stacklevel=3)


def _reason(error: Exception) -> str:
    """An error of any library, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
