"""What a run scores while it trains is what its checkpoint scores afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from lockstep import load
from lockstep.evaluation.language import HeldOut, score_causal
from lockstep.training.context import Context
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.tiny_runs import tiny_run


def last_evaluation(folder: Path) -> float:
    """The loss of the last evaluation during training."""
    scored = [record["evaluation"] for record in read_log(folder / "metrics.jsonl") if "evaluation" in record]
    return float(scored[-1]["loss"])


def scored_again(context: Context, how: contextlib.AbstractContextManager[object]) -> float:
    """The loss of the saved model on the same windows."""
    run = context.run
    data = HeldOut(
        context.prepared, "valid", run.data.max_sequence_length, run.data.batch_size, run.evaluation.sequences
    )
    with how:
        return score_causal(load(context.folder), data, torch.device("cpu")).loss


@pytest.mark.parametrize("architecture", ["gpt2", "lstm"])
def test_dropout_is_off(architecture: str, tiny_corpus: Path, tmp_path: Path) -> None:
    context = train(tiny_run(tiny_corpus, architecture, model={"dropout": 0.5}), tmp_path)
    assert last_evaluation(tmp_path) == pytest.approx(scored_again(context, contextlib.nullcontext()), abs=1e-6)


def test_dropout_is_on_again_afterwards(tiny_corpus: Path, tmp_path: Path) -> None:
    """How often a run is evaluated changes nothing but what is written down."""
    for name, interval in (("often", 1), ("once", 12)):
        run = tiny_run(tiny_corpus, model={"dropout": 0.5}, evaluation={"interval": interval})
        train(run, tmp_path / name)
    weights = [(tmp_path / name / "checkpoint-12" / "model.safetensors").read_bytes() for name in ("often", "once")]
    assert weights[0] == weights[1]


def test_the_precision_is_that_of_the_run(tiny_corpus: Path, tmp_path: Path) -> None:
    context = train(tiny_run(tiny_corpus, training={"precision": "bf16"}), tmp_path)
    found = last_evaluation(tmp_path)
    assert found == pytest.approx(scored_again(context, torch.autocast("cpu", torch.bfloat16)), abs=1e-6)
    assert abs(found - scored_again(context, contextlib.nullcontext())) > 1e-5
