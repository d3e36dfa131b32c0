"""Counters and silent places are the same at every call, no two operators', and there before anything is recorded."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from lockstep.kernels import arrivals

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_kept", {})


def test_they_stay() -> None:
    """Also those that have become too few, by which a recorded graph may still count."""
    few = arrivals.counters("one", CPU, 3)
    assert arrivals.counters("one", CPU, len(few)) is few
    many = arrivals.counters("one", CPU, len(few) + 1)
    assert len(many) > len(few)
    assert arrivals.counters("one", CPU, 3) is many
    assert arrivals._kept["one", CPU, 0] == [few, many]
    assert not many.any()


def test_places_are_silent() -> None:
    """They say nothing, and no number says as little."""
    places = arrivals.silence("one", CPU, 5000)
    assert len(places) >= 5000
    assert (places == arrivals.SILENT.value).all()
    assert arrivals.silence("one", CPU, 3) is places
    assert arrivals.counters("one", CPU, 3) is not places
    silence = places[:1].view(torch.float32)
    harsh = torch.tensor([float("nan"), -float("nan"), float("inf"), 0.0, 3e38, 1e-45])
    computed = torch.stack([harsh, harsh * 2, harsh - harsh, harsh / harsh, harsh.sqrt(), harsh + silence])
    assert not (computed.view(torch.int32) == arrivals.SILENT.value).any()


def test_operators_have_their_own() -> None:
    assert arrivals.counters("one", CPU, 3).data_ptr() != arrivals.counters("other", CPU, 3).data_ptr()


def test_they_are_not_made_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="one must have run with as many rows before it is recorded"):
        arrivals.counters("one", torch.device("cuda", 0), 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="programs that run at once need a CUDA device")
def test_whoever_is_last_sees_it_all() -> None:
    """Thousands of calls, with many programs to a head: each finds the same, and leaves zeros behind."""
    from lockstep.kernels.attention.looking import Cache, run

    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    qkv, keys, values = normal(4, 1, 3 * 8 * 64), normal(4, 8, 4096, 64), normal(4, 8, 4096, 64)
    position = torch.tensor([5, 1000, 4095, 9000], device="cuda")
    with torch.no_grad():
        found = [run(qkv, None, Cache(keys, values, position.clone()), None, 8, 0, False) for _ in range(3000)]
    reads, after = found[0][0], position + 1
    assert all(torch.equal(one, reads) and torch.equal(cache.position, after) for one, cache in found)
    (made,) = arrivals._kept.values()
    assert not made[-1].any()
