"""Softmax attention: causal or bidirectional, full or windowed, with grouped key-value heads and persistent tokens."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.kernels.attention import looking
from lockstep.kernels.attention import window as kernels
from lockstep.memory.ownership import owned
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attending import attend, attend_in, skips
from lockstep.models.mixers.cache import KeyValueCache, Prefix
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.sight import Sight
from lockstep.models.rotary import rotate, speeds, table

POSITION_BYTES = 8


class Attention(Mixer):
    """Multi-head attention."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        causal: bool = True,
        window: int | None = None,
        rope_theta: float | None = None,
        rotary_dim: int | None = None,
        persistent: int = 0,
        bias: bool = False,
        dropout: float = 0.0,
        flex: bool = False,
        max_length: int = 1024,
    ) -> None:
        """`window` counts the token itself; `max_length` is the cache's capacity where none is asked for.

        `persistent` learned tokens are seen by every query, wherever it stands: their keys live in the part of a head
        that `rotary_dim` leaves unturned.
        """
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = dim // heads
        self.causal, self.window, self.rope_theta = causal, window, rope_theta
        self.rotary_dim = self.head_dim if rotary_dim is None else rotary_dim
        self.dropout, self.flex, self.max_length = dropout, flex, max_length
        self.qkv = nn.Linear(dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        # A table, as the tokens' own: optimizers neither decay nor orthogonalise it.
        self.persistent = nn.Embedding(persistent, dim) if persistent else None
        if persistent and (not causal or (rope_theta is not None and self.rotary_dim == self.head_dim)):
            raise ValueError("persistent tokens need causal attention, and a part of each head that is not turned")
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, state: KeyValueCache | None = None) -> Tensor:
        y: Tensor = self.output(self.mix(x) if state is None else self.mix_on(x, state)[0])
        return y

    def step(self, x: Tensor, state: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        mixed, state = self.mix_on(x, self.initial_state(x.shape[0]) if state is None else state)
        return self.output(mixed), state

    def mix(self, x: Tensor) -> Tensor:
        """Attention over a whole sequence, before the output projection."""
        return self.from_start(self.qkv(x))

    def from_start(self, qkv: Tensor) -> Tensor:
        """The same from its projections."""
        time = qkv.shape[1]
        positions = torch.arange(time, device=qkv.device)
        below = self.max_length if time <= self.max_length else None
        window = time if self.window is None else min(self.window, time)
        whole = self.persistent is None and window == time
        if not whole and self.by_kernel(qkv):
            return self.at_once(qkv, None, self.prefix(), window, max(time, self.max_length))
        queries, keys, values = self.apart(qkv, positions[None], below)
        if whole:
            return self.merge(self.attend(queries, keys, values, is_causal=self.causal))
        if self.skips(queries, keys, values):
            sight = Sight(1, window, time)
            return self.merge(attend_in(sight, queries, *self.before_prefix(keys, values, self.prefix())))
        if window < time:
            keys, values = (F.pad(x, (0, 0, window, 0)) for x in (keys, values))
            return self.merge(self.in_blocks(queries, keys, values, positions[:1], self.prefix()))
        mask = self.visible(positions, positions)[None]
        keys, values, mask = self.with_prefix(keys, values, mask, self.prefix())
        return self.merge(self.attend(queries, keys, values, mask[:, None]))

    def mix_on(self, x: Tensor, cache: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Attention over tokens that follow a cache, and the cache after them."""
        if not self.causal:
            raise ValueError("bidirectional attention cannot go token by token")
        qkv = self.qkv(x)
        if self.looks(qkv):
            return self.look(qkv, cache)
        positions = cache.position[:, None] + torch.arange(x.shape[1], device=x.device)
        queries, keys, values = self.apart(qkv, positions)
        self.require_room(cache, positions)
        if begins(cache.position, x.shape[1]):
            # No mask, and nothing of what a cache has room for.
            return self.from_start(qkv), cache.with_tokens(keys, values, self.pinned)
        if self.window is not None and x.shape[1] > 1:
            return self.in_window(queries, keys, values, cache)
        cache = cache.with_tokens(keys, values, self.pinned)
        slots = torch.arange(cache.keys.shape[2] - self.pinned, device=x.device)
        # Slots ahead of a query are not seen before all have been filled once, which a window's are.
        seen = (positions[..., None] >= slots) | (positions[..., None] >= len(slots))
        mask = F.pad(seen, (self.pinned, 0), value=True)
        return self.merge(self.attend(queries, cache.keys, cache.values, mask[:, None])), cache

    def in_window(
        self, queries: Tensor, keys: Tensor, values: Tensor, cache: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        """Of several tokens: what some of them push out of the cache, others still see."""
        past = cache.in_order(self.pinned)
        joined_keys, joined_values = (
            torch.cat((old, new.to(old.dtype)), dim=2) for old, new in zip(past, (keys, values), strict=True)
        )
        mixed = self.in_blocks(queries, joined_keys, joined_values, cache.position, cache.pinned(self.pinned))
        return self.merge(mixed), cache.with_tokens(keys, values, self.pinned)

    def require_room(self, cache: KeyValueCache, positions: Tensor) -> None:
        """For tokens at these positions, unless a window makes it."""
        # Reading the position costs a device synchronisation on a GPU, where the caller chooses the capacity.
        if self.window is not None or positions.device.type != "cpu":
            return
        capacity = cache.keys.shape[2] - self.pinned
        if int(positions.max()) >= capacity:
            raise ValueError(f"the cache holds {capacity} tokens, but position {int(positions.max())} was reached")

    def looks(self, qkv: Tensor) -> bool:
        """Whether our kernel looks at a cache for a single token."""
        return not self.dropping and looking.takes(qkv, self.head_dim)

    def look(
        self, qkv: Tensor, cache: KeyValueCache, said: Tensor | None = None, *, segmented: bool = False
    ) -> tuple[Tensor, KeyValueCache]:
        """Attention [batch, 1, dim] of one token by that kernel, see there; the cache after it."""
        held = looking.Cache(*map(owned, cache))
        rates = None
        if self.rope_theta is not None and self.rotary_dim:
            from lockstep.models.mixers.prepared import prepared

            rates = prepared(speeds, self.rotary_dim // 2, self.rope_theta, torch.float32, qkv.device)
        reads, held = looking.run(qkv, said, held, rates, self.heads, self.pinned, segmented)
        return reads, KeyValueCache(*held)

    @property
    def pinned(self) -> int:
        """Persistent tokens."""
        return 0 if self.persistent is None else self.persistent.num_embeddings

    def by_kernel(self, qkv: Tensor) -> bool:
        """Whether our kernel takes these projections as they are."""
        pairs = 0 if self.rope_theta is None else self.rotary_dim // 2
        return self.causal and not self.dropping and kernels.takes(qkv, self.head_dim, self.pinned, pairs)

    def at_once(self, qkv: Tensor, said: Tensor | None, prefix: Prefix, window: int, below: int) -> Tensor:
        """Attention [batch, time, dim] from projections by our kernel, from the first of fewer than `below` places on.

        In `said` are keys and values of a second row, [batch, time, 2 × kv_heads × head_dim], turned as the first.
        """
        own = prefix or (qkv.new_empty(self.kv_heads, 0, self.head_dim),) * 2
        if self.rope_theta is None or not self.rotary_dim:
            return kernels.run(qkv, said, own, None, window)
        from lockstep.models.mixers.prepared import prepared

        # Few tables for many lengths.
        places = 1 << (operator.index(below) - 1).bit_length()
        turns = prepared(table, places, self.rotary_dim // 2, self.rope_theta, qkv.device)
        return kernels.run(qkv, said, own, turns, window)

    def in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, first: Tensor, prefix: Prefix) -> Tensor:
        """Windowed attention in blocks no longer than the window: each sees itself and a window before it, no more.

        Keys and values [batch, kv_heads, window + time, head_dim] are those of the window before the queries, then
        theirs. The place of the first query, `first` [batch or 1], says how many there have been before it.
        """
        assert self.window is not None
        batch, _, time, _ = queries.shape
        # Of a length that torch's compiler does not know, it would not find out by itself that one block is one.
        block, blocks = (self.window, -(-time // self.window)) if time > self.window else (time, 1)
        inside = torch.arange(-self.window, block, device=queries.device)
        starts = first[:, None] + torch.arange(0, blocks * block, block, device=queries.device)
        mask = self.visible(inside[self.window :], inside) & (starts[..., None, None] + inside >= 0)
        mask = mask.expand(batch, -1, -1, -1).flatten(0, 1)
        queries = cut(queries, blocks, block, 0)
        keys, values = (cut(x, blocks, block, self.window) for x in (keys, values))
        keys, values, mask = self.with_prefix(keys, values, mask, prefix)
        mixed = self.attend(queries, keys, values, mask[:, None]).unflatten(0, (batch, blocks))
        joined: Tensor = mixed.transpose(1, 2).flatten(2, 3)[:, :, :time]
        return joined

    def initial_state(self, batch: int, capacity: int | None = None) -> KeyValueCache:
        return self.opened(batch, self.window or capacity or self.max_length)

    def opened(self, batch: int, slots: int) -> KeyValueCache:
        """A cache with room for as many tokens."""
        room = self.zeros(batch, self.kv_heads, slots, self.head_dim)
        position = torch.zeros(batch, dtype=torch.int64, device=room.device)
        # The persistent tokens' own projections are done here, once, and not again for every token.
        prefix = self.prefix() or (room[0, :, :0],) * 2
        keys, values = (torch.cat((part.expand(batch, -1, -1, -1), room), dim=2) for part in prefix)
        return KeyValueCache(keys, values, position)

    @torch.no_grad()
    def initialise(self) -> None:
        """Persistent tokens of the size that a norm gives the others."""
        if self.persistent is not None:
            nn.init.normal_(self.persistent.weight)

    def apart(self, qkv: Tensor, positions: Tensor, below: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, time, head_dim], turned by position where rotary.

        Their projections are [batch, time, (heads + 2 × kv_heads) × head_dim]. All positions are less than `below`, if
        that is known.
        """
        split = qkv.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        turned, values = split.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        queries, keys = self.turned(turned, positions, below).split((self.heads, self.kv_heads), dim=1)
        return queries, keys, values

    def turned(self, rows: Tensor, positions: Tensor, below: int | None = None) -> Tensor:
        """Queries or keys [batch, heads, time, head_dim], turned by position where rotary."""
        return rows if self.rope_theta is None else rotate(rows, positions, self.rope_theta, self.rotary_dim, below)

    def prefix(self) -> Prefix:
        """Keys and values [kv_heads, persistent, head_dim] of the persistent tokens."""
        if self.persistent is None:
            return ()
        width = self.heads * self.head_dim
        bias = None if self.qkv.bias is None else self.qkv.bias[width:]
        pair = F.linear(self.persistent.weight, self.qkv.weight[width:], bias).unflatten(-1, (2, self.kv_heads, -1))
        keys, values = pair.transpose(0, 2).unbind(1)
        if self.rope_theta is None:
            return keys, values
        still = torch.arange(self.head_dim, device=keys.device) >= self.rotary_dim
        return keys * still, values

    def with_prefix(self, keys: Tensor, values: Tensor, mask: Tensor, prefix: Prefix) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and mask [batch, queries, keys] with the persistent tokens first, which everybody sees."""
        keys, values = self.after_prefix(keys, values, prefix)
        return keys, values, F.pad(mask, (prefix[0].shape[-2], 0), value=True) if prefix else mask

    def after_prefix(self, keys: Tensor, values: Tensor, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Keys and values with those of the persistent tokens first."""
        own = spread(prefix, keys, values)
        return (torch.cat((own[0], keys), dim=2), torch.cat((own[1], values), dim=2)) if own else (keys, values)

    def before_prefix(self, keys: Tensor, values: Tensor, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """The same with those last, as `Sight` has them."""
        own = spread(prefix, keys, values)
        return (torch.cat((keys, own[0]), dim=2), torch.cat((values, own[1]), dim=2)) if own else (keys, values)

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which key positions a query position sees: [..., queries, keys] of bool."""
        distance = queries[..., :, None] - keys[..., None, :]
        causal = distance >= 0
        return causal if self.window is None else causal & (distance < self.window)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return attend(queries, keys, values, mask, is_causal=is_causal, dropout=self.dropping, flex=self.flex)

    def skips(self, queries: Tensor, keys: Tensor, values: Tensor) -> bool:
        """Whether what is seen is better given as a rule than as a mask."""
        return skips(queries, keys, values, self.dropping, self.flex)

    @property
    def dropping(self) -> float:
        """The dropout of this call."""
        return self.dropout if self.training else 0.0

    def merge(self, mixed: Tensor) -> Tensor:
        """[batch, heads, time, head_dim] to [batch, time, dim]."""
        return mixed.transpose(1, 2).flatten(2)

    def cost(self, length: int) -> Cost:
        return self.mixing_cost(length) + Cost(forward_flops=product_flops(*self.output.weight.shape))

    def mixing_cost(self, length: int) -> Cost:
        """All but the output projection; the persistent tokens' own is done once for a batch, and not counted."""
        queries, keys = length, length
        if self.window is not None and self.window < length:
            queries, keys = -(-length // self.window) * self.window, 2 * self.window
        width = self.heads * self.head_dim
        scores = 2 * product_flops(width, keys + self.pinned) * queries / length
        projections = product_flops(*self.qkv.weight.shape)
        slots = (self.window or length) + self.pinned
        one_token = 2 * product_flops(width, slots)
        cache = 2 * self.kv_heads * slots * self.head_dim * self.like.element_size() + POSITION_BYTES
        return Cost(
            forward_flops=projections + scores,
            decoding_extra=one_token - scores,
            state_bytes=cache if self.causal else 0,
        )


def begins(position: Tensor, time: int) -> bool:
    """Whether these tokens are known to be the first of every sequence, of which it is worth asking the device."""
    if time == 1 or position.is_meta or torch.compiler.is_compiling():
        return False
    return not position.any().item()


def spread(prefix: Prefix, keys: Tensor, values: Tensor) -> Prefix:
    """The prefix for every sample, in the precision of what it stands beside."""
    if not prefix:
        return ()
    own_keys, own_values = (part.expand(keys.shape[0], -1, -1, -1) for part in prefix)
    return own_keys.to(keys.dtype), own_values.to(values.dtype)


def cut(rows: Tensor, blocks: int, block: int, before: int) -> Tensor:
    """Blocks [batch × blocks, heads, before + block, dim] of rows [batch, heads, before + time, dim].

    Each has the `before` rows ahead of it in front. Where there are several blocks, `block` is `before`, or `before` 0.
    """
    missing = before + blocks * block - rows.shape[2]
    rows = F.pad(rows, (0, 0, 0, missing)) if missing else rows
    own: Tensor = rows[:, :, before:].unflatten(2, (blocks, block)).transpose(1, 2)
    if before:
        past = rows[:, :, : blocks * before].unflatten(2, (blocks, before)).transpose(1, 2)
        own = torch.cat((past, own), dim=3)
    return own.flatten(0, 1)
