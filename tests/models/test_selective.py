"""The selective scan by tiles and chunks is the recurrence by tokens: reads, states and gradients."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.models.recurrences import selective
from lockstep.models.recurrences.selective import selective_scan
from tests.memory.cases import Named, assert_close, gradients

CHUNK = 8
D_STATE, CHANNELS, BATCH = 5, 3, 2
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2)
TILES = {"many chunks": 64 * CHUNK, "two chunks": 2 * CHUNK, "one chunk": CHUNK, "part of a chunk": 3, "a token": 1}
"""Tokens that are computed at once."""
RATES = ("random", "small", "large", "none", "endless", "now and then")


class Case(NamedTuple):
    """All that the scan is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    rate: Tensor
    decay: Tensor
    state: Tensor

    def between(self, start: int, stop: int, state: Tensor) -> Case:
        """Some of its tokens, after another state."""
        queries, keys, values, rate = (x[:, start:stop] for x in self[:4])
        return Case(queries, keys, values, rate, self.decay, state)

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers, rounded."""
        return Case(*(x.detach().to(dtype).requires_grad_() for x in self))


def draw(length: int, rate: str = "random", batch: int = BATCH, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    of_states, of_channels = (batch, length, D_STATE), (batch, length, CHANNELS)
    case = Case(
        normal(*of_states),
        normal(*of_states),
        normal(*of_channels),
        drawn_rate(normal(*of_channels), rate),
        normal(D_STATE, CHANNELS).exp(),
        normal(batch, D_STATE, CHANNELS),
    )
    return case.to(torch.float64)


def drawn_rate(normal: Tensor, rate: str) -> Tensor:
    """From nothing written and all kept to nothing kept; the last is a mixture of both with what lies between."""
    plain = normal.abs()
    return {
        "random": plain,
        "small": 1e-3 * plain,
        "large": 100 * plain,
        "none": torch.zeros_like(plain),
        "endless": 1e6 * plain,
        "now and then": plain.masked_fill(normal > 1, 1e4).masked_fill(normal < -1, 0.0),
    }[rate]


def token_by_token(case: Case) -> tuple[Tensor, Tensor]:
    """The definition."""
    state, reads = case.state, []
    for t in range(case.keys.shape[1]):
        rate = case.rate[:, t]
        keep = torch.einsum("bc,nc->bnc", -rate, case.decay).exp()
        state = keep * state + torch.einsum("bn,bc->bnc", case.keys[:, t], rate * case.values[:, t])
        reads.append(torch.einsum("bn,bnc->bc", case.queries[:, t], state))
    return torch.stack(reads, dim=1), state


def scanned(case: Case, chunk: int = CHUNK) -> Named:
    return named(*selective_scan(*case, chunk=chunk))


def named(reads: Tensor, state: Tensor) -> Named:
    return {"reads": reads, "state": state}


def assert_same(actual: Named, expected: Named, case: Case) -> None:
    """In all that comes out, and in its gradients with respect to all that goes in."""
    assert_close(actual, expected)
    assert_close(gradients(actual, case._asdict()), gradients(expected, case._asdict()))


@pytest.fixture(params=TILES.values(), ids=list(TILES))
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Tiles of so many tokens."""
    monkeypatch.setattr(selective, "CACHED", request.param * BATCH * D_STATE * CHANNELS)
    tokens: int = request.param
    return tokens


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rate", RATES)
def test_tiles_are_tokens(tile: int, rate: str, length: int) -> None:
    case = draw(length, rate)
    assert_same(scanned(case), named(*token_by_token(case)), case)


@pytest.mark.parametrize("rate", RATES)
def test_any_split_is_one_call(tile: int, rate: str) -> None:
    length = 2 * CHUNK + 3
    case = draw(length, rate)
    whole = scanned(case)
    slopes = gradients(whole, case._asdict())
    for cut in range(1, length):
        first, state = selective_scan(*case.between(0, cut, case.state), chunk=CHUNK)
        second, state = selective_scan(*case.between(cut, length, state), chunk=CHUNK)
        parts = named(torch.cat((first, second), dim=1), state)
        assert_close(parts, whole)
        assert_close(gradients(parts, case._asdict()), slopes)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_no_result_depends_on_the_chunk(tile: int, chunk: int) -> None:
    case = draw(19, "now and then")
    assert_same(scanned(case, chunk), scanned(case), case)


def test_every_token_is_in_one_tile() -> None:
    state = torch.empty(BATCH, D_STATE, CHANNELS, device="meta")
    for length in range(1, 40):
        for chunk in (1, 3, 8, 64):
            found = [(tile.start, tile.chunks * tile.places) for tile in selective.tiles(length, state, chunk)]
            starts = [sum(tokens for _, tokens in found[:i]) for i in range(len(found))]
            assert [start for start, _ in found] == starts
            assert sum(tokens for _, tokens in found) == length


@pytest.mark.parametrize("rate", RATES)
def test_float32_is_near(tile: int, rate: str) -> None:
    """And finite where a number cannot hold how little is kept."""
    case = draw(4 * CHUNK, rate)
    single = case.to(torch.float32)
    near = scanned(single)
    assert_close({name: x.double() for name, x in near.items()}, named(*token_by_token(case)), 2e-5)
    assert all(slope.isfinite().all() for slope in gradients(near, single._asdict()).values())


def test_rates_beyond_all_measure_are_finite(tile: int) -> None:
    """Their product with the decay is infinite in float32."""
    case = draw(3 * CHUNK).to(torch.float32)
    case = case._replace(rate=(case.rate * 1e30).detach().requires_grad_(), decay=(case.decay * 1e30).detach())
    case = case._replace(values=(case.values * 1e-30).detach().requires_grad_(), decay=case.decay.requires_grad_())
    found = scanned(case)
    assert_close(found, named(*token_by_token(case)), 1e-5)
    assert all(slope.isfinite().all() for slope in gradients(found, case._asdict()).values())


def test_low_precision_goes_in_and_float32_comes_out(tile: int) -> None:
    """Under autocast too."""
    low = draw(2 * CHUNK).to(torch.bfloat16)
    expected = scanned(low.to(torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        found = scanned(low)
        assert_close(found, expected, 0.0)
        assert all(slope.isfinite().all() for slope in gradients(found, low._asdict()).values())


def test_the_state_given_is_left_as_it_was() -> None:
    for length in (1, CHUNK, 2 * CHUNK):
        case = draw(length)
        before = case.state.detach().clone()
        scanned(case)
        assert torch.equal(case.state, before)


@pytest.mark.parametrize("cached", [1, 2 * selective.FEWEST * BATCH * D_STATE * CHANNELS])
def test_states_are_not_kept_for_the_derivative(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those at the start of each tile, which has some tokens even where one token's states fill the cache."""
    length, kept = 16 * CHUNK, []
    in_a_tile = max(selective.FEWEST, cached // (BATCH * D_STATE * CHANNELS))

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    monkeypatch.setattr(selective, "CACHED", cached)
    case = draw(length)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        selective_scan(*case, chunk=CHUNK)
    shapes = [tuple(x.shape) for x in kept if x.shape[-2:] == case.state.shape[-2:] and x.ndim > 2]
    assert shapes == [tuple(case.state.shape)] * (length // in_a_tile)
    assert all(x.numel() < length * D_STATE * CHANNELS for x in kept)
