"""Hybrids: layers of several architectures, in the order of the pattern."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.errors import UserError
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.memory_layer import MemoryLayer
from lockstep.models.mixers.recurrent import Recurrent

SIZE: dict[str, Any] = {"vocab_size": 17, "dim": 16, "depth": 5, "heads": 2}


def test_layers_follow_the_pattern() -> None:
    model = lockstep.build("hybrid", **SIZE, pattern=["gru", "titans-lmm:chunk=8,conv=0", "attention:window=7"])
    mixers = [block.mixer for block in model.layers]
    assert [type(mixer) for mixer in mixers] == [Recurrent, MemoryLayer, Attention, Recurrent, MemoryLayer]
    memory, attention = mixers[1], mixers[2]
    assert isinstance(memory, MemoryLayer)
    assert isinstance(attention, Attention)
    assert (memory.memory.spec.chunk, memory.memory.conv, attention.window) == (8, None, 7)


def test_a_pattern_of_one_is_that_architecture() -> None:
    hybrid = lockstep.build("hybrid", **SIZE, pattern=["attention:hidden=40"])
    plain = lockstep.build("transformer++", **SIZE, hidden=40)
    assert [*hybrid.state_dict()] == [*plain.state_dict()]
    assert hybrid.cost(64) == plain.cost(64)


def test_reach_adds_up() -> None:
    windowed = ["attention:window=5", "attention:window=3"]
    assert lockstep.build("hybrid", **SIZE, pattern=windowed).spec.reach == 3 * 4 + 2 * 2
    assert lockstep.build("hybrid", **SIZE, pattern=[*windowed, "gru"]).spec.reach is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (["bert"], "bert is more than its layers"),
        (["gpt2"], "gpt2 is more than its layers"),
        (["atention"], "unknown architecture atention"),
        (["attention:windw=3"], "unknown key windw; did you mean window?"),
        (["attention:window"], "expected name:field=value"),
        (["attention:window=x"], "window"),
        ([], "pattern"),
    ],
)
def test_what_cannot_be_a_layer_is_said_in_one_line(pattern: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        lockstep.build("hybrid", **SIZE, pattern=pattern)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
