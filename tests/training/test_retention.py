"""What a run folder keeps, and whom it lets in."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import UserError
from lockstep.training.checkpoint import checkpoint_steps, open_checkpoint
from lockstep.training.run import train
from lockstep.training.run_folder import locked
from tests.training.faults import crash
from tests.training.processes import only_line
from tests.training.processes import run as run_command
from tests.training.tiny_runs import assert_same_run, tiny_run, write_config


@pytest.mark.parametrize(
    ("training", "kept"),
    [
        ({"save_interval": 2, "keep_last": 2}, [8, 10, 12]),
        ({"save_interval": 2, "keep_last": 1}, [10, 12]),
        ({"save_interval": 5, "keep_last": 50}, [5, 10, 12]),
        ({"save_interval": None}, [12]),
        ({"save_interval": 500}, [12]),
        ({"save_interval": 2, "keep_last": 1, "checkpoint_schedule": (3, 4)}, [1, 3, 4, 10, 12]),
        ({"save_interval": 4, "keep_last": 1, "checkpoint_every_tokens": 256}, [1, 4, 8, 12]),
        ({"save_interval": 1, "keep_last": 2, "train_steps": 1}, [1]),
    ],
    ids=str,
)
def test_scheduled_checkpoints_stay_and_others_make_room(
    training: dict[str, Any], kept: list[int], tiny_corpus: Path, tmp_path: Path
) -> None:
    train(tiny_run(tiny_corpus, training=training), tmp_path)
    assert checkpoint_steps(tmp_path) == kept
    assert list(tmp_path.glob(".checkpoint-*")) == []


def test_metadata_tells_scheduled_from_unscheduled(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus, training={"save_interval": 5, "checkpoint_schedule": (3,)}), tmp_path)
    told = {step: open_checkpoint(tmp_path / f"checkpoint-{step}").metadata["scheduled"] for step in (1, 3, 5, 10, 12)}
    assert told == {1: True, 3: True, 5: False, 10: False, 12: True}


def test_each_checkpoint_names_the_one_before(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus), tmp_path)
    first, second, third = (open_checkpoint(tmp_path / f"checkpoint-{step}") for step in (4, 8, 12))
    assert first.metadata["parent_digest"] is None
    assert second.metadata["parent_digest"] == first.digest
    assert third.metadata["parent_digest"] == second.digest


def test_a_second_process_is_refused(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus)
    config, folder = write_config(run, tmp_path / "run.yaml"), tmp_path / "run"
    with locked(folder):
        refused = run_command(config, folder)
    assert refused.returncode == 2
    assert only_line(refused.stderr) == f"lockstep: {folder}: another process is training here"
    assert checkpoint_steps(folder) == []
    train(run, folder)
    assert checkpoint_steps(folder) == [4, 8, 12]


def test_a_lock_that_fails_for_another_reason_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems know no locks; nobody else is training there for that."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with (
        pytest.raises(UserError, match=f"^{tmp_path}: cannot be used as a run folder: No locks available$"),
        locked(tmp_path),
    ):
        pytest.fail("the folder counts as held")


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"^{tmp_path}/file/run: .*Not a directory$"), locked(tmp_path / "file" / "run"):
        pytest.fail("the folder counts as held")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"training": {"learning_rate": 0.02}}, "training.learning_rate = 0.01, but 0.02 is asked for"),
        ({"training": {"train_steps": 13}}, "training.train_steps = 12, but 13 is asked for"),
        ({"training": {"precision": "bf16"}}, "training.precision = fp32, but bf16 is asked for"),
        ({"data": {"batch_size": 8}}, "data.batch_size = 4, but 8 is asked for"),
        ({"model": {"depth": 2}}, "model.depth = 1, but 2 is asked for"),
        ({"evaluation": {"sequences": 9}}, "evaluation.sequences = 8, but 9 is asked for"),
    ],
    ids=str,
)
def test_another_run_is_refused(changed: dict[str, Any], told: str, tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refused:
        train(tiny_run(tiny_corpus, **changed), tmp_path)
    assert str(refused.value).startswith(f"{tmp_path} holds a run with {told}")
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_text_under_the_old_name_is_refused(tiny_corpus: Path, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "text.txt", tmp_path / "run"
    corpus.write_text(tiny_corpus.read_text())
    crash(tiny_run(corpus), folder, "a step is taken", 7)
    corpus.write_text(tiny_corpus.read_text().replace("cat", "rat"))
    with pytest.raises(UserError, match=r"checkpoint-4: trained with corpus_digest \w+, but .* now has \w+"):
        train(tiny_run(corpus), folder)
    assert checkpoint_steps(folder) == [4]


def test_what_does_not_decide_the_outcome_may_change(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus), tmp_path / "calm")
    folder = tmp_path / "changed"
    crash(tiny_run(tiny_corpus), folder, "a step is taken", 3)
    changed: dict[str, Any] = {"save_interval": 3, "keep_last": 5, "output_dir": "elsewhere", "distribution": "fsdp"}
    train(tiny_run(tiny_corpus, training=changed, logging={"log_interval": 5, "tags": ("other",)}), folder)
    assert checkpoint_steps(folder) == [3, 6, 9, 12]
    assert_same_run(tmp_path / "calm", folder)


def test_a_run_may_refuse_to_go_on(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, training={"resume_from_checkpoint": False})
    train(run, tmp_path)
    with pytest.raises(UserError, match=r"resume_from_checkpoint is false, but .* already holds checkpoints"):
        train(run, tmp_path)
