"""The decayed recurrence by chunks is the recurrence by tokens: reads, states and gradients."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.models.recurrences.decayed import decayed
from tests.memory.cases import Named, assert_close, gradients

CHUNK = 8
KEY_DIM, VALUE_DIM = 5, 3
HEADS = {"one": (1, 1), "own": (3, 3), "shared": (1, 4), "groups": (2, 4)}
"""Of keys and of values."""
KEEPS = ("all", "random", "little", "nothing", "everything", "now and then")


class Case(NamedTuple):
    """All that `decayed` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor | None
    state: Tensor

    def inputs(self) -> Named:
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}

    def between(self, start: int, stop: int, state: Tensor) -> Case:
        """Some of its tokens, after another state."""
        tokens = {name: x[:, :, start:stop] for name, x in self.inputs().items() if name != "state"}
        return self._replace(**tokens, state=state)

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers, rounded."""
        return self._replace(**{name: x.detach().to(dtype).requires_grad_() for name, x in self.inputs().items()})


def draw(heads: tuple[int, int], length: int, keep: str = "random", batch: int = 2, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups, of_values = heads
    case = Case(
        normal(batch, groups, length, KEY_DIM),
        normal(batch, groups, length, KEY_DIM),
        normal(batch, of_values, length, VALUE_DIM),
        drawn_keep(normal(batch, of_values, length), keep),
        normal(batch, of_values, KEY_DIM, VALUE_DIM),
    )
    for tensor in case.inputs().values():
        tensor.requires_grad_()
    return case


def drawn_keep(normal: Tensor, keep: str) -> Tensor | None:
    """Logarithms: of shares around a half, around e^-30, of 0 and 1, and of anything with zeros among it."""
    plain = -normal.abs()
    sometimes = plain.masked_fill(normal > 1, -1e4).masked_fill(normal < -1.5, -torch.inf)
    return {
        "all": None,
        "random": plain,
        "little": 30 * plain,
        "nothing": torch.full_like(normal, -1e4),
        "everything": torch.zeros_like(normal),
        "now and then": sometimes.masked_fill(normal.abs() < 0.3, 0.0),
    }[keep]


def token_by_token(case: Case) -> tuple[Tensor, Tensor]:
    """The definition."""
    sharing = case.values.shape[1] // case.keys.shape[1]
    queries, keys = (x.repeat_interleave(sharing, dim=1) for x in (case.queries, case.keys))
    state, reads = case.state, []
    for t in range(keys.shape[2]):
        if case.log_keep is not None:
            state = case.log_keep[:, :, t, None, None].exp() * state
        state = state + torch.einsum("bhk,bhv->bhkv", keys[:, :, t], case.values[:, :, t])
        reads.append(torch.einsum("bhk,bhkv->bhv", queries[:, :, t], state))
    return torch.stack(reads, dim=2), state


def named(reads: Tensor, state: Tensor) -> Named:
    return {"reads": reads, "state": state}


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_chunks_are_tokens(heads: tuple[int, int], keep: str, length: int) -> None:
    case = draw(heads, length, keep)
    actual, expected = named(*decayed(*case, chunk=CHUNK)), named(*token_by_token(case))
    assert_close(actual, expected)
    assert_close(gradients(actual, case.inputs()), gradients(expected, case.inputs()))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_any_split_is_one_call(heads: tuple[int, int], keep: str) -> None:
    length = 2 * CHUNK + 3
    case = draw(heads, length, keep)
    whole = named(*decayed(*case, chunk=CHUNK))
    expected = gradients(whole, case.inputs())
    for cut in range(1, length):
        first, state = decayed(*case.between(0, cut, case.state), chunk=CHUNK)
        second, state = decayed(*case.between(cut, length, state), chunk=CHUNK)
        parts = named(torch.cat((first, second), dim=2), state)
        assert_close(parts, whole)
        assert_close(gradients(parts, case.inputs()), expected)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_no_result_depends_on_the_chunk(chunk: int) -> None:
    case = draw((2, 4), 19, "now and then")
    actual, expected = named(*decayed(*case, chunk=chunk)), named(*decayed(*case, chunk=CHUNK))
    assert_close(actual, expected)
    assert_close(gradients(actual, case.inputs()), gradients(expected, case.inputs()))


@pytest.mark.parametrize("length", [1, 2 * CHUNK + 1])
def test_samples_may_forget_alike(length: int) -> None:
    """One row of gates for the whole batch, and the sum of its derivatives."""
    case = draw((1, 4), length)
    assert case.log_keep is not None
    alike = case._replace(log_keep=case.log_keep[:1].detach().requires_grad_())
    actual, expected = named(*decayed(*alike, chunk=CHUNK)), named(*token_by_token(alike))
    assert_close(actual, expected)
    assert_close(gradients(actual, alike.inputs()), gradients(expected, alike.inputs()))


@pytest.mark.parametrize("keep", KEEPS)
def test_float32_is_near(keep: str) -> None:
    """Also after tokens that kept nothing, whose logarithms must not swallow those of the others."""
    case = draw((2, 4), 4 * CHUNK, keep)
    single = case.to(torch.float32)
    near = named(*decayed(*single, chunk=CHUNK))
    slopes = gradients(near, single.inputs())
    assert_close({name: x.double() for name, x in near.items()}, named(*token_by_token(case)), 2e-5)
    assert all(slope.isfinite().all() for slope in slopes.values())


def test_low_precision_goes_in_and_float32_comes_out() -> None:
    """Under autocast too."""
    low = draw((2, 4), 2 * CHUNK).to(torch.bfloat16)
    expected = named(*decayed(*low.to(torch.float32), chunk=CHUNK))
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(named(*decayed(*low, chunk=CHUNK)), expected, 0.0)


def test_the_state_given_is_left_as_it_was() -> None:
    for length in (1, CHUNK, 2 * CHUNK):
        case = draw((1, 4), length)
        before = case.state.detach().clone()
        decayed(*case, chunk=CHUNK)
        assert torch.equal(case.state, before)
