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
from tests.kernels.patience import require_patience

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


HASTY = {
    "a load": "ld.global.b32 %r1, [ %rd1 + 0 ];",
    "a load of 16 bytes": "@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];",
    "a copy": "@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, 0x10;",
    "an address made of two": "sub.s64 %rd3, %rd2, %rd1;\nld.global.b32 %r1, [ %rd3 + 0 ];",
    "an address from elsewhere": "ld.global.b32 %r1, [ %rd9 + 0 ];",
    "a store": "st.global.b32 [ %rd2 + 0 ], { %r1 };",
    "a bulk copy": "cp.async.bulk.tensor.1d.shared::cluster.global [ %r1 ], [ %rd2, { %r2 } ], [ %r3 ];",
    "the next one": "griddepcontrol.launch_dependents;",
}


@pytest.mark.parametrize("what", HASTY)
def test_what_comes_before_the_waiting_is_seen(what: str) -> None:
    """Of queries nothing may; of what the kernel wrote a token ago all loads may."""
    pointers = "ld.param.b64 %rd1, [token_kernel_param_0];\nld.param.b64 %rd2, [token_kernel_param_1];\n"
    early = "ld.global.b32 %r1, [ %rd2 + 0 ];\ncp.async.ca.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], 0x4, 0x4;\n"
    behind = "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\nld.global.b32 %r1, [ %rd1 + 0 ];\n"
    names = ["queries", "point_1"]
    require_patience("token_kernel", names, pointers + early + behind)
    with pytest.raises(AssertionError, match="token_kernel"):
        require_patience("token_kernel", names, pointers + HASTY[what] + "\n" + behind)
    with pytest.raises(AssertionError, match="does not wait"):
        require_patience("token_kernel", names, pointers + early)
