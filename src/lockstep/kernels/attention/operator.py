"""The kernels of attention in a window as one differentiable operator, which a compiler does not look into.

It takes projections as they lie, and gives their adjoints so: what is turned, joined or put in another order on the way
is nobody else's affair. Queries and keys are turned once more on the way back, which is cheaper than to keep them, and
their adjoints are turned back by whoever makes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.attention.adjoints import window_keys_kernel, window_queries_kernel
from lockstep.kernels.attention.reads import window_kernel
from lockstep.kernels.attention.turning import turn
from lockstep.kernels.memory.recalling import reachable
from lockstep.kernels.record import record

NAME = "window"


class Tiles(NamedTuple):
    """How many queries and keys meet at a time in a program."""

    queries: int
    keys: int
    num_warps: int = 4
    num_stages: int = 2


READING = THROUGH_QUERIES = THROUGH_KEYS = Tiles(64, 64)
"""Of queries, no tile is larger than that of the one before: what each leaves of a tile the next will find."""
EXACTLY = Tiles(32, 32)
"""Of float32: too few for the products of Hopper's whose operands may get lost: three passes of them would take first
operands apart before a loop, and keep the parts in registers."""


class Row(NamedTuple):
    """Keys and values of as many tokens as there are queries, [batch, kv_heads, time, width]."""

    keys: Tensor
    values: Tensor


class Seen(NamedTuple):
    """One call."""

    qkv: Tensor  # [batch, time, (heads + 2 × kv_heads) × width], `reachable`
    said: Tensor | None  # [batch, time, 2 × kv_heads × width]: keys and values of a second row
    own_keys: Tensor  # [kv_heads, persistent, width], in one piece
    own_values: Tensor
    turns: Tensor | None  # [2, places, half], of at least as many places as there are tokens
    window: int

    @classmethod
    def of(cls, *arguments: Any) -> Seen:
        """Of what the operator is given."""
        qkv, said, own_keys, own_values, *rest = arguments
        tokens = reachable(qkv), None if said is None else reachable(said)
        return cls(*tokens, own_keys.contiguous(), own_values.contiguous(), *rest)

    @property
    def heads(self) -> int:
        return self.qkv.shape[2] // self.own_keys.shape[2] - 2 * self.kv_heads

    @property
    def kv_heads(self) -> int:
        return self.own_keys.shape[0]

    @property
    def exact(self) -> bool:
        return self.qkv.dtype == torch.float32

    @property
    def room(self) -> int:
        """Of a head's queries, the last tile filled."""
        tile = (EXACTLY if self.exact else READING).queries
        return -(-self.qkv.shape[1] // tile) * tile

    def constants(self, tiles: Tiles) -> dict[str, Any]:
        """Of every kernel."""
        # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
        numbers = {"WIDTH": self.own_keys.shape[2], "PRECISION": "tf32x3" if self.exact else "tf32"}
        speed = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
        return {"GROUP": self.heads // self.kv_heads, **numbers, **speed}

    @property
    def turning(self) -> dict[str, int]:
        """Of kernels that turn adjoints back."""
        _, places, half = (0, 0, 0) if self.turns is None else self.turns.shape
        return {"turning_places": places, "HALF": half}

    def headed(self, x: Tensor) -> Tensor:
        """[batch, time, heads × width] as [batch, heads, time, width]."""
        apart: Tensor = x.unflatten(2, (-1, self.own_keys.shape[2]))
        return apart.transpose(1, 2)

    def parts(self, x: Tensor) -> tuple[Tensor, Row]:
        """Of projections or of their adjoints, queries, if there are any, and the row of keys and values."""
        queries, keys, values = self.headed(x).tensor_split((-2 * self.kv_heads, -self.kv_heads), dim=1)
        return queries, Row(keys, values)

    def compared(self) -> tuple[Tensor, Row, Row | None]:
        """Queries [batch, heads, time, width], and the rows of keys and values; what turns is turned."""
        queries, row = self.turned(self.qkv)
        return queries, row, None if self.said is None else self.turned(self.said)[1]

    def turned(self, x: Tensor) -> tuple[Tensor, Row]:
        """As `parts`, but for the values turned."""
        if self.turns is None:
            return self.parts(x)
        both, values = self.headed(x).tensor_split((-self.kv_heads,), dim=1)
        queries, keys = turn(both, self.turns).tensor_split((-self.kv_heads,), dim=1)
        return queries, Row(keys, values)

    def places(self, heads: int, tokens: int) -> tuple[int, int, int, int, int]:
        """What kernels find their work by: rows, heads, tiles of so many tokens, room and window."""
        return len(self.qkv) * heads, heads, -(-self.qkv.shape[1] // tokens), self.room, self.window


def sheets(tokens: int, *tensors: Tensor | None) -> list[TensorDescriptor | None]:
    """[batch, heads, time, width], so many tokens of a head a tile."""
    return [None if x is None else TensorDescriptor.from_tensor(x, [1, 1, tokens, x.shape[3]]) for x in tensors]


def forward(seen: Seen) -> tuple[Tensor, Tensor]:
    """Reads [batch, time, heads × width], and the logarithms of what the weights of each query add up to."""
    (queries, row, said), tiles = seen.compared(), EXACTLY if seen.exact else READING
    reads, totals = rooms(seen)
    places = seen.places(seen.heads, tiles.queries)
    window_kernel[(places[0] * places[2],)](
        *sheets(tiles.queries, queries),
        *sheets(tiles.keys, *row, *(said or (None, None))),
        seen.own_keys,
        seen.own_values,
        *sheets(tiles.queries, seen.headed(reads)),
        totals,
        *places,
        PERSISTENT=seen.own_keys.shape[1],
        **seen.constants(tiles),
    )
    return reads, totals


def rooms(seen: Seen) -> tuple[Tensor, Tensor]:
    """For reads, and for a number in 32 bits of each query."""
    batch, time, _ = seen.qkv.shape
    reads = seen.qkv.new_empty(batch, time, seen.heads * seen.own_keys.shape[2])
    return reads, seen.qkv.new_empty(batch, seen.heads, seen.room, dtype=torch.float32)


def backward(seen: Seen, reads: Tensor, totals: Tensor, reads_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of the projections, of the second row's, and of persistent tokens, [2, kv_heads, persistent, width]."""
    queries, row, said = seen.compared()
    bars = seen.headed(reads), seen.headed(reads_bar)
    qkv_bar = torch.empty_like(seen.qkv)
    said_bar = qkv_bar.new_empty(0) if seen.said is None else torch.empty_like(seen.said)
    queries_bar, row_bar = seen.parts(qkv_bar)
    own_bar, shared = through_queries(seen, queries, row, said, *bars, totals, queries_bar)
    through_keys(seen, queries, row, bars[1], totals, shared, row_bar)
    if said is not None:
        through_keys(seen, queries, said, bars[1], totals, shared, seen.parts(said_bar)[1])
    return qkv_bar, said_bar, own_bar


def through_queries(
    seen: Seen,
    queries: Tensor,
    row: Row,
    said: Row | None,
    reads: Tensor,
    reads_bar: Tensor,
    totals: Tensor,
    queries_bar: Tensor,
) -> tuple[Tensor, Tensor]:
    """Adjoints of the persistent tokens, and what is left for the keys; those of the queries are filled in."""
    shared, tiles = torch.empty_like(totals), EXACTLY if seen.exact else THROUGH_QUERIES
    kv_heads, persistent, width = seen.own_keys.shape
    places = seen.places(seen.heads, tiles.queries)
    own_bar = totals.new_empty(len(queries), seen.heads, places[2], 2, persistent, width)
    window_queries_kernel[(places[0] * places[2],)](
        *sheets(tiles.queries, queries),
        *sheets(tiles.keys, *row, *(said or (None, None))),
        seen.own_keys,
        seen.own_values,
        seen.turns,
        *sheets(tiles.queries, reads, reads_bar),
        totals,
        *sheets(tiles.queries, queries_bar),
        own_bar,
        shared,
        *places,
        PERSISTENT=persistent,
        **seen.turning,
        **seen.constants(tiles),
    )
    summed = own_bar.unflatten(1, (kv_heads, -1)).sum((0, 2, 3)).transpose(0, 1)
    return summed.to(seen.own_keys.dtype).contiguous(), shared


def through_keys(
    seen: Seen, queries: Tensor, row: Row, reads_bar: Tensor, totals: Tensor, shared: Tensor, bars: Row
) -> None:
    """The adjoints of a row are filled in."""
    tiles = EXACTLY if seen.exact else THROUGH_KEYS
    places = seen.places(seen.kv_heads, tiles.keys)
    window_keys_kernel[(places[0] * places[2],)](
        *sheets(tiles.queries, queries),
        *sheets(tiles.keys, *row),
        seen.turns,
        *sheets(tiles.queries, reads_bar),
        totals,
        shared,
        *sheets(tiles.keys, *bars),
        *places,
        seen.qkv.shape[1],
        **seen.turning,
        **seen.constants(tiles),
    )


SEEN = "Tensor qkv, Tensor? said, Tensor own_keys, Tensor own_values, Tensor? turns"


@torch.library.custom_op(
    "lockstep::window", mutates_args=(), schema=f"({SEEN}, SymInt window) -> (Tensor reads, Tensor totals)"
)
def window(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Reads, and what the way back needs; see `Seen` for what is given."""
    record(NAME)
    return forward(Seen.of(*arguments))


@window.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    return rooms(Seen(*arguments))


@torch.library.custom_op(
    "lockstep::window_backward",
    mutates_args=(),
    schema=f"({SEEN}, Tensor reads, Tensor totals, Tensor reads_bar, SymInt window) -> (Tensor, Tensor, Tensor)",
)
def window_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """As `backward`."""
    *tokens, reads, totals, reads_bar, width = arguments
    return backward(Seen.of(*tokens, width), reads, totals, reachable(reads_bar))


@window_backward.register_fake
def _(qkv: Tensor, said: Tensor | None, own_keys: Tensor, *_: Any) -> tuple[Tensor, ...]:
    said_bar = qkv.new_empty(0) if said is None else said.new_empty(said.shape)
    return qkv.new_empty(qkv.shape), said_bar, own_keys.new_empty(2, *own_keys.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tokens, ctx.window = inputs
    ctx.save_for_backward(*tokens, *output)
    ctx.mark_non_differentiable(output[1])


def _through(ctx: Any, reads_bar: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    qkv_bar, said_bar, own_bar = window_backward(*ctx.saved_tensors, reads_bar, ctx.window)
    said_bar = None if ctx.saved_tensors[1] is None else said_bar
    return qkv_bar, said_bar, *own_bar.unbind(), None, None


window.register_autograd(_through, setup_context=_keep)
