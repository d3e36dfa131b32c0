"""Softmax attention: causal or bidirectional, full or windowed, with grouped key-value heads."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.rotary import rotate

POSITION_BYTES = 8


class KeyValueCache(NamedTuple):
    """What attention remembers.

    Full attention keeps `capacity` slots, filled from the left. Windowed attention keeps the last `window` tokens,
    the newest at the right end; slots before the first token are empty.
    """

    keys: Tensor  # [batch, kv_heads, slots, head_dim]
    values: Tensor  # [batch, kv_heads, slots, head_dim]
    position: Tensor  # [batch], tokens seen


class Attention(Mixer):
    """Multi-head attention on SDPA."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        causal: bool = True,
        window: int | None = None,
        rope_theta: float | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        max_length: int = 1024,
    ) -> None:
        """`window` counts the token itself; `max_length` is the cache's capacity where none is asked for."""
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = dim // heads
        self.causal, self.window, self.rope_theta = causal, window, rope_theta
        self.dropout, self.max_length = dropout, max_length
        self.qkv = nn.Linear(dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, state: KeyValueCache | None = None) -> Tensor:
        if state is not None:
            return self.step(x, state)[0]
        time = x.shape[1]
        positions = torch.arange(time, device=x.device)
        queries, keys, values = self.project(x, positions[None])
        if self.window is None or self.window >= time:
            return self.attend(queries, keys, values, is_causal=self.causal)
        return self.attend(queries, keys, values, mask=self.visible(positions, positions))

    def step(self, x: Tensor, state: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        if not self.causal:
            raise ValueError("bidirectional attention cannot go token by token")
        cache = self.initial_state(x.shape[0]) if state is None else state
        positions = cache.position[:, None] + torch.arange(x.shape[1], device=x.device)
        queries, keys, values = self.project(x, positions)
        remember = self._append if self.window is None else self._shift
        keys, values, key_positions, cache = remember(cache, keys, values, positions)
        mask = self.visible(positions, key_positions) & (key_positions >= 0)[:, None, :]
        return self.attend(queries, keys, values, mask=mask[:, None]), cache

    def _append(
        self, cache: KeyValueCache, keys: Tensor, values: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, KeyValueCache]:
        """Fill the next slots; every slot is a key, those ahead of the query being masked."""
        capacity = cache.keys.shape[2]
        # Reading the position costs a device synchronisation on a GPU, where the caller chooses the capacity.
        if positions.device.type == "cpu" and int(positions.max()) >= capacity:
            raise ValueError(f"the cache holds {capacity} tokens, but position {int(positions.max())} was reached")
        slots = positions[:, None, :, None].expand_as(keys)
        filled = KeyValueCache(
            cache.keys.scatter(2, slots, keys.to(cache.keys.dtype)),
            cache.values.scatter(2, slots, values.to(cache.values.dtype)),
            cache.position + positions.shape[1],
        )
        return filled.keys, filled.values, torch.arange(capacity, device=keys.device)[None], filled

    def _shift(
        self, cache: KeyValueCache, keys: Tensor, values: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, KeyValueCache]:
        """Add at the right and let what leaves the window fall off at the left."""
        window = cache.keys.shape[2]
        keys = torch.cat((cache.keys, keys.to(cache.keys.dtype)), dim=2)
        values = torch.cat((cache.values, values.to(cache.values.dtype)), dim=2)
        past = cache.position[:, None] + torch.arange(-window, 0, device=keys.device)
        position = cache.position + positions.shape[1]
        # Cloned, because a view would keep the keys of a whole prefill alive.
        kept = KeyValueCache(keys[:, :, -window:].clone(), values[:, :, -window:].clone(), position)
        return keys, values, torch.cat((past, positions), dim=1), kept

    def initial_state(self, batch: int, capacity: int | None = None) -> KeyValueCache:
        slots = self.window or capacity or self.max_length
        shape = (batch, self.kv_heads, slots, self.head_dim)
        position = torch.zeros(batch, dtype=torch.int64, device=self.like.device)
        return KeyValueCache(self.zeros(*shape), self.zeros(*shape), position)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, time, head_dim], turned by position where rotary."""
        split = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        queries, keys, values = split.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rope_theta is not None:
            queries = rotate(queries, positions, self.rope_theta)
            keys = rotate(keys, positions, self.rope_theta)
        return queries, keys, values

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which key positions a query position sees: [..., queries, keys] of bool."""
        distance = queries[..., :, None] - keys[..., None, :]
        causal = distance >= 0
        return causal if self.window is None else causal & (distance < self.window)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        mixed = F.scaled_dot_product_attention(
            queries,
            keys.to(queries.dtype),
            values.to(queries.dtype),
            attn_mask=mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.kv_heads != self.heads,
        )
        y: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return y

    def cost(self, length: int) -> Cost:
        width = self.heads * self.head_dim
        projections = product_flops(*self.qkv.weight.shape) + product_flops(*self.output.weight.shape)
        scores = 2 * product_flops(width, length)
        slots = self.window or length
        cache = 2 * self.kv_heads * slots * self.head_dim * self.like.element_size() + POSITION_BYTES
        return Cost(forward_flops=projections + scores, state_bytes=cache if self.causal else 0)
