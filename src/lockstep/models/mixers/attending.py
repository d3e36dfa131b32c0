"""Softmax attention itself, on torch's fused kernels or on flex_attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.models.mixers.sight import Sight

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

NARROWEST = 16
"""Numbers of a head, for flex_attention's kernels on a GPU."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
    flex: bool = False,
) -> Tensor:
    """Mix values [batch, kv_heads, keys, dim] for queries [batch, heads, queries, dim].

    `mask` [batch or 1, 1, queries, keys] says what is seen. Where flex_attention cannot do what is asked, the same is
    computed by torch's fused attention.
    """
    keys, values = keys.to(queries.dtype), values.to(queries.dtype)
    if flex and flexible(queries, keys, values, dropout):
        return flexibly(queries, keys, values, mask, is_causal)
    grouped = keys.shape[1] != queries.shape[1]
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, enable_gqa=grouped
    )


def attend_in(sight: Sight, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same by flex_attention, with what is seen as a rule: no mask is made, and what nobody sees costs nothing."""
    keys, values = keys.to(queries.dtype), values.to(queries.dtype)
    return by_blocks(queries, keys, values, sight.blocks(keys.shape[2], queries.device))


def skips(queries: Tensor, keys: Tensor, values: Tensor, dropout: float, flex: bool) -> bool:
    """Whether `attend_in` is the way to go: on a GPU, in training, in a compiled model, and where it is asked for.

    Elsewhere torch's fused attention needs nothing compiled, and can be listened to.
    """
    if queries.device.type != "cuda" or not flexible(queries, keys, values, dropout):
        return False
    return flex or torch.compiler.is_compiling() or learning(queries, keys, values)


def flexible(queries: Tensor, keys: Tensor, values: Tensor, dropout: float) -> bool:
    """What flex_attention can: no dropout, on a CPU no derivative, on a GPU neither narrow heads nor float64."""
    if queries.device.type == "cpu":
        return not dropout and not learning(queries, keys, values)
    fits = queries.shape[-1] >= NARROWEST and queries.dtype != torch.float64
    return queries.device.type == "cuda" and fits and not dropout


def learning(*tensors: Tensor) -> bool:
    """Whether a derivative is wanted."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def flexibly(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """`attend` by flex_attention, which skips blocks that nobody sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    sizes = (queries.shape[0], None, queries.shape[2], keys.shape[2])

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key if mask is None else mask[batch if mask.shape[0] > 1 else 0, 0, query, key]

    block_mask = create_block_mask(sees, *sizes, device=queries.device) if is_causal or mask is not None else None
    return by_blocks(queries, keys, values, block_mask)


def by_blocks(queries: Tensor, keys: Tensor, values: Tensor, block_mask: BlockMask | None) -> Tensor:
    """flex_attention itself, whether or not its caller is being compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    grouped = keys.shape[1] != queries.shape[1]
    mixed: Tensor
    if torch.compiler.is_compiling():
        mixed = flex_attention(queries, keys, values, block_mask=block_mask, enable_gqa=grouped)
    else:
        with warnings.catch_warnings():
            # On a CPU it is not compiled, and says so each time.
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            mixed = kernel(queries.device.type)(queries, keys, values, block_mask=block_mask, enable_gqa=grouped)
    return mixed


@cache
def kernel(device: str) -> Callable[..., Any]:
    """Compiled where that fuses it; on a CPU as it is."""
    from torch.nn.attention.flex_attention import flex_attention

    plain: Callable[..., Any] = flex_attention
    return plain if device == "cpu" else torch.compile(plain)
