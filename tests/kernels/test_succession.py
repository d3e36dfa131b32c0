"""Kernels begin early unless that is not wanted, on a device that can, under a promise that decoders alone give."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.kernels import succession
from lockstep.kernels.succession import started, token_by_token
from lockstep.models.decoding import Decoder
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

ON_A_GPU: Any = SimpleNamespace(device=torch.device("cuda", 0))
EARLY, IN_TURN = {"OVERLAPS": True, "launch_pdl": True}, {"OVERLAPS": False}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    succession.overlaps.cache_clear()
    monkeypatch.delenv("LOCKSTEP_PDL", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    yield
    succession.overlaps.cache_clear()


def test_it_takes_a_promise() -> None:
    assert started(ON_A_GPU) == IN_TURN
    with token_by_token():
        assert started(ON_A_GPU) == EARLY
    assert started(ON_A_GPU) == IN_TURN


@pytest.mark.parametrize("missing", ["the wish", "Hopper", "CUDA", "a GPU"])
def test_and_all_of_the_rest(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "the wish":
        monkeypatch.setenv("LOCKSTEP_PDL", "0")
    elif missing == "Hopper":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    elif missing == "CUDA":
        monkeypatch.setattr(torch.version, "hip", "6.4")
    with token_by_token():
        assert started(torch.zeros(1) if missing == "a GPU" else ON_A_GPU) == IN_TURN


def test_decoders_alone_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls `step` may have written the state just before."""
    model = build("gru", vocab_size=5, dim=8, depth=1, heads=1)
    found, step = [], LanguageModel.step

    def seen(self: LanguageModel, tokens: Tensor, state: Any) -> Any:
        found.append(started(ON_A_GPU))
        return step(self, tokens, state)

    monkeypatch.setattr(LanguageModel, "step", seen)
    token = torch.zeros(1, 1, dtype=torch.int64)
    state = model.initial_state(1)
    model.step(token, state)
    Decoder(model, state).step(token)
    model.step(token, state)
    assert found == [IN_TURN, EARLY, IN_TURN]
