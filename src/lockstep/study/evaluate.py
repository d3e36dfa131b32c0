"""Scoring a checkpoint of a run on held-out text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lockstep.config.files import load_run
from lockstep.config.run import RunSpec
from lockstep.data.prepare import Prepared, prepare
from lockstep.errors import UserError
from lockstep.evaluation.language import HeldOut, score_causal, score_masked, score_pseudo
from lockstep.models.language_model import LanguageModel
from lockstep.training.checkpoint import Checkpoint, load, resolve_checkpoint
from lockstep.training.context import check_same_data
from lockstep.training.distribution import World, find_device
from lockstep.training.durable import write_whole
from lockstep.training.progress import showing

HELD_OUT = ("valid", "test")


def evaluate_run(
    folder: Path, name: str | None, splits: Sequence[str], output_dir: Path | None, overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Score one checkpoint on each split; every result is also written as <checkpoint>-<split>.json.

    Overrides change how it is scored, such as evaluation.batch_size; the model stays as it was trained.
    """
    for split in splits:
        if split not in HELD_OUT:
            raise UserError(f"--split {split}: choose from {', '.join(HELD_OUT)}")
    checkpoint = resolve_checkpoint(folder, name)
    run = load_run(checkpoint.folder.parent / "config.yaml", overrides)
    prepared = open_same_corpus(run, checkpoint)
    device = find_device(run.training.device, World())
    model = load(checkpoint.folder).to(device)
    output = output_dir or folder / "evaluations"
    results = []
    for split in splits:
        result = {**identity(checkpoint, split), **scores(model, run, prepared, split, device)}
        output.mkdir(parents=True, exist_ok=True)
        write_whole(output / f"{checkpoint.folder.name}-{split}.json", json.dumps(result, indent=2) + "\n")
        results.append(result)
    return results


def open_same_corpus(run: RunSpec, checkpoint: Checkpoint) -> Prepared:
    """The corpus of a run, which must still be the one it was trained on."""
    prepared = prepare(run.data, run.tokenizer)
    check_same_data(checkpoint, prepared)
    return prepared


def identity(checkpoint: Checkpoint, split: str) -> dict[str, Any]:
    """What a result is a result of."""
    metadata = checkpoint.metadata
    return {
        "experiment_name": metadata["experiment_name"],
        "architecture": metadata["model_config"]["architecture"],
        "checkpoint": checkpoint.folder.name,
        "checkpoint_digest": checkpoint.digest,
        "step": checkpoint.step,
        "tokens_processed": metadata["token_metrics"]["total_tokens_processed"],
        "split": split,
    }


def scores(model: LanguageModel, run: RunSpec, prepared: Prepared, split: str, device: torch.device) -> dict[str, Any]:
    """Causal scores; or, for a masked model, its own: hidden-token scores and pseudo-perplexity."""
    size = run.evaluation.batch_size or run.data.batch_size
    data = HeldOut(prepared, split, run.data.max_sequence_length, size)
    with showing(f"{run.experiment_name} {split}", 100, "%") as progress:
        tell = lambda share: progress.advance(100 * share)  # noqa: E731
        if model.causal:
            return {"track": "causal", **score_causal(model, data, device, progress=tell).as_dict()}
        masked = score_masked(model, data, device, run.training.mlm_probability)
        pseudo = score_pseudo(model, data, device, run.evaluation.pseudo_sequences, tell)
    return {
        "track": "masked",
        "masked": masked.as_dict("masked_perplexity"),
        "pseudo": pseudo.as_dict("pseudo_perplexity"),
    }


def score_table(results: Sequence[dict[str, Any]]) -> str:
    """Results as aligned text."""
    lines = []
    for result in results:
        head = f"{result['experiment_name']}  {result['checkpoint']}  {result['split']}"
        parts = {"": result} if result["track"] == "causal" else {k: result[k] for k in ("masked", "pseudo")}
        for name, part in parts.items():
            numbers = "  ".join(f"{key} {value:.4f}" for key, value in part.items() if isinstance(value, float))
            lines.append(f"{head}  {name + '  ' if name else ''}{numbers}  ({part['tokens']:,} tokens)")
    return "\n".join(lines)
