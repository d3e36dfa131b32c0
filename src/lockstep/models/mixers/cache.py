"""What attention remembers of tokens: keys and values in slots, where nothing moves when another token comes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.ownership import is_given_up

Prefix = tuple[Tensor, Tensor] | tuple[()]
"""Keys and values of persistent tokens, if there are any."""


class KeyValueCache(NamedTuple):
    """Persistent tokens, then as many slots as a window has tokens, or as there is room for.

    Token p is in slot p modulo their number, counted behind the persistent tokens.
    """

    keys: Tensor  # [batch, kv_heads, persistent + slots, head_dim]
    values: Tensor
    position: Tensor  # [batch], tokens seen

    def pinned(self, persistent: int) -> Prefix:
        """Of persistent tokens, [kv_heads, persistent, head_dim] each: those of one sample are those of all."""
        return (self.keys[0, :, :persistent], self.values[0, :, :persistent]) if persistent else ()

    def with_tokens(self, keys: Tensor, values: Tensor, persistent: int) -> KeyValueCache:
        """After these tokens [batch, kv_heads, time, head_dim], of which the last stay."""
        time, slots = keys.shape[2], self.keys.shape[2] - persistent
        last = min(time, slots)
        places = self.position[:, None] + torch.arange(time - last, time, device=keys.device)
        at = persistent + places % slots
        kept = (put(self.keys, at, keys[:, :, -last:]), put(self.values, at, values[:, :, -last:]))
        return KeyValueCache(*kept, self.position + time)

    def in_order(self, persistent: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the last tokens, the newest last, one for each slot.

        Slots that no token has filled hold anything, and the caller masks them.
        """
        slots = self.keys.shape[2] - persistent
        places = self.position[:, None] + torch.arange(-slots, 0, device=self.keys.device)
        at = (persistent + places % slots)[:, None, :, None].expand(-1, self.keys.shape[1], -1, self.keys.shape[3])
        return self.keys.gather(2, at), self.values.gather(2, at)


def put(cache: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """The cache [batch, heads, all slots, head_dim] with rows [batch, heads, time, head_dim] at slots [batch, time]."""
    # Not by scatter, for which compilers copy the cache there and back.
    sample = torch.arange(cache.shape[0], device=cache.device)[:, None, None]
    head = torch.arange(cache.shape[1], device=cache.device)[:, None]
    where, rows = (sample, head, slots[:, None]), rows.to(cache.dtype)
    return cache.index_put_(where, rows) if is_given_up() else cache.index_put(where, rows)
