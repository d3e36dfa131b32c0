"""A damaged checkpoint is recognised, passed over with a warning, and costs time but not a single bit."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.errors import UserError
from lockstep.training.checkpoint import (
    METADATA,
    TRAINING_STATE,
    WEIGHTS,
    DamagedCheckpoint,
    checkpoint_steps,
    load,
    newest_checkpoint,
    open_checkpoint,
)
from lockstep.training.run import train
from tests.training.faults import Crash, crash, crashing
from tests.training.tiny_runs import assert_same_run, tiny_run


def flip(path: Path, share: float) -> None:
    """Turn over one bit."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_number(path: Path) -> None:
    metadata = json.loads(path.read_text())
    metadata["token_metrics"]["total_tokens_processed"] += 1
    path.write_text(json.dumps(metadata))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights truncated": lambda folder: truncate(folder / WEIGHTS),
    "training state truncated": lambda folder: truncate(folder / TRAINING_STATE),
    "metadata truncated": lambda folder: (folder / METADATA).write_text((folder / METADATA).read_text()[:-20]),
    "weights empty": lambda folder: (folder / WEIGHTS).write_bytes(b""),
    "metadata empty": lambda folder: (folder / METADATA).write_bytes(b""),
    "metadata not text": lambda folder: (folder / METADATA).write_bytes(b"\xff\xfe\x00"),
    "metadata another thing": lambda folder: (folder / METADATA).write_text("[1, 2]"),
    "weights missing": lambda folder: (folder / WEIGHTS).unlink(),
    "training state missing": lambda folder: (folder / TRAINING_STATE).unlink(),
    "metadata missing": lambda folder: (folder / METADATA).unlink(),
    "a number changed": lambda folder: change_number(folder / METADATA),
    **{
        f"bit flipped in {name} at {share}": lambda folder, name=name, share=share: flip(folder / name, share)  # type: ignore[misc] # mypy cannot infer a lambda with defaults
        for name in (WEIGHTS, TRAINING_STATE, METADATA)
        for share in (0.0, 0.5, 0.97)
    },
}


@pytest.fixture(scope="module")
def calm(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("calm")
    train(tiny_run(tiny_corpus), folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, ended by a crash after its checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("stopped")
    crash(tiny_run(tiny_corpus), folder, "a step is taken", 11)
    assert checkpoint_steps(folder) == [4, 8]
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return shutil.copytree(stopped, tmp_path / "run")


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_checkpoint_before_is_used(damage: str, folder: Path, calm: Path, tiny_corpus: Path) -> None:
    DAMAGE[damage](folder / "checkpoint-8")
    with pytest.raises(DamagedCheckpoint):
        open_checkpoint(folder / "checkpoint-8")
    with pytest.warns(UserWarning, match=r"checkpoint-8: damaged, using an earlier checkpoint: ") as told:
        found = newest_checkpoint(folder)
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert found is not None
    assert found.step == 4
    with pytest.warns(UserWarning, match="checkpoint-8: damaged"):
        train(tiny_run(tiny_corpus), folder)
    assert_same_run(calm, folder)
    open_checkpoint(folder / "checkpoint-8")
    assert list(folder.glob(".checkpoint-*")) == []


def test_without_any_sound_checkpoint_the_run_starts_again(folder: Path, calm: Path, tiny_corpus: Path) -> None:
    for step in (4, 8):
        flip(folder / f"checkpoint-{step}" / WEIGHTS, 0.5)
    with pytest.warns(UserWarning, match="damaged") as told:
        train(tiny_run(tiny_corpus), folder)
    named = [re.search(r"checkpoint-\d+", str(one.message)) for one in told]
    assert [one[0] for one in named if one] == ["checkpoint-8", "checkpoint-4"]
    assert_same_run(calm, folder)


def test_what_a_kill_left_half_written_is_ignored_and_swept(folder: Path, calm: Path, tiny_corpus: Path) -> None:
    shutil.copytree(folder / "checkpoint-8", folder / ".checkpoint-11.0a1b2c3d.partial")
    (folder / ".checkpoint-11.0a1b2c3d.partial" / METADATA).unlink()
    shutil.copytree(folder / "checkpoint-4", folder / ".checkpoint-2.deleted")
    shutil.copytree(folder / "checkpoint-4", folder / ".checkpoint-3.damaged")
    (folder / ".tokenizer.5e6f7081.partial").mkdir()
    (folder / ".metrics.jsonl.4d5e6f70.partial").write_text('{"step": 1')
    found = newest_checkpoint(folder)
    assert found is not None
    assert found.step == 8
    train(tiny_run(tiny_corpus), folder)
    assert_same_run(calm, folder)
    assert [path.name for path in folder.glob(".*")] == [".lock"]


@pytest.mark.parametrize("call", range(1, 8))
def test_a_damaged_checkpoint_stays_until_it_is_replaced(call: int, folder: Path, tiny_corpus: Path) -> None:
    """Whatever stops the writing of its successor, the damaged one can still be looked into."""
    flip(folder / "checkpoint-8" / WEIGHTS, 0.5)
    damaged = (folder / "checkpoint-8" / WEIGHTS).read_bytes()
    with pytest.warns(UserWarning, match="damaged"), crashing("a file reaches the disk", call), pytest.raises(Crash):
        train(tiny_run(tiny_corpus), folder)
    assert (folder / "checkpoint-8" / WEIGHTS).read_bytes() == damaged


@pytest.mark.parametrize("call", [1, 2])
def test_not_even_between_two_names_is_it_lost(call: int, folder: Path, calm: Path, tiny_corpus: Path) -> None:
    """It makes room for its successor under another name first."""
    flip(folder / "checkpoint-8" / WEIGHTS, 0.5)
    damaged = (folder / "checkpoint-8" / WEIGHTS).read_bytes()
    with pytest.warns(UserWarning, match="damaged"), crashing("a folder gets its name", call), pytest.raises(Crash):
        train(tiny_run(tiny_corpus), folder)
    places = (folder / "checkpoint-8" / WEIGHTS, folder / ".checkpoint-8.damaged" / WEIGHTS)
    assert [place.read_bytes() for place in places if place.exists()] == [damaged]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the damage may be told again, depending on where it crashed
        train(tiny_run(tiny_corpus), folder)
    assert_same_run(calm, folder)
    assert list(folder.glob(".checkpoint-*")) == []


def test_pruning_never_takes_a_sound_checkpoint_for_a_damaged_one(folder: Path, calm: Path, tiny_corpus: Path) -> None:
    """A damaged checkpoint of a later step does not count among those kept."""
    flip(folder / "checkpoint-8" / WEIGHTS, 0.5)
    run = tiny_run(tiny_corpus, training={"keep_last": 1, "save_interval": 3})
    with pytest.warns(UserWarning, match="damaged"):
        crash(run, folder, "a step is taken", 4)
    assert checkpoint_steps(folder) == [6, 8]
    assert open_checkpoint(folder / "checkpoint-6").step == 6
    with pytest.warns(UserWarning, match="damaged"):
        train(run, folder)
    assert checkpoint_steps(folder) == [9, 12]
    assert_same_run(calm, folder)


def test_loading_a_damaged_checkpoint_is_refused_in_one_line(folder: Path) -> None:
    flip(folder / "checkpoint-8" / TRAINING_STATE, 0.5)
    with pytest.raises(UserError, match=r"checkpoint-8: damaged checkpoint: training_state\.pt does not match"):
        load(folder / "checkpoint-8")
    with pytest.warns(UserWarning, match="damaged"):
        load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder / "checkpoint-4")
