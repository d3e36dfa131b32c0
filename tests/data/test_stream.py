"""The token stream: a pure function of seed and step that visits every window once per epoch."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.data.stream import EMPTY_HASH, TokenStream, advance_hash, share
from lockstep.errors import UserError

LENGTH = 5


def counting_tokens(windows: int, rest: int = 0) -> NDArray[np.uint16]:
    """Tokens that are their own position, so that a window shows where it was cut."""
    return np.arange(windows * LENGTH + 1 + rest, dtype=np.uint16)


def visited(stream: TokenStream, steps: range) -> list[int]:
    """The windows of these steps, by number, in order."""
    rows = np.concatenate([stream.step(step) for step in steps])
    return [int(first) // LENGTH for first in rows[:, 0]]


@given(windows=st.integers(1, 40), per_step=st.integers(1, 17), seed=st.integers(0, 2**63 - 1))
def test_every_window_comes_once_per_epoch(windows: int, per_step: int, seed: int) -> None:
    stream = TokenStream(counting_tokens(windows, rest=LENGTH - 1), LENGTH, per_step, seed)
    assert stream.windows == windows
    epochs = 3
    seen = visited(stream, range(-(-epochs * windows // per_step)))
    for epoch in range(epochs):
        assert sorted(seen[epoch * windows : (epoch + 1) * windows]) == list(range(windows))


def test_a_window_is_a_stretch_of_the_corpus_and_its_next_token() -> None:
    tokens = np.array([7, 3, 9, 9, 1, 0, 4, 2, 8, 5, 6], dtype=np.uint16)
    rows = TokenStream(tokens, LENGTH, 2, 0).step(0)
    assert sorted(rows.tolist()) == sorted([[7, 3, 9, 9, 1, 0], [0, 4, 2, 8, 5, 6]])
    assert rows.dtype == np.int64


def test_epochs_have_orders_of_their_own() -> None:
    stream = TokenStream(counting_tokens(50), LENGTH, 50, seed=3)
    orders = [tuple(visited(stream, range(epoch, epoch + 1))) for epoch in range(6)]
    assert len(set(orders)) == 6
    assert tuple(range(50)) not in orders


def test_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(visited(TokenStream(counting_tokens(50), LENGTH, 50, seed), range(1))) for seed in range(6)]
    assert len(set(orders)) == 6


def test_a_step_does_not_depend_on_what_was_asked_before() -> None:
    """Steps in any order, in one stream or in many, across the ends of epochs."""
    tokens = counting_tokens(7)
    one = TokenStream(tokens, LENGTH, 3, seed=1)
    asked = [9, 0, 4, 9, 2, 1, 0, 30, 2]
    for step, rows in [(step, one.step(step)) for step in asked]:
        assert np.array_equal(rows, TokenStream(tokens, LENGTH, 3, seed=1).step(step))


@given(micros=st.integers(1, 4), world=st.integers(1, 4), per_rank=st.integers(1, 3), step=st.integers(0, 50))
def test_any_number_of_processes_shares_the_same_rows(micros: int, world: int, per_rank: int, step: int) -> None:
    rows = TokenStream(counting_tokens(23), LENGTH, micros * world * per_rank, seed=2).step(step)
    shares = [share(rows, micro, micros, rank, world) for micro in range(micros) for rank in range(world)]
    assert all(len(one) == per_rank for one in shares)
    assert np.array_equal(np.concatenate(shares), rows)


@given(micros=st.integers(1, 5))
def test_micro_batches_split_a_step_and_do_not_change_it(micros: int) -> None:
    """Batch 60 / n with n micro-batches sees the rows of batch 60."""
    whole = TokenStream(counting_tokens(23), LENGTH, 60, seed=2).step(1)
    parts = [share(whole, micro, micros, 0, 1) for micro in range(micros)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_the_hash_knows_tokens_order_and_history() -> None:
    rows = np.arange(12, dtype=np.int64).reshape(2, 6)
    changed = rows.copy()
    changed[1, 5] += 1
    once = advance_hash(EMPTY_HASH, rows)
    others = [
        advance_hash(EMPTY_HASH, rows[::-1]),
        advance_hash(EMPTY_HASH, changed),
        advance_hash(once, rows),
        advance_hash(EMPTY_HASH, rows[:1]),
    ]
    assert len({once, EMPTY_HASH, *others}) == 6
    assert once == hashlib.sha256(bytes.fromhex(EMPTY_HASH) + rows.astype("<u4").tobytes()).hexdigest()


def test_the_order_never_changes() -> None:
    """Runs of different versions of Lockstep, of numpy and of Python are compared by this hash."""
    stream, rolling = TokenStream(counting_tokens(13), LENGTH, 4, seed=42), EMPTY_HASH
    for step in range(10):
        rolling = advance_hash(rolling, stream.step(step))
    assert visited(stream, range(4)) == GOLDEN_ORDER
    assert rolling == GOLDEN_HASH


GOLDEN_ORDER = [5, 12, 3, 6, 0, 7, 11, 9, 10, 1, 2, 8, 4, 7, 3, 1]
GOLDEN_HASH = "e6635c949a7012291011f424f1bf76d2040941b73339fe3343ce6e75616eeb7e"


@given(seed=st.integers(0, 1000), step=st.integers(0, 20))
def test_target_places_are_where_the_targets_stand(seed: int, step: int) -> None:
    tokens = counting_tokens(11) * 7 % 5
    stream = TokenStream(tokens, LENGTH, 4, seed)
    places = stream.target_places(step)
    assert places.shape == (4, LENGTH)
    assert np.array_equal(places, TokenStream(counting_tokens(11), LENGTH, 4, seed).step(step)[:, 1:])
    assert np.array_equal(tokens[places], stream.step(step)[:, 1:])


@pytest.mark.parametrize("tokens", [0, 1, LENGTH])
def test_a_corpus_shorter_than_one_sequence_is_refused(tokens: int) -> None:
    with pytest.raises(UserError, match=f"the corpus has {tokens} training tokens, but one sequence of 5 needs 6"):
        TokenStream(np.zeros(tokens, dtype=np.uint16), LENGTH, 1, 0)
