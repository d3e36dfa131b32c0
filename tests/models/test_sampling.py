"""Sampling filters keep what they promise, and generation is reproducible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build
from lockstep.models.sampling import Sampling, draw, filtered

LOGIT = st.floats(min_value=-30, max_value=30, width=32)
ROWS = st.integers(2, 12).flatmap(
    lambda width: st.lists(st.lists(LOGIT, min_size=width, max_size=width), min_size=1, max_size=3)
)
SHARE = st.floats(min_value=0, max_value=1)

# A busy machine is no failure; and a test run says the same twice.
unhurried = settings(deadline=None, derandomize=True, database=None)


def kept(rows: list[list[float]], **filters: Any) -> tuple[Tensor, Tensor]:
    """Probabilities before the filter, and which tokens stay."""
    logits = torch.tensor(rows, dtype=torch.float64)
    return logits.softmax(dim=-1), filtered(logits, Sampling(**filters)).isfinite()


@unhurried
@given(ROWS, st.none() | st.integers(1, 15), st.none() | SHARE, st.none() | SHARE)
def test_the_likeliest_token_always_stays(
    rows: list[list[float]], top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    probabilities, stays = kept(rows, top_k=top_k, top_p=top_p, min_p=min_p)
    best = probabilities.amax(dim=-1)
    assert ((probabilities == best[:, None]) & stays).any(dim=-1).all()


@unhurried
@given(ROWS, SHARE)
def test_top_p_keeps_the_smallest_sufficient_set(rows: list[list[float]], top_p: float) -> None:
    probabilities, stays = kept(rows, top_p=top_p)
    for row, stay in zip(probabilities, stays, strict=True):
        mass = row[stay]
        assert float(mass.sum()) >= top_p - 1e-12
        assert len(mass) == 1 or float(mass.sum() - mass.amin()) < top_p + 1e-12
        if not stay.all():
            assert float(row[~stay].amax()) <= float(mass.amin())


@unhurried
@given(ROWS, st.integers(1, 15))
def test_top_k_keeps_the_k_likeliest(rows: list[list[float]], top_k: int) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    stays = filtered(logits, Sampling(top_k=top_k)).isfinite()
    for row, stay in zip(logits, stays, strict=True):
        # Equal logits have no order, so that ties at the edge all stay.
        edge = row.sort(descending=True).values[min(top_k, len(row)) - 1]
        assert torch.equal(stay, row >= edge)


@unhurried
@given(ROWS, SHARE)
def test_min_p_keeps_what_is_near_the_likeliest(rows: list[list[float]], min_p: float) -> None:
    probabilities, stays = kept(rows, min_p=min_p)
    assert torch.equal(stays, probabilities >= min_p * probabilities.amax(dim=-1, keepdim=True))


@unhurried
@given(ROWS)
def test_no_filter_changes_nothing(rows: list[list[float]]) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    assert torch.equal(filtered(logits, Sampling()), logits)


@unhurried
@given(ROWS)
def test_temperature_zero_is_greedy(rows: list[list[float]]) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    assert torch.equal(draw(logits, Sampling(temperature=0), None)[:, 0], logits.argmax(dim=-1))


@unhurried
@given(ROWS, st.integers(0, 2**31), st.integers(1, 5))
def test_only_kept_tokens_are_drawn(rows: list[list[float]], seed: int, top_k: int) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    sampling = Sampling(top_k=top_k)
    drawn = draw(logits, sampling, torch.Generator().manual_seed(seed))
    assert filtered(logits, sampling).gather(1, drawn).isfinite().all()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temperature": -1.0}, "temperature -1.0 is negative"),
        ({"top_k": 0}, "top_k 0 would leave no token"),
        ({"top_p": 1.5}, "top_p 1.5 is not between 0 and 1"),
        ({"min_p": -0.1}, "min_p -0.1 is not between 0 and 1"),
    ],
)
def test_impossible_settings_are_rejected(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Sampling(**fields)


def model() -> LanguageModel:
    torch.manual_seed(0)
    return build("gru", vocab_size=11, dim=16, depth=1, heads=1)


def prompts() -> Tensor:
    return torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_a_seed_reproduces_and_leaves_the_global_generator_alone() -> None:
    ours = model()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    once, again, other = (ours.generate(prompts(), 30, Sampling(seed=seed)) for seed in (7, 7, 8))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(once[:, :3], prompts())
    assert once.shape == (2, 33)


def test_the_stop_token_repeats() -> None:
    generated = model().generate(prompts(), 60, Sampling(seed=1), stop=0)[:, 3:]
    stopped = (generated == 0).cumsum(dim=1) > 0
    assert stopped.any(dim=1).all()
    assert not stopped[:, 0].all()
    assert (generated[stopped] == 0).all()


def test_fewer_tokens_than_none_are_rejected() -> None:
    with pytest.raises(ValueError, match="-1 new tokens cannot be written"):
        build("rnn", vocab_size=5, dim=8, depth=1).generate(torch.zeros(1, 2, dtype=torch.int64), -1)


def test_an_empty_prompt_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        model().generate(prompts()[:, :0], 3)


def test_training_mode_is_restored_even_after_an_error() -> None:
    ours = model().train()
    with pytest.raises(IndexError):
        ours.generate(torch.tensor([[99]]), 3)
    assert ours.training
