"""The kernel of `token_step` as two operators: one leaves the state as it was, the other writes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.arrivals import counters
from lockstep.kernels.memory.token_step import token_kernel
from lockstep.kernels.record import record
from lockstep.kernels.succession import IN_TURN, started

NAME = "memory token"
PROGRAMS = 128
"""Of all rows: half as many, and twice as many, took longer on an H200."""
FEWEST = 8
"""Hidden units of a program at least: the columns of a matrix that a device fetches at once."""
LARGEST = 4096
"""Numbers of each matrix that a program steps at most, if that can be: what registers hold next to the whole point."""

LENT = "Tensor? gain, Tensor? shift"
TOKEN = (
    "Tensor queries, Tensor keys, Tensor values, Tensor keep, Tensor rate, Tensor? momentum, Tensor? threshold,"
    f" {LENT}, Tensor? stood, Tensor[] anchors"
)
KIND = "bool residual, bool norm, str activation, str retention, float q, float simplex"
CONSTANTS = ("RESIDUAL", "NORM", "ACTIVATION", "RETENTION", "Q", "SIMPLEX")
"""What kernels call these."""
SETTING = f"int chunk, str bias, float p, {KIND}"
Pair = Sequence[Tensor]
"""A first and a second matrix of each row, or nothing."""


class Token(NamedTuple):
    """What is written and read, and what the outer model lends."""

    queries: Tensor  # [batch, heads, width], and so on for keys and values
    keys: Tensor
    values: Tensor
    keep: Tensor  # [batch, heads], and so on for the other gates
    rate: Tensor
    momentum: Tensor | None
    threshold: Tensor | None
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


COUNT = len(Token._fields)
BEHIND = COUNT + len(State._fields)
"""Where the setting begins."""


def programs(rows: int, width: int, hidden: int) -> int:
    """That share a row, a power of two: as many as PROGRAMS allow, and no fewer than registers do."""
    split = max(1, width * hidden // LARGEST)
    while rows * split * 2 <= PROGRAMS and hidden // (split * 2) >= FEWEST:
        split *= 2
    return split


def launch(token: Token, state: State, after: State, setting: Sequence[Any]) -> Tensor:
    """Reads like the queries; the state after the token goes into `after`, which may be the state itself."""
    chunk, bias, p, *kind = setting
    batch, heads, width = token.queries.shape
    rows, hidden = batch * heads, state.point[0].shape[-1]
    split = programs(rows, width, hidden)
    over, reads = after is state, torch.empty_like(token.queries)
    parts = None if split == 1 else reads.new_empty(rows, split, width, dtype=torch.float32)
    token_kernel[(rows * split,)](
        *token[:-1],
        *(token.anchors or (None, None)),
        *state.matrices,
        state.position,
        *after.matrices,
        after.position,
        reads,
        parts,
        counters("memory_token_" if over else "memory_token", reads.device, rows + batch),
        heads,
        token.anchors[0].shape[0] if token.anchors else 1,
        WIDTH=width,
        HIDDEN=hidden,
        CHUNK=chunk,
        SPLIT=split,
        IN_PLACE=over,
        BIAS=bias,
        P=p,
        **dict(zip(CONSTANTS, kind, strict=True)),
        num_warps=8,
        **(started(reads) if over else IN_TURN),
    )
    return reads


@torch.library.custom_op(
    "lockstep::memory_token",
    mutates_args=(),
    schema=f"({TOKEN}, Tensor[] point, Tensor[] weights, Tensor[] velocity, Tensor position, {SETTING})"
    " -> (Tensor reads, Tensor[] point, Tensor[] weights, Tensor[] velocity, Tensor position)",
)
def memory_token(*arguments: Any) -> tuple[Tensor, Pair, Pair, Pair, Tensor]:
    """Reads [batch, heads, width] after one token has been written, and the state then; everything is in one piece."""
    record(NAME)
    state = State(*arguments[COUNT:BEHIND])
    after = state.room()
    return launch(Token(*arguments[:COUNT]), state, after, arguments[BEHIND:]), *after


@memory_token.register_fake
def _(queries: Tensor, *others: Any) -> tuple[Tensor, Pair, Pair, Pair, Tensor]:
    return torch.empty_like(queries), *State(*others[COUNT - 1 : BEHIND - 1]).room()


@torch.library.custom_op(
    "lockstep::memory_token_",
    mutates_args=("point", "weights", "velocity", "position"),
    schema=f"({TOKEN}, Tensor(a!)[] point, Tensor(b!)[] weights, Tensor(c!)[] velocity, Tensor(d!) position, {SETTING})"
    " -> Tensor",
)
def memory_token_(*arguments: Any) -> Tensor:
    """The same, written over the state, no two tensors of which may be one."""
    record(NAME)
    state = State(*arguments[COUNT:BEHIND])
    return launch(Token(*arguments[:COUNT]), state, state, arguments[BEHIND:])


@memory_token_.register_fake
def _(queries: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(queries)
