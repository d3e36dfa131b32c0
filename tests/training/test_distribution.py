"""One process or two: the same tokens, losses and weights, and either goes on where the other stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.files import load_run
from lockstep.config.run import RunSpec
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.faults import crash
from tests.training.processes import GIVE_UP_SECONDS, command
from tests.training.tiny_runs import last_checkpoint, losses, tiny_run, without_dropout, write_config
from tests.training.worlds import CRASHED, train_together


def shared_run(corpus: Path, architecture: str = "transformer++", **training: Any) -> RunSpec:
    """Two micro-batches of four sequences, without dropout, which every process draws for itself."""
    exact = {"gradient_accumulation_steps": 2, "learning_rate": 1e-3, "use_tf32": False}
    model = {"depth": 2, **without_dropout(architecture)}
    return tiny_run(corpus, architecture, model=model, training={**exact, **training})


def assert_nearly_the_same_run(one: Path, other: Path) -> None:
    """The same stream to the last bit; sums taken in another order differ in their last digits.

    Muon orthogonalises in bfloat16, which makes more of such differences.
    """
    muon = load_run(one / "config.yaml").training.optimizer == "muon"
    loss_tolerance, weight_tolerance = (1e-5, 5e-4) if muon else (1e-6, 1e-5)
    mine, theirs = last_checkpoint(one), last_checkpoint(other)
    assert mine.step == theirs.step
    assert mine.metadata["stream_hash"] == theirs.metadata["stream_hash"]
    assert mine.metadata["token_metrics"] == theirs.metadata["token_metrics"]
    assert losses(one) == pytest.approx(losses(other), rel=loss_tolerance)
    scores = [
        [r["evaluation"]["loss"] for r in read_log(f / "metrics.jsonl") if "evaluation" in r] for f in (one, other)
    ]
    assert scores[0] == pytest.approx(scores[1], rel=loss_tolerance)
    a, b = mine.weights(), theirs.weights()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=weight_tolerance)


@pytest.mark.parametrize(
    ("distribution", "optimizer"), [("ddp", "adamw"), ("ddp", "adopt-atan2"), ("fsdp", "adamw"), ("fsdp", "muon")]
)
def test_two_processes_train_the_run_of_one(
    distribution: str, optimizer: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = shared_run(tiny_corpus, distribution=distribution, optimizer=optimizer)
    train(run, tmp_path / "one")
    assert train_together(run, tmp_path / "two", 2) == [0, 0]
    assert last_checkpoint(tmp_path / "two").metadata["world_size"] == 2
    assert_nearly_the_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    ("architecture", "distribution"), [("bert", "ddp"), ("bert", "fsdp"), ("gpt2", "ddp"), ("lstm", "fsdp")]
)
def test_architectures(architecture: str, distribution: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """A masked model's processes hold different numbers of targets."""
    run = shared_run(tiny_corpus, architecture, distribution=distribution)
    train(run, tmp_path / "one")
    assert train_together(run, tmp_path / "two", 2) == [0, 0]
    assert_nearly_the_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    ("before", "distribution", "after", "optimizer"),
    [(2, "ddp", 1, "adamw"), (2, "fsdp", 1, "muon"), (2, "fsdp", 1, "adopt-atan2"), (1, "fsdp", 2, "adamw")],
)
def test_another_number_of_processes_goes_on(
    before: int, distribution: str, after: int, optimizer: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = shared_run(tiny_corpus, distribution=distribution, optimizer=optimizer)
    folder = tmp_path / "changing"
    train(run, tmp_path / "one")
    if before == 1:
        crash(run, folder, "a step is taken", 11)
    else:
        assert train_together(run, folder, before, crash_at=11) == [CRASHED] * before
    assert last_checkpoint(folder).step == 8
    assert last_checkpoint(folder).metadata["world_size"] == before
    if after == 1:
        train(run, folder)
    else:
        assert train_together(run, folder, after) == [0] * after
    assert last_checkpoint(folder).metadata["world_size"] == after
    assert_nearly_the_same_run(tmp_path / "one", folder)


def test_cooled_branches_in_two_processes(tiny_corpus: Path, tmp_path: Path) -> None:
    run = shared_run(tiny_corpus, schedule="wsd", cooled_at=(0.5,), decay_ratio=0.4)
    train(run, tmp_path / "one")
    crash(run, tmp_path / "two", "a step is taken", 6)
    assert train_together(run, tmp_path / "two", 2) == [0, 0]
    assert_nearly_the_same_run(tmp_path / "one", tmp_path / "two")
    assert_nearly_the_same_run(tmp_path / "one" / "cooled-6", tmp_path / "two" / "cooled-6")


def test_a_batch_that_cannot_be_shared_is_refused(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, data={"batch_size": 3})
    assert train_together(run, tmp_path / "run", 2) == [2, 2]
    assert not (tmp_path / "run").exists()


def torchrun(run: RunSpec, folder: Path) -> subprocess.CompletedProcess[str]:
    config = write_config(run, folder.with_suffix(".yaml"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, *command(config, folder)[1:]], capture_output=True, text=True, timeout=GIVE_UP_SECONDS
    )


def test_torchrun_starts_it_all(tiny_corpus: Path, tmp_path: Path) -> None:
    run = shared_run(tiny_corpus, distribution="fsdp")
    train(run, tmp_path / "one")
    ended = torchrun(run, tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert_nearly_the_same_run(tmp_path / "one", tmp_path / "two")
    assert ended.stdout.count("training  loss") == 1, "only the main process reports"


def test_torchrun_passes_on_a_refusal(tiny_corpus: Path, tmp_path: Path) -> None:
    ended = torchrun(tiny_run(tiny_corpus, data={"batch_size": 3}), tmp_path / "two")
    assert ended.returncode != 0
    told = [line for line in ended.stderr.splitlines() if line.startswith("lockstep: ")]
    assert set(told) == {"lockstep: data.batch_size 3 is not divisible by the 2 processes that share it"}
    assert "exitcode  : 2" in ended.stderr
    assert "raise UserError" not in ended.stderr
