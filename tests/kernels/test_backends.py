"""A backend that was not chosen does not run, whatever could."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.config.training import Backend
from lockstep.errors import UserError
from lockstep.kernels import fla
from lockstep.kernels.attention import looking, window
from lockstep.kernels.backends import allows, missing, using
from lockstep.kernels.memory import token
from lockstep.kernels.recurrences import channel, decayed, delta, selective
from lockstep.kernels.recurrences import token as recurrence_token
from lockstep.kernels.rows import choice, gated, joined
from lockstep.kernels.rows import token as token_rows
from lockstep.memory import MemorySpec
from lockstep.memory.kernel import pays
from lockstep.training.run import train
from tests.kernels.memories import Size, harsh
from tests.training.tiny_runs import tiny_run

WHO: list[tuple[Backend, tuple[bool, bool]]] = [
    ("auto", (True, True)),
    ("torch", (False, False)),
    ("triton", (True, False)),
    ("fla", (False, True)),
]


@pytest.mark.parametrize(("chosen", "wanted"), WHO)
def test_who_may_run(chosen: Backend, wanted: tuple[bool, bool]) -> None:
    with using(chosen):
        assert (allows("triton"), allows("fla")) == wanted
        with using("torch"):
            assert not allows("triton")
        assert (allows("triton"), allows("fla")) == wanted
    assert allows("triton")
    assert allows("fla")


class Elsewhere:
    """Looks like a tensor on a GPU to whoever asks for no numbers."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape, self.dtype, self.device = torch.Size(shape), dtype, torch.device("cuda")


def each_that_takes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], bool]]:
    """Questions that every one of our kernels says yes to on a GPU."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr(fla, "unusable", lambda _: None)
    spec = MemorySpec(norm=True)
    memory = harsh(spec, Size(64, 128, 64), 1).memory
    rows: Any = Elsewhere(1, 2, 128, 64)
    one: Any = Elsewhere(1, 2, 1, 64)
    tokens: Any = Elsewhere(1, 128, 1024)
    single: Any = Elsewhere(1, 1, 192)
    short: Any = Elsewhere(1, 128, 16)
    state: Any = Elsewhere(1, 16, 1024, dtype=torch.float32)
    return {
        "memory": lambda: pays(rows, memory.weights, spec),
        "rows": lambda: choice.takes(tokens, 64, 4),
        "gated": lambda: gated.takes(tokens, tokens, tokens, 1),
        "joined": lambda: joined.takes([tokens], [rows]),
        "token rows": lambda: token_rows.takes(single, 64, 4),
        "window": lambda: window.takes(tokens, 64, 4, 16),
        "look": lambda: looking.takes(single, 64),
        "token": lambda: token.takes(one, memory.weights, spec),
        "recurrence token": lambda: recurrence_token.takes(one, state),
        "decayed": lambda: decayed.takes(rows, rows),
        "delta": lambda: delta.takes(rows, rows),
        "channel-decayed": lambda: channel.takes(rows, rows),
        "selective": lambda: selective.takes(short, tokens, state),
        "fla": lambda: fla.takes("decayed", rows),
    }


@pytest.mark.parametrize(("chosen", "wanted"), WHO)
def test_everybody_asks(chosen: Backend, wanted: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    ours, theirs = wanted
    asked = each_that_takes(monkeypatch)
    with using(chosen), torch.no_grad():
        found = {name: question() for name, question in asked.items()}
    assert found == {name: theirs if name == "fla" else ours for name in asked}


def test_what_is_missing_is_said(tmp_path: Any, tiny_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fla" else there(name))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert missing("auto", cpu) is missing("torch", cpu) is missing("triton", gpu) is None
    assert missing("triton", cpu) == "its kernels need a CUDA device, not cpu"
    assert missing("fla", gpu) == "fla-core is not installed (extra: gpu)"
    run = tiny_run(tiny_corpus, training={"backend": "fla"})
    with pytest.raises(UserError, match=r"training\.backend is fla, but fla-core is not installed"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()
