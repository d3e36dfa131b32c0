"""Softmax attention itself, on torch's fused kernels or on flex_attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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

    `mask` [batch or 1, 1, queries, keys] says what is seen. flex_attention has no dropout, and on a CPU no derivative:
    where one of them is wanted, the same is computed by torch's fused attention.
    """
    keys, values = keys.to(queries.dtype), values.to(queries.dtype)
    grouped = keys.shape[1] != queries.shape[1]
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    device = queries.device.type
    if flex and not dropout and (device == "cuda" or (device == "cpu" and not learning)):
        return flexibly(queries, keys, values, mask, is_causal, grouped)
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, enable_gqa=grouped
    )


def flexibly(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool, grouped: bool
) -> Tensor:
    """The same by flex_attention, which skips blocks that nobody sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    sizes = (queries.shape[0], None, queries.shape[2], keys.shape[2])

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key if mask is None else mask[batch if mask.shape[0] > 1 else 0, 0, query, key]

    block_mask = create_block_mask(sees, *sizes, device=queries.device) if is_causal or mask is not None else None
    with warnings.catch_warnings():
        # On a CPU it is not compiled, and says so each time.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        mixed: Tensor = kernel(queries.device.type)(queries, keys, values, block_mask=block_mask, enable_gqa=grouped)
    return mixed


@cache
def kernel(device: str) -> Callable[..., Any]:
    """Compiled where that fuses it; on a CPU as it is."""
    from torch.nn.attention.flex_attention import flex_attention

    plain: Callable[..., Any] = flex_attention
    return plain if device == "cpu" else torch.compile(plain)
