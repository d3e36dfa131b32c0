"""More tokens than there is room for are refused with both numbers, never silently wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build
from lockstep.models.sampling import Sampling


def small(name: str, **fields: int) -> LanguageModel:
    return build(name, vocab_size=9, dim=16, depth=2, heads=2, max_length=8, **fields)


def tokens(time: int) -> Tensor:
    return torch.zeros(2, time, dtype=torch.int64)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_learned_positions_run_out(name: str) -> None:
    model = small(name)
    assert model(tokens(8)).shape == (2, 8, 9)
    with pytest.raises(ValueError, match="9 tokens, but max_length gives 8 positions"):
        model(tokens(9))


def test_learned_positions_run_out_while_stepping() -> None:
    model = small("gpt2")
    _, state = model.step(tokens(6), model.initial_state(2, capacity=20))
    model.step(tokens(2), state)
    with pytest.raises(ValueError, match="9 tokens, but max_length gives 8 positions"):
        model.step(tokens(3), state)


@pytest.mark.parametrize("pieces", [(6,), (5, 1), (1, 1, 1, 1, 1, 1)])
def test_a_cache_runs_out(pieces: tuple[int, ...]) -> None:
    model = small("transformer++")
    state = model.initial_state(2, capacity=5)
    *fitting, last = pieces
    for piece in fitting:
        _, state = model.step(tokens(piece), state)
    with pytest.raises(ValueError, match="the cache holds 5 tokens, but position 5 was reached"):
        model.step(tokens(last), state)


def test_capacity_is_max_length_where_none_is_asked_for() -> None:
    model = small("transformer++")
    _, state = model.step(tokens(8))
    with pytest.raises(ValueError, match="the cache holds 8 tokens, but position 8 was reached"):
        model.step(tokens(1), state)


@pytest.mark.parametrize(("name", "fields"), [("transformer++", {"window": 3}), ("gru", {}), ("lstm", {})])
def test_bounded_states_never_run_out(name: str, fields: dict[str, int]) -> None:
    model = small(name, **fields)
    _, state = model.step(tokens(30), model.initial_state(2, capacity=4))
    assert model.step(tokens(30), state)[0].shape == (2, 30, 9)


def test_rotary_forward_may_be_longer_than_max_length() -> None:
    assert small("transformer++")(tokens(20)).shape == (2, 20, 9)


def test_generation_brings_its_own_capacity() -> None:
    assert small("transformer++").generate(tokens(5), 20, Sampling(temperature=0)).shape == (2, 25)


def test_generation_past_learned_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens, but max_length gives 8 positions"):
        small("gpt2").generate(tokens(5), 20)
