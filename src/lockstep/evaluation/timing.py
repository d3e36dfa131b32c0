"""Seconds, measured several times, and how they are spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several measurements, the warm-up left out."""

    median: float
    low: float
    """5 % lie below."""
    high: float
    """5 % lie above."""
    count: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    low, median, high = np.quantile(values, (0.05, 0.5, 0.95)).tolist()
    return Spread(median, low, high, len(values))


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds(function: Callable[[], object], rounds: int, device: torch.device) -> list[float]:
    """How long it takes, again and again after one time that does not count."""
    function()
    taken = []
    for _ in range(rounds):
        start = now(device)
        # What it gives is let go before the next round begins, but after the clock was read.
        result = function()
        taken.append(now(device) - start)
        del result
    return taken


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """The model in this mode, as long as the block lasts."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)
