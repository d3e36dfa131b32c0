"""The kernel of `token_step` as three operators: one leaves the state as it was, the others write over it.

The last of them makes what a token brings of its projections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.arrivals import counters, silence
from lockstep.kernels.memory.token_brought import Given, Projected
from lockstep.kernels.memory.token_step import token_kernel
from lockstep.kernels.record import record
from lockstep.kernels.succession import IN_TURN, started

NAME = "memory token"
PROGRAMS = 128
"""Of all rows: half as many took longer on an H200."""
FEWEST = 8
"""Hidden units of a program at least: the columns of a matrix that a device fetches at once."""
LARGEST = 4096
"""Numbers of each matrix that a program steps at most, if that can be: what registers hold next to the whole point."""
FEW_WARPS, WARPS = 4, 8
"""Of a program: fewer meet sooner, where their registers hold all."""
HELD_BY_FEW = 24_576
"""Numbers of such a program at most, 192 for each of its threads."""

LENT = "Tensor? gain, Tensor? shift"
SURROUNDINGS = f"{LENT}, Tensor? stood, Tensor[] anchors"
GIVEN = (
    "Tensor queries, Tensor keys, Tensor values, Tensor keep, Tensor rate, Tensor? momentum, Tensor? threshold,"
    f" {SURROUNDINGS}"
)
KIND = "bool residual, bool norm, str activation, str retention, float q, float simplex"
CONSTANTS = ("RESIDUAL", "NORM", "ACTIVATION", "RETENTION", "Q", "SIMPLEX")
"""What kernels call these."""
SETTING = f"int chunk, str bias, float p, {KIND}"
Pair = Sequence[Tensor]
"""A first and a second matrix of each row, or nothing."""


class Surroundings(NamedTuple):
    """What the outer model lends, and what is known of the state."""

    gain: Tensor | None  # [heads, width]
    shift: Tensor | None
    stood: Tensor | None  # [batch, heads, width]: under kl what units of the first matrix hold, on average
    anchors: Pair  # [heads or batch × heads, in, out] each; none is zero


class State(NamedTuple):
    """[batch, heads, in, out] each, of float32, all in one piece."""

    point: Pair
    weights: Pair
    velocity: Pair  # nothing without momentum
    position: Tensor  # [batch]

    @property
    def matrices(self) -> list[Tensor | None]:
        """As kernels take them."""
        return [*self.point, *self.weights, *(self.velocity or (None, None))]

    def room(self) -> State:
        """For what comes after it."""
        point, weights, velocity = ([torch.empty_like(matrix) for matrix in pair] for pair in self[:3])
        return State(point, weights, velocity, torch.empty_like(self.position))


def programs(rows: int, width: int, hidden: int) -> int:
    """That share a row, a power of two: as many as PROGRAMS allow, and no fewer than registers do."""
    split = max(1, width * hidden // LARGEST)
    while rows * split * 2 <= PROGRAMS and hidden // (split * 2) >= FEWEST:
        split *= 2
    return split


def held(split: int, width: int, hidden: int) -> int:
    """Numbers that a program has at hand: all of the point, and of what it steps some four times as many."""
    whole = 2 * width * hidden
    return whole + 4 * whole // split


def warps(numbers: int, retention: str) -> int:
    """Of a program that has so many at hand; what is measured, or has a maximum, needs them twice."""
    return FEW_WARPS if retention == "l2" and numbers <= HELD_BY_FEW else WARPS


def launch(
    token: Given | Projected,
    around: Surroundings,
    state: State,
    after: State,
    chunk: int,
    bias: str,
    p: float,
    *kind: Any,
) -> Tensor:
    """Reads [batch, heads, width]; the state after the token goes into `after`, which may be the state itself."""
    batch, heads, width, hidden = state.point[0].shape
    rows = batch * heads
    split = programs(rows, width, hidden)
    constants = dict(zip(CONSTANTS, kind, strict=True))
    count = warps(held(split, width, hidden), constants["RETENTION"])
    over, reads = after is state, token.queries.new_empty(batch, heads, width, dtype=token.dtype)
    operator, device = "memory_token_" if over else "memory_token", reads.device
    parts = None if split == 1 else silence(operator, device, rows * split * width)
    token_kernel[(rows * split,)](
        *token.tensors,
        *around[:-1],
        *(around.anchors or (None, None)),
        *state.matrices,
        state.position,
        *after.matrices,
        after.position,
        reads,
        parts,
        counters(operator, device, rows + batch),
        heads,
        around.anchors[0].shape[0] if around.anchors else 1,
        WIDTH=width,
        HIDDEN=hidden,
        CHUNK=chunk,
        SPLIT=split,
        COPIES=max(1, 32 * count // (split * width)),
        IN_PLACE=over,
        BIAS=bias,
        P=p,
        **token.constants,
        **constants,
        num_warps=count,
        **(started(reads) if over else IN_TURN),
    )
    return reads


def split_at(arguments: Sequence[Any], *lengths: int) -> Iterator[Sequence[Any]]:
    """So many of them at a time, and then the rest."""
    done = 0
    for length in lengths:
        yield arguments[done : done + length]
        done += length
    yield arguments[done:]


TOKEN, MADE, AROUND, HELD = (len(kind._fields) for kind in (Given, Projected, Surroundings, State))
"""How many arguments of an operator are what."""
STATE_WRITTEN = "Tensor(a!)[] point, Tensor(b!)[] weights, Tensor(c!)[] velocity, Tensor(d!) position"


@torch.library.custom_op(
    "lockstep::memory_token",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor[] point, Tensor[] weights, Tensor[] velocity, Tensor position, {SETTING})"
    " -> (Tensor reads, Tensor[] point, Tensor[] weights, Tensor[] velocity, Tensor position)",
)
def memory_token(*arguments: Any) -> tuple[Tensor, Pair, Pair, Pair, Tensor]:
    """Reads [batch, heads, width] after one token has been written, and the state then; everything is in one piece."""
    record(NAME)
    token, around, held, setting = split_at(arguments, TOKEN, AROUND, HELD)
    state = State(*held)
    after = state.room()
    return launch(Given(*token), Surroundings(*around), state, after, *setting), *after


@memory_token.register_fake
def _(queries: Tensor, *others: Any) -> tuple[Tensor, Pair, Pair, Pair, Tensor]:
    _, _, held, _ = split_at((queries, *others), TOKEN, AROUND, HELD)
    return torch.empty_like(queries), *State(*held).room()


@torch.library.custom_op(
    "lockstep::memory_token_",
    mutates_args=("point", "weights", "velocity", "position"),
    schema=f"({GIVEN}, {STATE_WRITTEN}, {SETTING}) -> Tensor",
)
def memory_token_(*arguments: Any) -> Tensor:
    """The same, written over the state, no two tensors of which may be one."""
    record(NAME)
    token, around, held, setting = split_at(arguments, TOKEN, AROUND, HELD)
    state = State(*held)
    return launch(Given(*token), Surroundings(*around), state, state, *setting)


@memory_token_.register_fake
def _(queries: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(queries)


@torch.library.custom_op(
    "lockstep::memory_token_of_",
    mutates_args=("tail", "point", "weights", "velocity", "position"),
    schema="(Tensor projected, Tensor weight, Tensor(e!) tail, Tensor x, Tensor gate_weight, Tensor gate_bias,"
    " float epsilon, bool decay, bool has_threshold, float largest, Tensor? read_norm, float read_epsilon,"
    f" {SURROUNDINGS}, {STATE_WRITTEN}, {SETTING}) -> Tensor",
)
def memory_token_of_(*arguments: Any) -> Tensor:
    """The same of what is projected, written over its tail as well."""
    record(NAME)
    token, around, held, setting = split_at(arguments, MADE, AROUND, HELD)
    made, state = Projected(*token), State(*held)
    if not made.tail.is_contiguous():
        raise ValueError("a tail that is written over must be in one piece")
    return launch(made, Surroundings(*around), state, state, *setting)


@memory_token_of_.register_fake
def _(projected: Tensor, *others: Any) -> Tensor:
    token, _, held, _ = split_at((projected, *others), MADE, AROUND, HELD)
    return projected.new_empty(State(*held).point[0].shape[:3], dtype=Projected(*token).dtype)
