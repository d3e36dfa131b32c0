"""No output depends on a later token, nor on how many follow."""

from __future__ import annotations

from torch import Tensor

from lockstep.laws.comparison import EXACT, gap, require_equal
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject
from lockstep.models.language_model import LanguageModel


def no_future_leak(subject: Subject) -> None:
    """Every cut is tried: a leak may be confined to the inside of a segment."""
    model = subject.model()
    tokens = subject.tokens(2, LENGTH)
    others = subject.replaced(tokens)
    logits = model(tokens)
    for cut in range(1, LENGTH):
        altered = tokens.clone()
        altered[:, cut:] = others[:, cut:]
        moved = gap(model(altered), logits).amax(dim=0)
        if subject.kind.causal:
            require_causal(moved, cut)
        else:
            require_bidirectional(moved, cut)
    if subject.kind.causal:
        require_prefix(model, tokens, logits)


def require_causal(moved: Tensor, cut: int) -> None:
    """What moved, per position, when all tokens from `cut` on were replaced."""
    if float(moved[:cut].amax()) > EXACT:
        position = int(moved[:cut].argmax())
        by = float(moved[position])
        raise LawBroken(f"of {len(moved)} tokens, those from {cut} on moved the output at {position} by {by:.1e}")
    if float(moved[cut:].amin()) <= EXACT:
        position = cut + int(moved[cut:].argmin())
        raise LawBroken(f"the output at {position} ignores that tokens from {cut} on, its own too, were replaced")


def require_bidirectional(moved: Tensor, cut: int) -> None:
    if float(moved.amin()) <= EXACT:
        position = int(moved.argmin())
        raise LawBroken(f"declared bidirectional, but the output at {position} ignores the tokens from {cut} on")


def require_prefix(model: LanguageModel, tokens: Tensor, logits: Tensor) -> None:
    for length in range(1, LENGTH):
        what = f"the first {length} outputs, alone against followed by {LENGTH - length} more tokens"
        require_equal(model(tokens[:, :length]), logits[:, :length], what)
