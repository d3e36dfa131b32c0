"""Small studies, and what makes two of them the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.config.files import dump_yaml
from lockstep.config.spec import validate
from lockstep.config.study import StudySpec

HOLD_TIMES = ("timings.jsonl", "measured.json", "report.html", "summary.md", "metadata.json")
"""Files in which seconds, bytes in use or dates stand."""
HOLD_TIMES_INSIDE = ("figures", "measured", "model_state")
"""Folders of such files; a picture of a model's state names no time, but lies beside those that do."""


def tiny_fields(corpus: Path, **changes: Any) -> dict[str, Any]:
    """Two contestants by hand, two repeats, a cooled point, everything measured."""
    fields: dict[str, Any] = {
        "study_name": "tiny",
        "data": {"training_corpus": str(corpus), "batch_size": 4, "max_sequence_length": 16},
        "training": {
            "train_steps": 8,
            "learning_rate": 1e-2,
            "schedule": "wsd",
            "cooled_at": [0.5],
            "warmup_steps": 1,
            "save_interval": 2,
            "device": "cpu",
        },
        "evaluation": {"interval": 4, "sequences": 8},
        "logging": {"log_interval": 3},
        "seeds": 2,
        "measurements": {
            "sequences": 6,
            "lengths": [8, 16],
            "contexts": [8, 16],
            "decoded": 2,
            "batch_lengths": [8],
            "batch_size": 2,
            "rounds": 1,
            "prompts": ["the "],
            "sample_tokens": 8,
        },
        "contestants": {
            "transformer++": {"dim": 16, "depth": 1, "heads": 2},
            "memory": {"architecture": "titans-mac", "dim": 16, "depth": 1, "heads": 2, "segment": 8, "chunk": 4},
        },
    }
    return {**fields, **changes}


def tiny_study(corpus: Path, **changes: Any) -> StudySpec:
    return validate(StudySpec, tiny_fields(corpus, **changes), "test")


def write_study(corpus: Path, path: Path, **changes: Any) -> Path:
    path.write_text(dump_yaml(json.loads(json.dumps(tiny_fields(corpus, **changes)))), encoding="utf-8")
    return path


def lasting_files(folder: Path) -> Iterator[Path]:
    """Every file that holds no measured time or memory, relative to the study's folder."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        timed = inside.name in HOLD_TIMES or set(inside.parts[:-1]) & set(HOLD_TIMES_INSIDE)
        if path.is_file() and not timed and inside.suffix != ".png" and inside.name != ".lock":
            yield inside


def assert_same_study(one: Path, other: Path) -> None:
    """Byte for byte, wherever no clock was read."""
    assert list(lasting_files(one)) == list(lasting_files(other))
    for inside in lasting_files(one):
        assert (one / inside).read_bytes() == (other / inside).read_bytes(), inside
