"""What the benchmarks share: contestants that take turns, paired ratios, and lines of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import TokenLosses, token_losses

LONGEST_ERROR = 300


def mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of the next tokens, as the training loop takes it; a peer's model gives logits."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if isinstance(model, LanguageModel):
        found: TokenLosses = model(inputs, targets=targets)
        return found.losses.mean()
    return token_losses(model(inputs), targets).mean()


def forward_backward(model: nn.Module, tokens: Tensor) -> float:
    """The loss; gradients are left in the model."""
    loss = mean_loss(model, tokens)
    loss.backward()
    return loss.item()


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    forward_backward(model, tokens)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def in_turns(contestants: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds that each took, round by round, without the first."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
        say(f"  round {number + 1} of {rounds}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in seconds.items()))
    return {name: found[1:] for name, found in seconds.items()}


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Over the rounds that both had: where a run was cut off, one may have had a turn more."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=False))


def report(
    name: str,
    contestant: str,
    value: float,
    unit: str,
    ratio: float | None = None,
    *,
    least: float | None = None,
    most: float | None = None,
    **more: Any,
) -> None:
    """One line; a bar is what the ratio must reach, or must not exceed."""
    line: dict[str, Any] = {"name": name, "contestant": contestant, "value": value, "unit": unit, "ratio": ratio}
    line["bar"] = None
    if ratio is not None and least is not None:
        line |= {"bar": f">= {least}", "met": ratio >= least}
    if ratio is not None and most is not None:
        line |= {"bar": f"<= {most}", "met": ratio <= most}
    emit(line | more)


def emit(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_ERROR]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
