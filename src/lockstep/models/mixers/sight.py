"""What a query sees of its keys as a rule of their places, by which flex_attention leaves out what nobody sees."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Places that are seen or left out together; flex_attention's own choice."""

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether, of this sample and head, this query sees this key."""


class Sight(NamedTuple):
    """Keys stand in rows, and some behind them; a query sees these, and in each row itself and those shortly before.

    What everybody sees comes last, so that rows begin where blocks do: fewer of these are then seen in part.
    """

    rows: int
    """How many; keys behind them everybody sees."""
    window: int
    """How many keys of a row a query sees at most, that of its own place included."""
    row: int
    """Keys in each row, as many as there are queries."""

    @property
    def rule(self) -> Rule:
        rows, window, row = self

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = query - key % row
            return (key >= rows * row) | ((distance >= 0) & (distance < window))

        return sees

    def blocks(self, keys: int, device: torch.device) -> BlockMask:
        """The rule for a row of queries and so many keys, made once."""
        from lockstep.models.mixers.prepared import prepared

        return prepared(block_mask, *(operator.index(size) for size in (*self, keys)), device)


def block_mask(rows: int, window: int, row: int, keys: int, device: torch.device) -> BlockMask:
    """As torch's create_block_mask, but one block of queries after the other: all pairs at once may be too many."""
    from torch.nn.attention.flex_attention import BlockMask

    rule = Sight(rows, window, row).rule
    key = torch.arange(-(-keys // BLOCK) * BLOCK, device=device)
    nobody = torch.zeros((), dtype=torch.int64, device=device)
    counts = []
    for first in range(0, row, BLOCK):
        query = torch.arange(first, first + BLOCK, device=device)[:, None]
        seen = rule(nobody, nobody, query, key) & (query < row) & (key < keys)
        counts.append(seen.unflatten(1, (-1, BLOCK)).sum(dim=(0, 2)))
    count = torch.stack(counts)[None, None]
    partly, wholly = (count > 0) & (count < BLOCK**2), count == BLOCK**2
    return BlockMask.from_kv_blocks(
        *in_order(partly), *in_order(wholly), BLOCK_SIZE=BLOCK, mask_mod=rule, seq_lengths=(row, keys)
    )


def in_order(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys are wanted by each block of queries, and which, those first."""
    first = wanted.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return wanted.sum(dim=-1, dtype=torch.int32), first.to(torch.int32).contiguous()
