"""Small runs, and what makes two of them the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.config.files import dump_yaml
from lockstep.config.run import RunSpec
from lockstep.training.checkpoint import WEIGHTS, Checkpoint, checkpoint_steps, open_checkpoint
from lockstep.training.run_folder import read_log

ARCHITECTURES = ("gpt2", "bert", "lstm", "gru", "rnn", "transformer++")

DATED = ("timestamp", "digest", "parent_digest", "files", "config_hash")
"""Metadata that tells when or how a checkpoint was reached, not what it is."""


def tiny_run(corpus: Path, architecture: str = "gpt2", **sections: Mapping[str, Any]) -> RunSpec:
    """A run of 12 steps with dropout, a checkpoint after every fourth and two evaluations; sections override it."""
    attention = {"attention_dropout": 0.1} if architecture in ("gpt2", "bert", "transformer++") else {}
    base: dict[str, dict[str, Any]] = {
        "data": {"training_corpus": str(corpus), "batch_size": 4, "max_sequence_length": 16},
        "model": {"architecture": architecture, "dim": 16, "depth": 1, "heads": 2, "dropout": 0.1, **attention},
        "training": {"train_steps": 12, "save_interval": 4, "learning_rate": 1e-2, "device": "cpu"},
        "evaluation": {"interval": 6, "sequences": 8},
        "logging": {"log_interval": 3},
    }
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in base.keys() | sections.keys()}
    return RunSpec.model_validate({"experiment_name": "tiny", "random_seed": 11, **merged})


def without_dropout(architecture: str = "gpt2") -> dict[str, Any]:
    """Model fields that leave nothing to chance."""
    attention = {"attention_dropout": 0.0} if architecture in ("gpt2", "bert", "transformer++") else {}
    return {"dropout": 0.0, **attention}


def write_config(run: RunSpec, path: Path) -> Path:
    """The run as a YAML file for the command line."""
    path.write_text(dump_yaml(run.model_dump(mode="json")), encoding="utf-8")
    return path


def last_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of the last step, every byte checked."""
    return open_checkpoint(folder / f"checkpoint-{checkpoint_steps(folder)[-1]}")


def losses(folder: Path) -> list[float]:
    """The training loss of every step."""
    return [record["loss"] for record in read_log(folder / "metrics.jsonl") if "loss" in record]


def assert_same_run(one: Path, other: Path) -> None:
    """The two folders hold the same run to the last bit: weights, training state, log and ledger."""
    mine, theirs = last_checkpoint(one), last_checkpoint(other)
    assert mine.step == theirs.step
    assert (mine.folder / WEIGHTS).read_bytes() == (theirs.folder / WEIGHTS).read_bytes()
    assert_same_state(mine.training_state(), theirs.training_state())
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    assert lasting(mine.metadata) == lasting(theirs.metadata)
    assert mine.metadata["token_metrics"]["total_tokens_processed"] > 0


def assert_same_state(one: Any, other: Any, where: str = "training_state") -> None:
    """Two trees of tensors and plain values are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_state(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):  # which of the two says nothing: torch turns tuples into lists
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_state(a, b, f"{where}[{index}]")
    else:
        assert one == other, where


def lasting(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What two checkpoints of the same run agree on."""
    return {key: value for key, value in metadata.items() if key not in DATED}


def log_is_valid(path: Path) -> bool:
    """Whether each line is JSON as the standard has it, which knows no NaN."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return all(json.loads(line, parse_constant=refuse) is not None for line in path.read_text().splitlines())
