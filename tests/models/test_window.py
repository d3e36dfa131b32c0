"""Windowed attention read on piece by piece: as at once, from wherever each sample stands, in memory for one piece."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.evaluation.live_bytes import live_bytes
from lockstep.laws.subject import randomise
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.cache import KeyValueCache

DIM, HEADS, LENGTH = 16, 4, 40


def attention(window: int, persistent: int = 0, kv_heads: int = HEADS) -> Attention:
    made = Attention(
        DIM, HEADS, kv_heads=kv_heads, window=window, rope_theta=1e4, rotary_dim=2, persistent=persistent
    ).double()
    randomise(made, seed=0)
    return made


def inputs(batch: int, time: int) -> Tensor:
    return torch.randn(batch, time, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_definition(mixer: Attention, x: Tensor) -> Tensor:
    """Every query with its own sum over all that it sees."""
    assert mixer.window is not None
    queries, keys, values = mixer.apart(mixer.qkv(x), torch.arange(x.shape[1])[None])
    keys, values = (part.repeat_interleave(HEADS // mixer.kv_heads, dim=1) for part in (keys, values))
    own = [part.repeat_interleave(HEADS // mixer.kv_heads, dim=0) for part in mixer.prefix()]
    rows = []
    for at in range(x.shape[1]):
        seen = slice(max(at + 1 - mixer.window, 0), at + 1)
        there, said = keys[:, :, seen], values[:, :, seen]
        if own:
            there, said = (
                torch.cat((part.expand(len(x), -1, -1, -1), row), dim=2)
                for part, row in zip(own, (there, said), strict=True)
            )
        scores = (queries[:, :, at, None] @ there.mT / queries.shape[-1] ** 0.5).softmax(dim=-1)
        rows.append(scores @ said)
    mixed = torch.cat(rows, dim=2)
    return mixer.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return] # torch leaves it untyped


@settings(deadline=None, max_examples=60)
@given(
    window=st.integers(1, 45),
    persistent=st.sampled_from([0, 3]),
    kv_heads=st.sampled_from([HEADS, 2, 1]),
    cuts=st.sets(st.integers(1, LENGTH - 1), max_size=5),
)
@torch.no_grad()
def test_any_pieces(window: int, persistent: int, kv_heads: int, cuts: set[int]) -> None:
    mixer, x = attention(window, persistent, kv_heads), inputs(2, LENGTH)
    wanted = by_definition(mixer, x)
    torch.testing.assert_close(mixer(x), wanted, rtol=1e-10, atol=1e-12)
    state = mixer.initial_state(2)
    for first, last in pairwise(sorted({0, *cuts, LENGTH})):
        found, state = mixer.step(x[:, first:last], state)
        torch.testing.assert_close(found, wanted[:, first:last], rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(
    window=st.integers(1, 20),
    persistent=st.sampled_from([0, 3]),
    starts=st.lists(st.integers(0, 25), min_size=3, max_size=3),
    size=st.integers(1, 15),
)
@torch.no_grad()
def test_samples_stand_where_they_do(window: int, persistent: int, starts: list[int], size: int) -> None:
    mixer, x = attention(window, persistent), inputs(3, LENGTH)
    wanted = by_definition(mixer, x)
    states = [mixer.initial_state(1) for _ in starts]
    for row, at in enumerate(starts):
        if at:
            _, states[row] = mixer.step(x[row : row + 1, :at], states[row])
    state = KeyValueCache(*(torch.cat(parts) for parts in zip(*states, strict=True)))
    piece, there = (torch.stack([y[row, at : at + size] for row, at in enumerate(starts)]) for y in (x, wanted))
    found, state = mixer.step(piece, state)
    torch.testing.assert_close(found, there, rtol=1e-10, atol=1e-12)
    assert state.position.tolist() == [at + size for at in starts]


def test_gradients_reach_through_a_cache() -> None:
    """A text in three pieces, of which the later ones see the earlier ones, and the persistent tokens."""
    mixer, x = attention(7, persistent=3), inputs(2, LENGTH)
    weights = torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state, parts = mixer.initial_state(2), []
    for piece in x.split([11, 20, 9], dim=1):
        found, state = mixer.step(piece, state)
        parts.append(found)
    parameters = list(mixer.parameters())
    in_pieces, at_once = (
        torch.autograd.grad((y * weights).sum(), parameters) for y in (torch.cat(parts, dim=1), by_definition(mixer, x))
    )
    for one, other in zip(in_pieces, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_one_graph_for_pieces_of_many_lengths() -> None:
    """One of a first length, one of shorter pieces than a window, one of longer: no length of its own has another."""
    from torch._dynamo.testing import CompileCounterWithBackend

    mixer, x, counter = attention(7, persistent=3), inputs(2, 60), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(mixer.step, fullgraph=True, backend=counter)
    wanted, state, done = by_definition(mixer, x), mixer.initial_state(2), 0
    for size in (3, 5, 6, 4, 9, 12, 20):
        found, state = compiled(x[:, done : done + size], state)
        torch.testing.assert_close(found, wanted[:, done : done + size], rtol=1e-10, atol=1e-12)
        done += size
    assert counter.frame_count <= 3


@torch.no_grad()
def test_a_cache_of_another_precision() -> None:
    """As under autocast, where tokens are projected in fewer bits than a state has."""
    mixer, x = attention(7, persistent=3).float(), inputs(2, LENGTH).float()
    wanted, state = mixer(x), mixer.initial_state(2)
    with torch.autocast("cpu", torch.bfloat16):
        for piece, there in zip(x.split([11, 20, 9], dim=1), wanted.split([11, 20, 9], dim=1), strict=True):
            found, state = mixer.step(piece, state)
            assert float((found.float() - there).norm() / there.norm()) < 0.02
    assert state.keys.dtype == torch.float32


@torch.no_grad()
def peaks(mixer: Attention, read: int, sizes: tuple[int, int]) -> tuple[int, int]:
    """Bytes that pieces of two sizes take, each after as many tokens."""
    _, state = mixer.step(inputs(1, read), None)

    def peak(size: int) -> int:
        x = inputs(1, size)
        with live_bytes() as counted:
            mixer.step(x, state)
        return counted.peak

    return peak(sizes[0]), peak(sizes[1])


def test_few_tokens_after_a_long_window_cost_few() -> None:
    few, many = peaks(attention(256), 300, (2, 256))
    assert few < many / 4


@pytest.mark.parametrize("persistent", [0, 3])
def test_a_piece_takes_memory_in_proportion(persistent: int) -> None:
    """Not a score or a mask for each pair of its tokens."""
    short, long = peaks(attention(16, persistent), 32, (1024, 4096))
    assert long < 4.2 * short
