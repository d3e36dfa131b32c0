"""One token of each row through a memory of two matrices, as decoding asks for it: where our kernels do that.

Of a row weights and velocity are read once, under kl one of the weights twice, its point by each program that shares
the row, and what comes after them is written once; all is computed in 32 bits, from tokens of 16 or 32. Derivatives
there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_decode
from lockstep.kernels.memory.token_brought import Projected

WIDTHS = (16, 32, 64, 128)
"""Of heads."""
HIDDEN = (16, 32, 64, 128, 256, 512)
LARGEST = 16384
"""Numbers of a matrix, of which a program has both at once."""
FEW = 128
"""Rows whose keys, values, queries and gates the kernel makes itself: as many as it has programs for. Of more, programs
come one after the other, and each makes again what a kernel before makes once; 1,024 took longer so on an H200."""

Matrices = tuple[Tensor, ...]


class Gates(Protocol):
    """[batch, heads, 1] each."""

    @property
    def keep(self) -> Tensor: ...
    @property
    def rate(self) -> Tensor: ...
    @property
    def momentum(self) -> Tensor | None: ...
    @property
    def threshold(self) -> Tensor | None: ...


class State(Protocol):
    """As `lockstep.memory.streaming` has it."""

    @property
    def point(self) -> Matrices: ...
    @property
    def weights(self) -> Matrices: ...
    @property
    def velocity(self) -> Matrices: ...
    @property
    def position(self) -> Tensor: ...
    def _replace(
        self, *, point: Matrices = ..., weights: Matrices = ..., velocity: Matrices = ..., position: Tensor = ...
    ) -> Self: ...


class Spec(Protocol):
    """What kernels know of `lockstep.memory.spec`."""

    @property
    def layers(self) -> int: ...
    @property
    def residual(self) -> bool: ...
    @property
    def norm(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def bias(self) -> str: ...
    @property
    def p(self) -> float: ...
    @property
    def huber_form(self) -> str: ...
    @property
    def retention(self) -> str: ...
    @property
    def q(self) -> float: ...
    @property
    def simplex(self) -> float: ...
    @property
    def decay_to(self) -> str: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def chunk(self) -> int: ...
    @property
    def read(self) -> str: ...


class Outer(Protocol):
    """As `lockstep.memory.types` has it."""

    @property
    def gain(self) -> Tensor | None: ...
    @property
    def shift(self) -> Tensor | None: ...
    @property
    def initial(self) -> Matrices | None: ...


S = TypeVar("S", bound=State)


def takes(queries: Tensor, weights: Matrices, spec: Spec) -> bool:
    """Whether these kernels should run for queries [batch, heads, time, width]: one token each, and no derivative."""
    known = queries.dtype in (torch.bfloat16, torch.float32) and knows(weights, spec)
    return known and ours_may_decode(queries, queries.shape[2])


def knows(weights: Matrices, spec: Spec) -> bool:
    """Whether there are kernels for such a memory."""
    if spec.layers != 2 or spec.clip is not None or spec.read != "after":
        return False
    (width, hidden), out = weights[0].shape[-2:], weights[1].shape[-1]
    fits = width in WIDTHS and hidden in HIDDEN and out == width and width * hidden <= LARGEST
    return fits and spec.bias != "dot" and weights[0].dtype is torch.float32


def makes(rows: int, weights: Matrices, spec: Spec) -> bool:
    """Whether it makes what so many rows bring, and does not have to be given it."""
    return rows <= FEW and knows(weights, spec)


def run(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, state: S, spec: Spec, outer: Outer
) -> tuple[Tensor, S]:
    """As `stream` for one token: reads [batch, heads, 1, width] and the state after it."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.memory.token_operator import memory_token

    held = [[matrix.contiguous() for matrix in pair] for pair in (state.point, state.weights, state.velocity)]
    token, setting = operands(queries, keys, values, gates, state, spec, outer)
    reads, point, weights, velocity, position = memory_token(*token, *held, state.position.contiguous(), *setting)
    after = state._replace(point=tuple(point), weights=tuple(weights), velocity=tuple(velocity), position=position)
    return reads[:, :, None], after


def run_over(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, state: S, spec: Spec, outer: Outer
) -> tuple[Tensor, S]:
    """The same, written over the state, which must be `separate`."""
    from lockstep.kernels.memory.token_operator import memory_token_

    require_separate(state)
    token, setting = operands(queries, keys, values, gates, state, spec, outer)
    held = [list(pair) for pair in (state.point, state.weights, state.velocity)]
    reads = memory_token_(*token, *held, state.position, *setting)
    return reads[:, :, None], state


def run_of(projected: Projected, state: S, spec: Spec, outer: Outer) -> tuple[Tensor, S]:
    """The same of a token whose rows and gates are yet to be made; its tail is written over too."""
    from lockstep.kernels.memory.token_operator import memory_token_of_

    require_separate(state)
    held = [list(pair) for pair in (state.point, state.weights, state.velocity)]
    reads = memory_token_of_(*projected, *around(state, spec, outer), *held, state.position, *setting_of(spec))
    return reads[:, :, None], state


def recall(queries: Tensor, weights: Matrices, spec: Spec, outer: Outer) -> Tensor:
    """As `recollect` for one token: reads [batch, heads, 1, width]; nothing is written."""
    from lockstep.kernels.memory.token_recall import recall_token

    held = [matrix.contiguous() for matrix in weights]
    reads: Tensor = recall_token(queries[:, :, 0].contiguous(), held, *lent(spec, outer), *asked(spec))
    return reads[:, :, None]


def recall_over(
    asking: tuple[Tensor, Tensor, Tensor, float],
    standing: Matrices,
    held: Matrices,
    when: tuple[Tensor, int],
    spec: Spec,
    outer: Outer,
) -> Tensor:
    """The same of a memory that stands for a segment: with a segment's first token, `held` is written over it.

    `asking` is the projected query [batch, heads, width] of one token, the weight [taps, heads × width] of a
    convolution, the tail [batch, taps - 1, heads × width] of what came before, which is written over, and what a length
    is at least. `when` are the tokens [batch] that have been seen, and those of a segment.
    """
    from lockstep.kernels.memory.token_recall import recall_token_

    latest = [matrix.contiguous() for matrix in held]
    reads: Tensor = recall_token_(*asking, list(standing), latest, *when, *lent(spec, outer), *asked(spec))
    return reads[:, :, None]


def require_separate(state: State) -> None:
    # A compiler knows nothing of addresses; whoever gave the state up has seen to it.
    if not torch.compiler.is_compiling() and not separate(state):
        raise ValueError("a state that is written over must be in tensors of their own, each in one piece")


def separate(state: State) -> bool:
    """Whether no two tensors of a state are one, and each lies in one piece."""
    tensors = [*state.point, *state.weights, *state.velocity, state.position]
    return all(x.is_contiguous() for x in tensors) and len({x.data_ptr() for x in tensors}) == len(tensors)


def operands(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, state: State, spec: Spec, outer: Outer
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What operators are given before the state and behind it."""
    tokens = (x[:, :, 0].contiguous() for x in (queries, keys, values))
    scalars = (present(gate, lambda x: x[:, :, 0].float().contiguous()) for gate in each(gates))
    return (*tokens, *scalars, *around(state, spec, outer)), setting_of(spec)


def around(state: State, spec: Spec, outer: Outer) -> tuple[Any, ...]:
    """What the outer model lends, and what is known of the state."""
    # In a kernel of its own: of the kernel for a token, each program writes over what the others would have to know.
    stood = state.weights[0].mean(dim=-1) if spec.retention == "kl" else None
    return *lent(spec, outer), stood, anchors(spec, outer)


def setting_of(spec: Spec) -> tuple[Any, ...]:
    """What kind of memory it is, and how it learns."""
    loss = spec.huber_form if spec.bias == "huber" else spec.bias
    return spec.chunk, loss, float(spec.p), *asked(spec)


def asked(spec: Spec) -> tuple[Any, ...]:
    """What a memory says to a query depends on this alone, but for its weights."""
    return spec.residual, spec.norm, spec.activation, spec.retention, float(spec.q), float(spec.simplex)


def lent(spec: Spec, outer: Outer) -> tuple[Tensor | None, ...]:
    """Gain and shift of the norm; without norm, nothing."""
    pair = (outer.gain, outer.shift) if spec.norm else (None, None)
    return tuple(present(x, Tensor.contiguous) for x in pair)


def each(gates: Gates) -> tuple[Tensor | None, ...]:
    return gates.keep, gates.rate, gates.momentum, gates.threshold


def present(x: Tensor | None, function: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if x is None else function(x)


def anchors(spec: Spec, outer: Outer) -> list[Tensor]:
    """Where forgetting leads, [heads or batch × heads, in, out] each; none is zero."""
    if spec.decay_to == "zero":
        return []
    if outer.initial is None:
        raise ValueError("decay to the initial weights needs them in `outer`")
    return [(matrix if matrix.ndim == 3 else matrix.flatten(0, 1)).contiguous() for matrix in outer.initial]
