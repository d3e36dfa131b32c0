"""What is recorded while a run goes on, besides metrics.jsonl."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from lockstep.config.spec import Spec

TrackerName = Literal["wandb", "tensorboard", "trackio"]


class LoggingSpec(Spec):
    """Trackers, and how often progress is written."""

    use_wandb: bool = False
    """Same as naming wandb in `trackers`."""
    trackers: tuple[TrackerName, ...] = ()
    project: str = "lockstep"
    tags: tuple[str, ...] = ()
    log_interval: PositiveInt = 10
    """Steps between two writes of metrics; every step has its own record."""
    offline: bool = False
    """W&B writes to the run folder and sends nothing."""

    def tracker_names(self) -> tuple[TrackerName, ...]:
        """The trackers asked for, each once."""
        named: tuple[TrackerName, ...] = ("wandb", *self.trackers) if self.use_wandb else self.trackers
        return tuple(dict.fromkeys(named))
