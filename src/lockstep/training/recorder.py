"""What a run writes down: metrics.jsonl, timings.jsonl and trackers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.training.context import Context
from lockstep.training.distribution import total
from lockstep.training.energy import energy_counter
from lockstep.training.run_folder import Log
from lockstep.training.stopping import Diverged
from lockstep.training.trackers import Tracker, open_trackers


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step's numbers; tensors are still on their device, so that a step need not wait for them."""

    step: int
    tokens: int
    supervised: int
    target_bytes: int
    learning_rate: float
    nats: Tensor
    gradient_norm: Tensor | None
    skipped: bool
    """Whether an overflow in half precision kept the optimizers from stepping."""


class Recorder:
    """Collects steps and writes them in one go; only the main process writes."""

    def __init__(self, context: Context, resume_step: int) -> None:
        self.context = context
        self.metrics = Log(context.folder / "metrics.jsonl")
        self.timings = Log(context.folder / "timings.jsonl")
        self.trackers: list[Tracker] = []
        self.pending: list[StepRecord] = []
        self.latest_loss: float | None = None
        self.latest_rate: float | None = None
        """Tokens per second."""
        self._energy = energy_counter(context.device)
        if context.world.is_main:
            self.metrics.rewind(resume_step)
            self.timings.rewind(resume_step)
            run = context.run
            self.trackers = open_trackers(run.logging, context.name, context.folder, context.resolved, resume_step)
        self.restart_clock()

    def restart_clock(self) -> None:
        """Timings count training steps only: called after whatever else took time."""
        self._started = time.perf_counter()
        self._joules = None if self._energy is None else self._energy()

    def add(self, record: StepRecord) -> None:
        self.pending.append(record)

    def flush(self) -> None:
        """Write the collected steps; a loss that is not a number ends the run, naming its step."""
        if not self.pending:
            return
        losses = total(torch.stack([record.nats for record in self.pending]), self.context.world).tolist()
        seconds = time.perf_counter() - self._started
        records, self.pending = self.pending, []
        for record, nats in zip(records, losses, strict=True):
            self._write(record, nats)
        self._write_timing(records, seconds)
        self.metrics.flush()
        self.restart_clock()

    def refuse(self, step: int, what: str, value: float) -> None:
        """End the run if a number that decides about it is not one; every process gets to the same answer."""
        if not math.isfinite(value):
            self.event(step, {what: str(value)}, "diverged")
            raise Diverged(f"diverged at step {step}: the {what} is {value}")

    def event(self, step: int, values: dict[str, Any], name: str) -> None:
        """Write something that belongs to a step but is not its training loss."""
        if self.context.world.is_main:
            self.metrics.write({"step": step, name: values})
            self.metrics.flush()
            numbers = {f"{name}/{key}": value for key, value in values.items() if isinstance(value, int | float)}
            self._track(step, numbers)

    def make_durable(self) -> None:
        """Wait until every line is on the disk."""
        self.metrics.flush(durably=True)
        self.timings.flush(durably=True)

    def close(self) -> None:
        self.metrics.close()
        self.timings.close()
        for tracker in self.trackers:
            tracker.close()

    def _write(self, record: StepRecord, nats: float) -> None:
        loss = nats / record.supervised
        self.refuse(record.step, "loss", loss)
        self.latest_loss = loss
        values: dict[str, Any] = {"tokens_processed": record.tokens, "loss": loss}
        if record.target_bytes:
            values["bits_per_byte"] = nats / math.log(2) / record.target_bytes
        values["learning_rate"] = record.learning_rate
        if record.gradient_norm is not None:
            values["gradient_norm"] = finite(record.gradient_norm.item())
        if record.skipped:
            values["skipped"] = True
        if self.context.world.is_main:
            self.metrics.write({"step": record.step, **values})
            self._track(record.step, values)

    def _track(self, step: int, values: dict[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.log(step, {key: value for key, value in values.items() if value is not None})

    def _write_timing(self, records: list[StepRecord], seconds: float) -> None:
        if not self.context.world.is_main:
            return
        device, tokens = self.context.device, len(records) * self.context.plan.tokens_per_step
        self.latest_rate = tokens / seconds
        timing: dict[str, Any] = {
            "step": records[-1].step,
            "steps": len(records),
            "seconds": seconds,
            "tokens_per_second": self.latest_rate,
        }
        if self._energy is not None and self._joules is not None:
            timing["joules"] = self._energy() - self._joules
        if device.type == "cuda":
            timing["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
        self.timings.write(timing)
        self.timings.flush()


def finite(value: float) -> float | None:
    """A number as JSON knows it; a scaled half-precision gradient may overflow without harm."""
    return value if math.isfinite(value) else None
