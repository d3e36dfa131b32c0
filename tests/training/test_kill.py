"""kill -9 at any moment, in the middle of writing a checkpoint too, and the run still ends with the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.config.run import RunSpec
from lockstep.training.run import train
from tests.training.processes import GIVE_UP_SECONDS, only_line, start, wait_for
from tests.training.tiny_runs import ARCHITECTURES, assert_same_run, tiny_run, write_config

Moment = Callable[[], bool]


def killable_run(corpus: Path, architecture: str = "gpt2") -> RunSpec:
    """40 steps, long enough to be hit, with a checkpoint after every second one."""
    return tiny_run(
        corpus,
        architecture,
        data={"batch_size": 8, "max_sequence_length": 32},
        training={"train_steps": 40, "save_interval": 2, "checkpoint_schedule": (10, 25)},
        logging={"log_interval": 1},
    )


def logged_steps(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.read_text().count('"tokens_processed"') if log.exists() else 0


def moment_of_writing(folder: Path) -> Moment:
    """While a checkpoint is being written."""
    return lambda: next(folder.glob(".checkpoint-*.partial"), None) is not None


def moment_of_progress(folder: Path, draw: random.Random) -> Moment:
    """Some steps further than now, and a random blink later."""
    aim, blink = logged_steps(folder) + draw.randint(1, 6), draw.uniform(0, 0.03)

    def come() -> bool:
        if logged_steps(folder) < aim:
            return False
        time.sleep(blink)
        return True

    return come


def kill(process: subprocess.Popen[str], moment: Moment) -> bool:
    """Whether the process was killed by us, rather than faster than us."""
    wait_for(moment, process)
    process.kill()
    process.communicate(timeout=GIVE_UP_SECONDS)
    return process.returncode == -signal.SIGKILL


def finish(config: Path, folder: Path) -> None:
    process = start(config, folder)
    _, stderr = process.communicate(timeout=GIVE_UP_SECONDS)
    assert process.returncode == 0, stderr


def test_killed_processes_leave_no_trace(tiny_corpus: Path, tmp_path: Path) -> None:
    run = killable_run(tiny_corpus)
    train(run, tmp_path / "calm")
    config, folder = write_config(run, tmp_path / "run.yaml"), tmp_path / "killed"
    draw = random.Random(5)
    assert kill(start(config, folder), moment_of_writing(folder))
    assert list(folder.glob(".checkpoint-*.partial")) or list(folder.glob("checkpoint-*"))
    assert kill(start(config, folder), moment_of_progress(folder, draw))
    assert kill(start(config, folder), moment_of_writing(folder))
    finish(config, folder)
    assert_same_run(tmp_path / "calm", folder)
    assert list(folder.glob(".checkpoint-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_saves_first(number: signal.Signals, tiny_corpus: Path, tmp_path: Path) -> None:
    run = killable_run(tiny_corpus)
    run = run.model_copy(update={"training": run.training.model_copy(update={"save_interval": None})})
    train(run, tmp_path / "calm")
    config, folder = write_config(run, tmp_path / "run.yaml"), tmp_path / "stopped"
    process = start(config, folder)
    assert wait_for(lambda: logged_steps(folder) >= 12, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=GIVE_UP_SECONDS)
    assert process.returncode == 128 + number
    step = max(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*"))
    assert f"stopped at step {step};" in only_line(stderr)
    assert logged_steps(folder) == step
    assert 12 <= step < 40
    train(run, folder)
    assert_same_run(tmp_path / "calm", folder)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_hundred_kills(architecture: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """17 kills for each of the six architectures, about half of them while a checkpoint is written."""
    run = killable_run(tiny_corpus, architecture)
    train(run, tmp_path / "calm")
    config = write_config(run, tmp_path / "run.yaml")
    draw, kills, rounds = random.Random(architecture), 0, 0
    while kills < 17:
        folder, rounds = tmp_path / f"round-{rounds}", rounds + 1
        while not (folder / "checkpoint-40").exists():
            moment = moment_of_writing(folder) if draw.random() < 0.5 else moment_of_progress(folder, draw)
            kills += kill(start(config, folder), moment)
        finish(config, folder)
        assert_same_run(tmp_path / "calm", folder)
