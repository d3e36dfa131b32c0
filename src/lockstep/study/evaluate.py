"""Scoring a checkpoint of a run on held-out text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lockstep.config.files import load_run
from lockstep.config.run import RunSpec
from lockstep.data.prepare import Prepared, prepare
from lockstep.durable import whole_file
from lockstep.errors import UserError
from lockstep.evaluation.language import HeldOut, score_causal, score_masked, score_pseudo
from lockstep.evaluation.memory import measure_memory
from lockstep.models.language_model import LanguageModel
from lockstep.progress import showing
from lockstep.training.checkpoint import Checkpoint, load, resolve_checkpoint
from lockstep.training.context import check_same_code, check_same_data, resolve_model
from lockstep.training.distribution import World, find_device
from lockstep.training.provenance import provenance
from lockstep.training.run_folder import flatten

HELD_OUT = ("valid", "test")
CHOOSABLE = ("evaluation", "data.max_sequence_length", "training.device", "training.output_dir")
"""What may be overridden when a checkpoint is scored."""


def evaluate_run(
    folder: Path,
    name: str | None,
    splits: Sequence[str],
    output_dir: Path | None,
    overrides: Sequence[str] = (),
    memory: bool = False,
) -> list[dict[str, Any]]:
    """Score one checkpoint on each split; every result is also written as <checkpoint>-<split>.json.

    Overrides change how it is scored, such as evaluation.batch_size; the model stays as it was trained. With `memory`
    the results of a model that has one say what it does.
    """
    for split in splits:
        if split not in HELD_OUT:
            raise UserError(f"--split {split}: choose from {', '.join(HELD_OUT)}")
    checkpoint = resolve_checkpoint(folder, name)
    run = scoring_spec(checkpoint.folder.parent / "config.yaml", overrides)
    prepared = open_same_corpus(run, checkpoint)
    device = find_device(run.training.device, World())
    check_same_code(checkpoint, run.model.architecture)
    resolve_model(run, prepared.tokenizer.vocab_size)  # says so where the length exceeds learned positions
    model = load(checkpoint.folder).to(device)
    output = output_dir or checkpoint.folder.parent / "evaluations"
    results = []
    for split in splits:
        result = {**identity(checkpoint, split), **conditions(run, device)}
        result.update(scores(model, run, prepared, split, device))
        if memory:
            result.update(memory_section(model, run, prepared, split, device))
        output.mkdir(parents=True, exist_ok=True)
        whole_file(output / file_name(checkpoint, split, run), json.dumps(result, indent=2) + "\n")
        results.append(result)
    return results


def scoring_spec(config: Path, overrides: Sequence[str]) -> RunSpec:
    """The run as trained, with overrides that change its scoring only; repeating what it was trained with is fine."""
    trained, asked = load_run(config), load_run(config, overrides)
    before, after = flatten(trained.model_dump()), flatten(asked.model_dump())
    for key, value in after.items():
        if before.get(key) != value and not f"{key}.".startswith(tuple(f"{name}." for name in CHOOSABLE)):
            raise UserError(
                f"-o {key}={value}: the run was trained with {before.get(key)};"
                f" only {', '.join(CHOOSABLE)} can be chosen"
            )
    return asked


def file_name(checkpoint: Checkpoint, split: str, run: RunSpec) -> str:
    """A length other than the training length is part of the name."""
    length = run.data.max_sequence_length
    trained = checkpoint.metadata["token_metrics"]["sequence_length"]
    return f"{checkpoint.folder.name}-{split}{'' if length == trained else f'-length-{length}'}.json"


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
        "checkpoint": checkpoint.label,
        "checkpoint_digest": checkpoint.digest,
        "step": checkpoint.step,
        "tokens_processed": metadata["token_metrics"]["total_tokens_processed"],
        "split": split,
    }


def conditions(run: RunSpec, device: torch.device) -> dict[str, Any]:
    """How a result was measured."""
    return {"sequence_length": run.data.max_sequence_length, "precision": "fp32", **provenance(device)}


def scores(model: LanguageModel, run: RunSpec, prepared: Prepared, split: str, device: torch.device) -> dict[str, Any]:
    """Causal scores; or, for a masked model, its own: hidden-token scores and pseudo-perplexity."""
    size = run.evaluation.batch_size or run.data.batch_size
    data = HeldOut(prepared, split, run.data.max_sequence_length, size)
    title = f"{run.experiment_name} {split}"
    if model.causal:
        with showing(title, "share") as progress:
            return {"track": "causal", **score_causal(model, data, device, progress=progress.reach).as_dict()}
    with showing(f"{title}, hidden tokens", "share") as progress:
        masked = score_masked(model, data, device, run.training.mlm_probability, progress=progress.reach)
    with showing(f"{title}, pseudo-perplexity", "share") as progress:
        few = replace(data, sequences=run.evaluation.pseudo_sequences)
        pseudo = score_pseudo(model, few, device, progress.reach)
    return {
        "track": "masked",
        "masked": masked.as_dict("masked_perplexity"),
        "pseudo": pseudo.as_dict("pseudo_perplexity"),
    }


def memory_section(
    model: LanguageModel, run: RunSpec, prepared: Prepared, split: str, device: torch.device
) -> dict[str, Any]:
    """Probes and ablations under the key `memory`; nothing for a model without one."""
    data = HeldOut(prepared, split, run.data.max_sequence_length, run.data.batch_size)
    with showing(f"{run.experiment_name} {split}, memory", "share") as progress:
        section = measure_memory(model, data, device, progress.reach)
    return {} if section is None else {"memory": section}


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
