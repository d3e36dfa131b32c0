"""Training works: it learns, by every optimizer and schedule, and its shortcuts do not change its result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from lockstep.config.training import OptimizerName, ScheduleName, TrainingSpec
from lockstep.training.learning_rate import learning_rate_at
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.tiny_runs import last_checkpoint, losses, tiny_run, without_dropout


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return last_checkpoint(folder).weights()


def unigram_entropy(tokens: np.ndarray[Any, Any]) -> float:
    """Nats per token of the best guess that does not look at what came before."""
    _, counts = np.unique(tokens, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def test_a_model_learns_what_repeats(tmp_path: Path) -> None:
    corpus = tmp_path / "repeating.txt"
    corpus.write_text("the cat sees the dog and the dog sees the cat\n" * 400)
    run = tiny_run(
        corpus,
        "transformer++",
        data={"batch_size": 8, "max_sequence_length": 32},
        model={"dim": 32, **without_dropout("transformer++")},
        training={"train_steps": 100, "save_interval": None},
        evaluation={"interval": 100, "sample_prompt": "the cat sees ", "sample_tokens": 20},
    )
    context = train(run, tmp_path / "run")
    entropy = unigram_entropy(context.prepared.tokens("train"))
    assert entropy > 2
    *_, evaluation = read_log(tmp_path / "run" / "metrics.jsonl")
    assert losses(tmp_path / "run")[0] > math.log(200)
    assert losses(tmp_path / "run")[-1] < entropy / 5
    assert evaluation["evaluation"]["loss"] < entropy / 5
    assert evaluation["evaluation"]["accuracy"] > 0.8
    assert evaluation["evaluation"]["sample"].startswith("the")


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
@pytest.mark.parametrize("schedule", get_args(ScheduleName))
def test_every_schedule_with_every_optimizer(schedule: str, optimizer: str, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, training={"schedule": schedule, "optimizer": optimizer, "train_steps": 20})
    train(run, tmp_path)
    records = [record for record in read_log(tmp_path / "metrics.jsonl") if "loss" in record]
    rates = [learning_rate_at(step, run.training, 20) for step in range(20)]
    assert [record["learning_rate"] for record in records] == rates
    assert np.mean(losses(tmp_path)[-3:]) < losses(tmp_path)[0] - 0.3
    groups = last_checkpoint(tmp_path).training_state()["optimizers"]["param_groups"]
    assert {group["lr"] for group in groups} == {rates[-1]}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("architecture", ["transformer++", "gru"])
def test_gradient_checkpointing_changes_nothing(
    architecture: str, dropout: float, tiny_corpus: Path, tmp_path: Path
) -> None:
    for name, asked in (("with", True), ("without", False)):
        training = {"use_gradient_checkpointing": asked}
        train(tiny_run(tiny_corpus, architecture, model={"dropout": dropout}, training=training), tmp_path / name)
    one, other = weights_of(tmp_path / "with"), weights_of(tmp_path / "without")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(tmp_path / "with") == losses(tmp_path / "without")


@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_accumulation_equals_a_larger_batch(architecture: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """Also where micro-batches hold different numbers of targets, as masked ones do."""
    for name, size, micros in (("whole", 8, 1), ("parts", 2, 4)):
        run = tiny_run(
            tiny_corpus,
            architecture,
            data={"batch_size": size},
            model=without_dropout(architecture),
            training={"gradient_accumulation_steps": micros, "learning_rate": 1e-3, "use_tf32": False},
            evaluation={"batch_size": 4},
        )
        train(run, tmp_path / name)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-6)
    one, other = weights_of(tmp_path / "parts"), weights_of(tmp_path / "whole")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
    hashes = {last_checkpoint(tmp_path / name).metadata["stream_hash"] for name in ("whole", "parts")}
    assert len(hashes) == 1


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of its own affairs
def test_a_compiled_model_trains_alike(tiny_corpus: Path, tmp_path: Path) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        pytest.skip(f"torch.compile needs a C++ compiler: {error}")
    for name, asked in (("compiled", True), ("plain", False)):
        training = {"compile": asked, "train_steps": 4, "use_tf32": False}
        evaluation = {"interval": None, "sequences": 4}  # every further shape is compiled anew
        run = tiny_run(tiny_corpus, model=without_dropout(), training=training, evaluation=evaluation)
        train(run, tmp_path / name)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)
    assert weights_of(tmp_path / "compiled").keys() == weights_of(tmp_path / "plain").keys()


@pytest.mark.parametrize(
    ("asked", "precision"),
    [
        ({"use_amp": True}, "fp16"),
        ({"use_amp": False}, "fp32"),
        ({"use_amp": None}, "fp32"),
        ({"use_amp": True, "precision": "bf16"}, "bf16"),
        ({"precision": "bf16"}, "bf16"),
    ],
    ids=str,
)
def test_use_amp_is_a_precision(asked: dict[str, Any], precision: str, tiny_corpus: Path, tmp_path: Path) -> None:
    assert TrainingSpec.model_validate(asked).precision == precision
    train(tiny_run(tiny_corpus, training={**asked, "train_steps": 2}), tmp_path)
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint.metadata["training_config"]["use_amp"] is (precision != "fp32")
    assert bool(checkpoint.training_state()["scaler"]) is (precision == "fp16")
    assert all(tensor.dtype == torch.float32 for tensor in checkpoint.weights().values())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_really_lower(precision: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """Close to full precision, but not the same."""
    for name in ("fp32", precision):
        train(tiny_run(tiny_corpus, training={"precision": name, "learning_rate": 1e-3}), tmp_path / name)
    assert losses(tmp_path / precision) != losses(tmp_path / "fp32")
    assert losses(tmp_path / precision) == pytest.approx(losses(tmp_path / "fp32"), rel=0.02)
