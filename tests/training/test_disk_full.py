"""A disk that fills up while a checkpoint is written costs one line, not a checkpoint."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.config.run import RunSpec
from lockstep.training.checkpoint import TRAINING_STATE, WEIGHTS, checkpoint_steps, open_checkpoint
from lockstep.training.run import train
from tests.training.processes import only_line, run
from tests.training.tiny_runs import assert_same_run, tiny_run, write_config


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """A file system in memory that holds no more than this."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def free_bytes(place: Path) -> int:
    facts = os.statvfs(place)
    return facts.f_bavail * facts.f_frsize


def saving_run(corpus: Path) -> RunSpec:
    """Every checkpoint is kept, so that the disk fills up."""
    return tiny_run(corpus, training={"checkpoint_schedule": (2, 4, 6, 8, 10)})


def checkpoint_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_full_disk(share: float, tiny_corpus: Path, tmp_path: Path) -> None:
    """The disk has room for two checkpoints and for a share of the third."""
    settings = saving_run(tiny_corpus)
    train(settings, tmp_path / "calm")
    config = write_config(settings, tmp_path / "run.yaml")
    room = checkpoint_size(tmp_path / "calm" / "checkpoint-2")
    with small_disk(tmp_path / "disk", 8 * room // 1024) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(free_bytes(disk) - int((2.5 + share) * room)))
        ended = run(config, disk / "run")
        assert ended.returncode == 2, ended.stderr
        assert only_line(ended.stderr).endswith("No space left on device; earlier checkpoints are intact")
        kept = checkpoint_steps(disk / "run")
        assert kept
        assert kept[-1] < 12
        for step in kept:
            open_checkpoint(disk / "run" / f"checkpoint-{step}")
        assert list((disk / "run").glob(".*.partial")) == []
        ballast.unlink()
        train(settings, disk / "run")
        assert_same_run(tmp_path / "calm", disk / "run")


def test_a_disk_that_was_full_before(tiny_corpus: Path, tmp_path: Path) -> None:
    config = write_config(saving_run(tiny_corpus), tmp_path / "run.yaml")
    with small_disk(tmp_path / "disk", 64) as disk:
        (disk / "ballast").write_bytes(bytes(free_bytes(disk)))
        ended = run(config, disk / "run")
    assert ended.returncode == 2, ended.stderr
    assert "No space left on device" in only_line(ended.stderr)


@pytest.mark.parametrize("file", [WEIGHTS, TRAINING_STATE])
def test_a_file_that_may_not_grow(file: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """A limit on the size of files, below that of one of the checkpoint's; metrics and configuration are smaller."""
    settings = saving_run(tiny_corpus)
    train(settings, tmp_path / "calm")
    config, folder = write_config(settings, tmp_path / "run.yaml"), tmp_path / "run"
    limit = (tmp_path / "calm" / "checkpoint-2" / file).stat().st_size - 100
    ended = run(config, folder, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert ended.returncode == 2, ended.stderr
    assert only_line(ended.stderr).endswith("File too large; earlier checkpoints are intact")
    assert checkpoint_steps(folder) == []
    assert list(folder.glob(".*.partial")) == []
    train(settings, folder)
    assert_same_run(tmp_path / "calm", folder)
