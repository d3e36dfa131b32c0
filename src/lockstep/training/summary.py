"""A finished run in a few lines."""

from __future__ import annotations

from pathlib import Path

from lockstep.training.checkpoint import checkpoint_steps
from lockstep.training.run_folder import read_log


def summary(folder: Path) -> str:
    """Where the run lies, what it has seen and how it scores."""
    records = read_log(folder / "metrics.jsonl")
    steps = [record for record in records if "loss" in record]
    evaluations = [record["evaluation"] for record in records if "evaluation" in record]
    lines = [f"run       {folder}", f"steps     {checkpoint_steps(folder)[-1]:,}"]
    if steps:
        lines.append(f"tokens    {steps[-1]['tokens_processed']:,}")
        lines.append(f"training  loss {steps[-1]['loss']:.4f}")
    if evaluations:
        numbers = {key: value for key, value in evaluations[-1].items() if isinstance(value, float)}
        lines.append("held out  " + ", ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in numbers.items()))
    return "\n".join(lines)
