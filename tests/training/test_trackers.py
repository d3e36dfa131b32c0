"""Trackers: the real libraries where they are installed, and a run that outlives all of them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.logging import LoggingSpec
from lockstep.training.trackers import ForgivingTracker, Tracker, open_trackers

CONFIG = {"training": {"learning_rate": 3e-4}}


def opened(folder: Path, resume_step: int = 0, **fields: Any) -> list[Tracker]:
    return open_trackers(LoggingSpec(**fields), "a run", folder, CONFIG, resume_step)


def importable(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library says about its own dependencies is not tested here
        return pytest.importorskip(name, reason=f"{name} is not installed")


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
    return [(one.step, one.value) for one in events.Scalars(tag)]


def test_no_tracker_is_opened_unasked(tmp_path: Path) -> None:
    assert opened(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_holds_what_was_logged(tmp_path: Path) -> None:
    importable("tensorboard")
    [tracker] = opened(tmp_path, trackers=("tensorboard",))
    for step in range(1, 5):
        tracker.log(step, {"loss": 1 / step, "tokens_processed": 100.0 * step})
    tracker.close()
    folder = tmp_path / "tensorboard"
    assert [value for _, value in scalars(folder, "loss")] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert scalars(folder, "tokens_processed") == [(step, 100.0 * step) for step in range(1, 5)]


def test_tensorboard_hides_what_was_logged_beyond_the_checkpoint(tmp_path: Path) -> None:
    importable("tensorboard")
    for resume_step, steps, value in ((0, range(1, 6), 1.0), (3, range(4, 7), 2.0)):
        [tracker] = opened(tmp_path, resume_step, trackers=("tensorboard",))
        for step in steps:
            tracker.log(step, {"loss": value})
        tracker.close()
    expected = [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    assert scalars(tmp_path / "tensorboard", "loss") == expected


# What other packages warn of, in their own code and of each other's.
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_offline_into_the_run_folder_under_one_id(tmp_path: Path) -> None:
    importable("wandb")
    for resume_step in (0, 1):
        [tracker] = opened(tmp_path, resume_step, use_wandb=True, offline=True, tags=("test",))
        tracker.log(resume_step + 1, {"loss": 1.0, "tokens_processed": 10.0})
        tracker.close()
    name = (tmp_path / "wandb-id.txt").read_text().strip()
    assert name
    records = list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb"))
    assert len(records) == 2
    # A process of wandb's own writes them, and may do so after it has said goodbye.
    until = time.monotonic() + 60
    while not all(b"tokens_processed" in record.read_bytes() for record in records):
        assert time.monotonic() < until
        time.sleep(0.1)


# Likewise.
@pytest.mark.filterwarnings("ignore")
def test_trackio_keeps_one_run_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    if "trackio" in sys.modules:
        pytest.skip("trackio has already fixed where it writes")
    importable("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    for resume_step in (0, 2):
        [tracker] = opened(tmp_path, resume_step, trackers=("trackio",), project="lockstep-test")
        for step in (resume_step + 1, resume_step + 2):
            tracker.log(step, {"loss": 1 / step})
        tracker.close()
    logs = SQLiteStorage.get_logs("lockstep-test", "a run")
    assert [(one["step"], one["loss"]) for one in logs] == [(1, 1.0), (2, 1 / 2), (3, 1 / 3), (4, 1 / 4)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb"), ("trackio", "trackio"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_library_that_is_missing_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way to make an import fail
    with pytest.warns(UserWarning, match=f"{name} is not installed") as caught:
        assert opened(tmp_path, trackers=(name,)) == []
    assert len(caught) == 1
    assert "pip install 'lockstep-lm[track]'" in str(caught[0].message)
    assert "\n" not in str(caught[0].message)


def test_a_tracker_that_cannot_open_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable("tensorboard")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(UserWarning, match="wandb is not installed"):
        assert len(opened(tmp_path, use_wandb=True, trackers=("tensorboard",))) == 1


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    importable("tensorboard")
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.warns(UserWarning, match="tensorboard could not be opened") as caught:
        assert opened(file, trackers=("tensorboard",)) == []
    assert len(caught) == 1


class Failing:
    """A tracker whose service is down: it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.asked += 1
        raise ConnectionError("no route\nto host")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def test_a_tracker_that_fails_is_dropped_after_one_warning() -> None:
    failing = Failing()
    tracker = ForgivingTracker("wandb", failing)
    with pytest.warns(UserWarning, match=r"wandb failed at step 7 \(no route to host\)") as caught:
        tracker.log(7, {"loss": 1.0})
    assert len(caught) == 1
    # A second warning would be an error here.
    tracker.log(8, {"loss": 1.0})
    tracker.close()
    assert failing.asked == 1


def test_a_tracker_that_cannot_close_is_one_warning() -> None:
    tracker = ForgivingTracker("wandb", Failing())
    with pytest.warns(UserWarning, match="wandb failed to close") as caught:
        tracker.close()
    assert len(caught) == 1
    tracker.close()
