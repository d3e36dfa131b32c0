"""A run that was interrupted anywhere, by anything, ends with the same bits as one that was not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.training import OptimizerName
from lockstep.training.checkpoint import WEIGHTS, checkpoint_steps, newest_checkpoint, open_checkpoint
from lockstep.training.loop import step_seed
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.faults import PLACES, count_calls, crash, interrupt
from tests.training.tiny_runs import ARCHITECTURES, assert_same_run, losses, tiny_run

OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "muon", "adopt-atan2")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_crashes_and_signals_leave_no_trace(
    architecture: str, optimizer: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = tiny_run(tiny_corpus, architecture, training={"optimizer": optimizer})
    train(run, tmp_path / "calm")
    folder = tmp_path / "troubled"
    crash(run, folder, "a step is taken", 3)
    assert checkpoint_steps(folder) == []
    crash(run, folder, "a folder gets its name", 2)
    assert checkpoint_steps(folder) == [4]
    interrupt(run, folder, 3)
    assert checkpoint_steps(folder) == [4, 7]
    crash(run, folder, "the training state is written", 1)
    assert checkpoint_steps(folder) == [4, 7]
    crash(run, folder, "a step has been taken", 4)
    assert checkpoint_steps(folder) == [7, 8]
    train(run, folder)
    assert_same_run(tmp_path / "calm", folder)


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_every_single_place(place: str, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, "transformer++", training={"train_steps": 6, "save_interval": 3})
    calls = count_calls(run, tmp_path / "calm", place)
    assert calls >= 2
    for call in range(1, calls + 1):
        folder = tmp_path / f"call-{call}"
        crash(run, folder, place, call)
        train(run, folder)
        assert_same_run(tmp_path / "calm", folder)
        assert sorted(folder.glob(".checkpoint-*")) == []
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "training",
    [
        {"precision": "fp32", "gradient_accumulation_steps": 2},
        {"precision": "bf16", "gradient_accumulation_steps": 2},
        {"precision": "fp16", "gradient_accumulation_steps": 2},
        {"precision": "fp16", "optimizer": "muon", "max_grad_norm": None},
        {"use_gradient_checkpointing": True},
        {"label_smoothing": 0.1, "schedule": "one-cycle", "save_interval": 1, "keep_last": 1},
    ],
    ids=str,
)
def test_accumulation_and_precision(training: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, "gpt2", training=training)
    train(run, tmp_path / "calm")
    folder = tmp_path / "troubled"
    crash(run, folder, "a step is taken", 7)
    interrupt(run, folder, 2)
    crash(run, folder, "a file reaches the disk", 5)
    train(run, folder)
    assert_same_run(tmp_path / "calm", folder)


def test_the_gradient_scaler_is_part_of_the_state(tiny_corpus: Path, tmp_path: Path) -> None:
    """Half precision overflows at the scaler's first scale, so that a fresh scaler would not pass for a saved one."""
    run = tiny_run(tiny_corpus, "gpt2", training={"precision": "fp16", "learning_rate": 0.5, "train_steps": 30})
    train(run, tmp_path / "calm")
    newest = newest_checkpoint(tmp_path / "calm")
    assert newest is not None
    assert newest.training_state()["scaler"]["scale"] < 65536
    skipped = [record["step"] for record in read_log(tmp_path / "calm" / "metrics.jsonl") if record.get("skipped")]
    assert skipped
    assert skipped[0] < 17, "the scaler has nothing to remember yet"
    interrupt(run, tmp_path / "troubled", 17)
    train(run, tmp_path / "troubled")
    assert_same_run(tmp_path / "calm", tmp_path / "troubled")


def cooled_training() -> dict[str, Any]:
    """A trunk of 20 steps with branches that leave at steps 6 and 9 and are cooled at steps 10 and 15."""
    return {"schedule": "wsd", "train_steps": 20, "decay_ratio": 0.4, "cooled_at": (0.5, 0.75), "save_interval": 2}


@pytest.mark.parametrize("call", [22, 26, 28])
def test_an_interruption_inside_a_branch(call: int, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, "lstm", training=cooled_training())
    calm, folder = tmp_path / "calm", tmp_path / "troubled"
    train(run, calm)
    crash(run, folder, "a step is taken", call)
    assert checkpoint_steps(folder)[-1] == 20, "the trunk was not finished before its branches"
    assert not (folder / "cooled-15" / "checkpoint-15").exists()
    interrupt(run, folder, 1)
    train(run, folder)
    assert_same_run(calm, folder)
    for branch, end in (("cooled-10", 10), ("cooled-15", 15)):
        assert checkpoint_steps(folder / branch)[-1] == end
        assert_same_run(calm / branch, folder / branch)


def test_a_branch_leaves_the_trunk_where_it_should(tiny_corpus: Path, tmp_path: Path) -> None:
    """The branch is the run one gets by asking for its end as the last step of a run with the same warm-up."""
    training = {**cooled_training(), "warmup_steps": 2}
    train(tiny_run(tiny_corpus, "lstm", training=training), tmp_path / "trunk")
    alone = {**training, "train_steps": 10, "cooled_at": ()}
    train(tiny_run(tiny_corpus, "lstm", training=alone), tmp_path / "alone")
    branch = tmp_path / "trunk" / "cooled-10"
    weights = [folder / "checkpoint-10" / WEIGHTS for folder in (branch, tmp_path / "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert losses(branch) == losses(tmp_path / "alone")[6:], "a branch does not repeat its trunk"
    left = open_checkpoint(tmp_path / "trunk" / "checkpoint-6")
    assert open_checkpoint(branch / "checkpoint-8").metadata["parent_digest"] == left.digest


def test_a_finished_run_is_left_alone(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, training=cooled_training())
    train(run, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    train(run, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_every_step_and_process_drops_out_anew() -> None:
    seeds = {step_seed(seed, step, rank) for seed in range(5) for step in range(50) for rank in range(4)}
    assert len(seeds) == 1000
    assert step_seed(3, 4, 1) == step_seed(3, 4, 1)
    assert all(0 <= one < 2**63 for one in seeds)


def test_the_seed_matters(tiny_corpus: Path, tmp_path: Path) -> None:
    """The comparison that all of this rests on can fail."""
    run = tiny_run(tiny_corpus)
    train(run, tmp_path / "one")
    train(run.model_copy(update={"init_seed": 12}), tmp_path / "other")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "one", tmp_path / "other")
