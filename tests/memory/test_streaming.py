"""A memory that goes on: however the tokens are cut, and wherever its samples stand, it is the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.memory import Memory, MemoryState, begin, stream
from lockstep.models.state import map_state, named_tensors, select, stack
from tests.memory.cases import POINTS, Case, assert_close, draw_case, each_gate, gradients, outcome, point

unhurried = settings(max_examples=60, deadline=None, derandomize=True, database=None)
TOLERANCE = 1e-12


def piece_by_piece(case: Case, sizes: Sequence[int], state: MemoryState | None = None) -> tuple[Tensor, MemoryState]:
    """The case's tokens in pieces of these sizes."""
    state = state or begin(case.memory)
    reads, done = [], 0
    for size in sizes:
        piece = case.between(done, done + size)
        said, state = stream(piece.queries, piece.keys, piece.values, piece.gates, state, case.spec, case.outer)
        reads.append(said)
        done += size
    assert done == case.keys.shape[2]
    return torch.cat(reads, dim=2), state


def memory_of(state: MemoryState) -> Memory:
    return Memory(state.weights, state.velocity or None)


def tensors_of(state: MemoryState) -> dict[str, Tensor]:
    return dict(named_tensors(state))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A length, and the sizes of pieces that make it up."""
    length = draw(st.integers(1, 24))
    places = sorted(draw(st.sets(st.integers(1, length), max_size=6)) - {length})
    return length, [stop - start for start, stop in pairwise([0, *places, length])]


@pytest.mark.parametrize("name", POINTS)
@unhurried
@given(cut=cuts(), chunk=st.sampled_from([1, 2, 4, 5, 16]), before=st.booleans(), seed=st.integers(0, 5))
def test_any_split_is_one_call(name: str, cut: tuple[int, list[int]], chunk: int, before: bool, seed: int) -> None:
    length, sizes = cut
    spec = point(name, chunk=chunk, tile=3, read="before" if before else "after")
    case = draw_case(spec, length, seed=seed, batch=1, heads=2, zeros=True)
    reads, state = piece_by_piece(case, sizes)
    assert_close(outcome(reads, memory_of(state)), outcome(*case.run()), TOLERANCE)
    assert state.position.tolist() == [length]


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", POINTS)
def test_token_by_token(name: str, chunk: int) -> None:
    case = draw_case(point(name, chunk=chunk), length=10, zeros=True)
    reads, state = piece_by_piece(case, [1] * 10)
    assert_close(outcome(reads, memory_of(state)), outcome(*case.run("sequential")), TOLERANCE)


@pytest.mark.parametrize("sizes", [[1] * 9, [2, 7], [9], [4, 1, 4]], ids=str)
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", POINTS)
def test_samples_at_different_positions(name: str, chunk: int, sizes: list[int]) -> None:
    """Each has seen another number of tokens when they become one batch; from there, each goes on as if alone."""
    positions = [0, 3, 4, 6]
    spec = point(name, chunk=chunk, tile=3)
    # One case gives what belongs to the model and not to a sample, the norm and where forgetting leads.
    common = draw_case(spec, length=1).outer
    cases = [draw_case(spec, length=at + 9, seed=at, batch=1)._replace(outer=common) for at in positions]
    started = [
        piece_by_piece(case.between(0, at), [at])[1] if at else begin(case.memory)
        for case, at in zip(cases, positions, strict=True)
    ]
    rest = [case.between(at, at + 9) for case, at in zip(cases, positions, strict=True)]
    batch = together(rest)
    reads, state = piece_by_piece(batch, sizes, stack(started))
    assert state.position.tolist() == [at + 9 for at in positions]
    for row, (case, at) in enumerate(zip(cases, positions, strict=True)):
        alone, memory = case.run()
        ends = select(state, [row])
        assert_close(outcome(reads[row : row + 1], memory_of(ends)), outcome(alone[:, :, at:], memory), TOLERANCE)


def together(cases: Sequence[Case]) -> Case:
    """One batch out of several; the memory is that of the first, for a state stands in its place."""
    first = cases[0]
    queries, keys, values = (torch.cat(parts) for parts in zip(*(case[1:4] for case in cases), strict=True))
    gates = each_gate(lambda *parts: torch.cat(parts), *(case.gates for case in cases))
    return first._replace(queries=queries, keys=keys, values=values, gates=gates)


@pytest.mark.parametrize("size", [1, 3, 9])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", POINTS)
def test_the_given_state_is_left_alone(name: str, chunk: int, size: int) -> None:
    """A prefix may branch."""
    case = draw_case(point(name, chunk=chunk), length=6 + size)
    _, state = piece_by_piece(case.between(0, 6), [6])
    kept = map_state(torch.clone, state)
    first, _ = piece_by_piece(case.between(6, 6 + size), [size], state)
    for name_of, tensor in tensors_of(state).items():
        assert torch.equal(tensor, tensors_of(kept)[name_of]), name_of
    second, _ = piece_by_piece(case.between(6, 6 + size), [size], state)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", POINTS)
def test_the_state_keeps_its_shape(name: str) -> None:
    """From the first state on, so that a decoding step can be captured once and replayed."""
    case = draw_case(point(name, chunk=4), length=13)
    state = begin(case.memory)
    like = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(state).items()}
    for sizes in ([1] * 13, [3, 1, 9]):
        _, after = piece_by_piece(case, sizes)
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(after).items()} == like


@pytest.mark.parametrize("sizes", [[1] * 7, [6, 1], [2, 5]], ids=str)
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", POINTS)
def test_gradients_cross_from_call_to_call(name: str, chunk: int, sizes: list[int]) -> None:
    case = draw_case(point(name, chunk=chunk), length=7, zeros=True).tracked()
    reads, state = piece_by_piece(case, sizes)
    found = gradients(outcome(reads, memory_of(state)), case.inputs())
    assert_close(found, gradients(outcome(*case.run()), case.inputs()), 1e-10)


def test_a_position_may_be_given() -> None:
    """Chunks are counted from position zero, not from where a state begins."""
    case = draw_case(point("Titans", chunk=4), length=6)
    late = begin(case.memory, torch.tensor([3, 3]))
    reads, state = piece_by_piece(case, [6], late)
    first, rest = case.between(0, 1), case.between(1, 6)
    said, memory = first.run()
    said_later, memory = rest._replace(memory=memory).run()
    assert_close(outcome(reads, memory_of(state)), outcome(torch.cat((said, said_later), dim=2), memory), TOLERANCE)
    assert state.position.tolist() == [9, 9]
