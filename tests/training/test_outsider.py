"""A run of an architecture that lies in a user's own file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.config.files import read_yaml
from lockstep.config.run import RunSpec
from lockstep.training.checkpoint import checkpoint_steps
from lockstep.training.run import train
from tests.training.faults import crash
from tests.training.processes import only_line
from tests.training.processes import run as run_command
from tests.training.tiny_runs import assert_same_run, tiny_run, write_config

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ema.py"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user works in, with an architecture of the user's own."""
    folder = tmp_path / "home"
    folder.mkdir()
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count('@architecture("ema")') == 1
    (folder / "mine.py").write_text(text.replace('@architecture("ema")', '@architecture("outsider")'), encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def outsider_run(corpus: Path) -> RunSpec:
    """Named as a user does: relative to the working directory."""
    return tiny_run(corpus, "mine.py:outsider")


def generate(folder: Path, elsewhere: Path) -> subprocess.CompletedProcess[str]:
    options = ("--prompt", "The cat", "--tokens", "4", "--seed", "1")
    command = [sys.executable, "-m", "lockstep.cli", "generate", str(folder), *options]
    return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)


def test_its_file_is_part_of_the_run(home: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    """Each command in a process of its own: a module that was imported once is not read again."""
    run, folder = outsider_run(tiny_corpus), tmp_path / "run"
    config, file = write_config(run, tmp_path / "run.yaml"), home / "mine.py"
    crash(run, folder, "a step is taken", 7)
    assert read_yaml(folder / "config.yaml")["model"]["architecture"] == f"{file.resolve()}:outsider"
    original = file.read_text(encoding="utf-8")
    file.write_text(original.replace("linspace(-6, 2, dim)", "linspace(-5, 2, dim)"), encoding="utf-8")
    edited = run_command(config, folder)
    assert edited.returncode == 2
    assert "mine.py:outsider was edited since" in only_line(edited.stderr)
    assert checkpoint_steps(folder) == [4]
    file.write_text(original, encoding="utf-8")
    assert run_command(config, folder).returncode == 0
    train(run, tmp_path / "calm")
    assert_same_run(tmp_path / "calm", folder)
    continued = generate(folder, tmp_path)
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout.startswith("The cat")
