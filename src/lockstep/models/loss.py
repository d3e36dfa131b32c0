"""The loss of a prediction, token by token, and how to have it without the logits of all tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""A target that is not supervised."""

PIECE_BYTES = 2**29
"""The logits of one piece of tokens, in float32, take no more than this: half a gibibyte.

Larger pieces mean fewer additions to the output table's gradient, one for each piece; a few copies of a piece's logits
live at once. A byte vocabulary of 258 tokens reaches it at half a million tokens.
"""


class TokenLosses(NamedTuple):
    """How targets [batch, time] were met; each field has their shape."""

    losses: Tensor
    """In nats, smoothed where that was asked for: what training descends. Zero where the target is IGNORED."""
    nats: Tensor
    """The same without smoothing, and without a gradient."""
    hits: Tensor | None
    """Whether the likeliest token is the target; None where gradients are recorded, since training does not ask."""


def token_losses(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy in nats, [batch, time]; zero where the target is IGNORED.

    logits [batch, time, vocab] at each position, targets [batch, time] what stands there to be predicted.
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        exact.flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    ).view_as(targets)


def losses_of_logits(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> TokenLosses:
    """Of logits [batch, time, vocab] that exist already."""
    # A copy of its own: FSDP warns of modules that return views.
    losses = token_losses(logits, targets, label_smoothing).clone()
    nats = (losses if label_smoothing == 0 else token_losses(logits.detach(), targets)).detach()
    return TokenLosses(losses, nats, None if torch.is_grad_enabled() else logits.argmax(dim=-1) == targets)


def projected_losses(
    hidden: Tensor, head: nn.Linear, targets: Tensor, label_smoothing: float = 0.0, piece_bytes: int = PIECE_BYTES
) -> TokenLosses:
    """What `losses_of_logits(head(hidden), ...)` gives, with the logits of one piece of tokens at a time.

    hidden [batch, time, dim], normalised rows; targets [batch, time]. No piece's logits are kept for the way back: they
    are computed once more there. When all logits fit into one piece, nothing is computed twice, and it is the plain
    way to the last bit.
    """
    rows = piece_rows(targets.numel(), head.out_features, hidden.dtype, piece_bytes)
    if rows >= targets.numel():
        return losses_of_logits(head(hidden), targets, label_smoothing)
    pieces = zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
    found = [_piece_losses(some, head, wanted, smoothed=label_smoothing != 0) for some, wanted in pieces]
    nats = torch.cat([piece.nats for piece in found]).view_as(targets)
    even, hits = (_joined([piece[field] for piece in found], targets) for field in (1, 2))
    losses = nats.clone() if even is None else (1 - label_smoothing) * nats + label_smoothing * even
    return TokenLosses(losses, nats.detach(), hits)


def piece_rows(tokens: int, vocabulary: int, dtype: torch.dtype, piece_bytes: int) -> int:
    """How many tokens a piece has: as many as fit, at least one, and all pieces but the last alike."""
    fitting = max(1, piece_bytes // (vocabulary * torch.promote_types(dtype, torch.float32).itemsize))
    count = max(1, -(-tokens // fitting))
    return -(-tokens // count)


class _PieceLosses(NamedTuple):
    """Of some tokens, [tokens] each. How much is smoothed is not asked here: no number can enter a compiled piece."""

    nats: Tensor
    even: Tensor | None
    """The loss if all tokens of the vocabulary were the target to the same degree; None without smoothing."""
    hits: Tensor | None


def _piece_losses(rows: Tensor, head: nn.Linear, targets: Tensor, smoothed: bool) -> _PieceLosses:
    """Of rows [tokens, dim] and targets [tokens], with nothing kept of what lies in between."""
    if not torch.is_grad_enabled():
        return _project(rows, head, targets, smoothed)
    # Nothing is drawn at random here, so no state of a generator needs to be kept.
    found: _PieceLosses = checkpoint(
        _project, rows, head, targets, smoothed, use_reentrant=False, preserve_rng_state=False
    )
    return found


def _project(rows: Tensor, head: nn.Linear, targets: Tensor, smoothed: bool) -> _PieceLosses:
    with _own_cast(rows.device.type):
        logits = head(rows)
    shares = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    nats = F.nll_loss(shares, targets, ignore_index=IGNORED, reduction="none")
    even = -shares.mean(dim=-1).masked_fill(targets == IGNORED, 0) if smoothed else None
    return _PieceLosses(nats, even, None if torch.is_grad_enabled() else logits.argmax(dim=-1) == targets)


def _own_cast(device: str) -> AbstractContextManager[Any]:
    """Autocast as it is, except that each piece rounds the output table for itself.

    With one rounded copy for all, which autocast would keep, the pieces' gradients were added up in low precision.
    """
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False)


def _joined(pieces: Sequence[Tensor | None], targets: Tensor) -> Tensor | None:
    """Pieces [tokens] in the shape of the targets; None where no piece has any."""
    some = [piece for piece in pieces if piece is not None]
    return torch.cat(some).view_as(targets) if some else None
