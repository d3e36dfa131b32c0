"""A finished run in a few lines."""

from __future__ import annotations

from pathlib import Path

from lockstep.training.checkpoint import resolve_checkpoint
from lockstep.training.run_folder import read_log


def summary(folder: Path) -> str:
    """Where the run lies, what it has seen and how it scores."""
    metadata = resolve_checkpoint(folder).metadata
    records = read_log(folder / "metrics.jsonl")
    losses = [record["loss"] for record in records if "loss" in record]
    evaluations = [record["evaluation"] for record in records if "evaluation" in record]
    cost, tokens = metadata["model_cost"], metadata["token_metrics"]["total_tokens_processed"]
    lines = [
        f"run       {folder}",
        f"model     {metadata['model_config']['architecture']}, {cost['parameters']:,} parameters"
        f" ({cost['non_embedding_parameters']:,} without embeddings)",
        f"steps     {metadata['global_step']:,}, {tokens:,} tokens, epoch {metadata['epoch']}",
    ]
    if losses:
        lines.append(f"training  loss {losses[-1]:.4f}")
    if evaluations:
        scored = evaluations[-1]
        numbers = {key.replace("_", " "): value for key, value in scored.items() if isinstance(value, float)}
        told = ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())
        lines.append(f"held out  {told} (first {scored['tokens']:,} tokens)")
    cooled = sorted(folder.glob("cooled-*"), key=lambda branch: int(branch.name.rpartition("-")[2]))
    if cooled:
        lines.append(f"cooled    {', '.join(branch.name for branch in cooled)}")
    return "\n".join(lines)
