"""The kernels of attention in a window as one differentiable operator, which a compiler does not look into."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.attention.adjoints import window_keys_kernel, window_queries_kernel
from lockstep.kernels.attention.reads import window_kernel
from lockstep.kernels.memory.recalling import reachable
from lockstep.kernels.record import record

NAME = "window"
TILE = 128
"""Bytes of a column: 64 queries, or keys, that a program takes at a time.

Of float32 it is 32, too few for the products of Hopper's whose operands may get lost: three passes of them would take
first operands apart before a loop, and keep the parts in registers.
"""


class Seen(NamedTuple):
    """One call."""

    queries: Tensor  # [batch, heads, time, width], `reachable`
    keys: Tensor  # [batch, kv_heads, time, width], likewise
    values: Tensor
    own_keys: Tensor  # [kv_heads, persistent, width], in one piece
    own_values: Tensor
    window: int

    @classmethod
    def of(cls, *arguments: Any) -> Seen:
        """Of what the operator is given."""
        queries, keys, values, own_keys, own_values, window = arguments
        tokens = reachable(queries), reachable(keys), reachable(values)
        return cls(*tokens, own_keys.contiguous(), own_values.contiguous(), window)

    @property
    def tiles(self) -> int:
        """Of a head; the last may be in part."""
        return -(-self.queries.shape[2] // tile(self.queries))

    @property
    def constants(self) -> dict[str, Any]:
        """Of every kernel."""
        # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
        precision = "tf32x3" if self.queries.dtype == torch.float32 else "tf32"
        heads = {"GROUP": self.queries.shape[1] // self.keys.shape[1], "WIDTH": self.queries.shape[3]}
        return heads | {"TOKENS": tile(self.queries), "PRECISION": precision, "num_warps": 4, "num_stages": 2}

    def programs(self, x: Tensor) -> tuple[int]:
        """One for each tile of these tokens."""
        return (x.shape[0] * x.shape[1] * self.tiles,)


def tile(tokens: Tensor) -> int:
    """How many of these are one."""
    return TILE // tokens.element_size()


def sheets(*tensors: Tensor) -> list[TensorDescriptor]:
    """[batch, heads, time, width], some tokens of a head a tile."""
    return [TensorDescriptor.from_tensor(x, [1, 1, tile(x), x.shape[3]]) for x in tensors]


def alike(x: Tensor) -> Tensor:
    """Room for as many tokens, as a model has them: heads next to each other."""
    batch, heads, time, width = x.shape
    return x.new_empty(batch, time, heads, width).transpose(1, 2)


def by_query(queries: Tensor) -> Tensor:
    """A number for each, in 32 bits, and as many more as fill the last tile."""
    batch, heads, time, _ = queries.shape
    tokens = tile(queries)
    return queries.new_empty(batch, heads, -(-time // tokens) * tokens, dtype=torch.float32)


def forward(seen: Seen) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, time, width], and the logarithms of what the weights of each query add up to."""
    reads, totals = alike(seen.queries), by_query(seen.queries)
    window_kernel[seen.programs(seen.queries)](
        *sheets(seen.queries, seen.keys, seen.values),
        seen.own_keys,
        seen.own_values,
        *sheets(reads),
        totals,
        seen.queries.shape[1],
        seen.tiles,
        seen.window,
        PERSISTENT=seen.own_keys.shape[1],
        **seen.constants,
    )
    return reads, totals


def backward(seen: Seen, reads: Tensor, totals: Tensor, reads_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of queries, keys and values, and of the persistent tokens, [2, kv_heads, persistent, width]."""
    queries_bar, own_bar, shared = through_queries(seen, reads, totals, reads_bar)
    own_bar = own_bar.to(seen.own_keys.dtype).contiguous()
    return queries_bar, *through_keys(seen, totals, shared, reads_bar), own_bar


def through_queries(seen: Seen, reads: Tensor, totals: Tensor, reads_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of the queries and of the persistent tokens, and what is left for the keys."""
    queries_bar, shared = alike(seen.queries), torch.empty_like(totals)
    batch, heads, *_ = seen.queries.shape
    kv_heads, persistent, width = seen.own_keys.shape
    own_bar = totals.new_empty(batch, heads, seen.tiles, 2, persistent, width)
    window_queries_kernel[seen.programs(seen.queries)](
        *sheets(seen.queries, seen.keys, seen.values),
        seen.own_keys,
        seen.own_values,
        *sheets(reads, reads_bar),
        totals,
        *sheets(queries_bar),
        own_bar,
        shared,
        heads,
        seen.tiles,
        seen.window,
        PERSISTENT=persistent,
        **seen.constants,
    )
    summed = own_bar.unflatten(1, (kv_heads, -1)).sum((0, 2, 3)).transpose(0, 1)
    return queries_bar, summed, shared


def through_keys(seen: Seen, totals: Tensor, shared: Tensor, reads_bar: Tensor) -> tuple[Tensor, Tensor]:
    """Adjoints of keys and values."""
    keys_bar, values_bar = alike(seen.keys), alike(seen.values)
    window_keys_kernel[seen.programs(seen.keys)](
        *sheets(seen.queries, seen.keys, seen.values, reads_bar),
        totals,
        shared,
        *sheets(keys_bar, values_bar),
        seen.keys.shape[1],
        seen.tiles,
        seen.window,
        **seen.constants,
    )
    return keys_bar, values_bar


SEEN = "Tensor queries, Tensor keys, Tensor values, Tensor own_keys, Tensor own_values"


@torch.library.custom_op(
    "lockstep::window", mutates_args=(), schema=f"({SEEN}, SymInt window) -> (Tensor reads, Tensor totals)"
)
def window(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Reads, and what the way back needs; see `Seen` for what is given."""
    record(NAME)
    return forward(Seen.of(*arguments))


@window.register_fake
def _(queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return alike(queries), by_query(queries)


@torch.library.custom_op(
    "lockstep::window_backward",
    mutates_args=(),
    schema=f"({SEEN}, Tensor reads, Tensor totals, Tensor reads_bar, SymInt window)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def window_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """As `backward`."""
    *tokens, reads, totals, reads_bar, width = arguments
    return backward(Seen.of(*tokens, width), reachable(reads), totals, reachable(reads_bar))


@window_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tokens, own_keys, _ = arguments[:5]
    return *map(alike, tokens), own_keys.new_empty(2, *own_keys.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tokens, ctx.window = inputs
    ctx.save_for_backward(*tokens, *output)
    ctx.mark_non_differentiable(output[1])


def _through(ctx: Any, reads_bar: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    *tokens_bar, own_bar = window_backward(*ctx.saved_tensors, reads_bar, ctx.window)
    return *tokens_bar, *own_bar.unbind(), None


window.register_autograd(_through, setup_context=_keep)
