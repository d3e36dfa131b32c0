"""Counters are the same at every call, no two operators', and there before anything is recorded."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from lockstep.kernels import arrivals

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_counters", {})


def test_they_stay() -> None:
    """Also those that have become too few, by which a recorded graph may still count."""
    few = arrivals.counters("one", CPU, 3)
    assert arrivals.counters("one", CPU, len(few)) is few
    many = arrivals.counters("one", CPU, len(few) + 1)
    assert len(many) > len(few)
    assert arrivals.counters("one", CPU, 3) is many
    assert arrivals._counters["one", CPU] == [few, many]
    assert not many.any()


def test_operators_have_their_own() -> None:
    assert arrivals.counters("one", CPU, 3).data_ptr() != arrivals.counters("other", CPU, 3).data_ptr()


def test_they_are_not_made_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="one must have run with as many rows before it is recorded"):
        arrivals.counters("one", torch.device("cuda", 0), 3)
