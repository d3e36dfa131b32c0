"""A run whose numbers explode stops, says where, and keeps what was good."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.run import RunSpec
from lockstep.training.checkpoint import checkpoint_steps, open_checkpoint
from lockstep.training.run import train
from lockstep.training.stopping import Diverged
from tests.training.processes import only_line
from tests.training.processes import run as run_command
from tests.training.tiny_runs import log_is_valid, tiny_run, write_config


def exploding_run(corpus: Path, architecture: str = "gpt2", **training: Any) -> RunSpec:
    """A rate so high that weights leave float32 within a few steps, growing with each as decay does below zero."""
    explosive = {"learning_rate": 1e9, "warmup_steps": 0, "schedule": "constant", "max_grad_norm": None}
    return tiny_run(
        corpus,
        architecture,
        training={"train_steps": 40, "save_interval": 1, "keep_last": 50, **explosive, **training},
        evaluation={"interval": 2},
    )


def assert_all_checkpoints_are_good(folder: Path) -> None:
    for step in checkpoint_steps(folder):
        for name, tensor in open_checkpoint(folder / f"checkpoint-{step}").weights().items():
            assert torch.isfinite(tensor).all(), f"checkpoint-{step}: {name}"


@pytest.mark.parametrize("save_interval", [1, 4, None])
@pytest.mark.parametrize("architecture", ["gpt2", "lstm", "bert"])
def test_the_run_stops_and_names_the_step(
    architecture: str, save_interval: int | None, tiny_corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match=r"diverged at step \d+: ") as diverged:
        train(exploding_run(tiny_corpus, architecture, save_interval=save_interval), tmp_path)
    found = re.search(r"step (\d+)", str(diverged.value))
    assert found is not None
    step, kept = int(found[1]), checkpoint_steps(tmp_path)
    assert all(one < step for one in kept)
    told = f"the last good checkpoint is {tmp_path / f'checkpoint-{kept[-1]}'}" if kept else "no checkpoint was taken"
    assert told in str(diverged.value)
    assert_all_checkpoints_are_good(tmp_path)


def test_the_log_stays_readable(tiny_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(Diverged) as diverged:
        train(exploding_run(tiny_corpus), tmp_path)
    assert log_is_valid(tmp_path / "metrics.jsonl")
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "diverged" in records[-1]
    assert f"diverged at step {records[-1]['step']}:" in str(diverged.value)


@pytest.mark.parametrize("training", [{"train_steps": 1}, {"train_steps": 40}], ids=str)
def test_broken_weights_are_not_saved(training: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    """A step's loss is taken before its update: this rate breaks the weights while the loss is still a number."""
    with pytest.raises(Diverged, match=r"diverged at step 1: .*; no checkpoint was taken before"):
        train(exploding_run(tiny_corpus, learning_rate=3.4e38, weight_decay=1, adam_beta1=0, **training), tmp_path)
    assert checkpoint_steps(tmp_path) == []
    assert log_is_valid(tmp_path / "metrics.jsonl")


def test_an_evaluation_that_explodes_ends_the_run_too(tiny_corpus: Path, tmp_path: Path) -> None:
    """Weights that are still numbers, but give none."""
    run = exploding_run(tiny_corpus, learning_rate=1e38, weight_decay=0, adam_beta1=0, train_steps=1)
    with pytest.raises(Diverged, match="diverged at step 1: "):
        train(run, tmp_path)
    assert log_is_valid(tmp_path / "metrics.jsonl")


def test_the_command_ends_with_status_1_and_one_line(tiny_corpus: Path, tmp_path: Path) -> None:
    config = write_config(exploding_run(tiny_corpus), tmp_path / "run.yaml")
    ended = run_command(config, tmp_path / "run")
    assert ended.returncode == 1
    assert re.search(r"diverged at step \d+: .*; the last good checkpoint is .*checkpoint-\d+", only_line(ended.stderr))
    assert_all_checkpoints_are_good(tmp_path / "run")
