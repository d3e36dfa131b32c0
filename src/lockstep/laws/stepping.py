"""`step` over any split equals `forward`, and leaves the state it was given alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.laws.comparison import cloned, require_equal, require_same_state
from lockstep.laws.subject import LENGTH, Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.state import State

SPLITS: tuple[tuple[int, ...], ...] = (
    (LENGTH,),
    (1,) * LENGTH,
    (LENGTH // 2, *(1,) * (LENGTH - LENGTH // 2)),
    (1, LENGTH - 2, 1),
    (8, 8, 8, LENGTH - 24),
)
"""All at once, token by token, a prefill and then tokens, pieces longer than any window, pieces that fit a chunk."""


def steps_equal_forward(subject: Subject) -> None:
    model = subject.model()
    tokens = subject.tokens(2, LENGTH)
    expected = model(tokens)
    for split in (*SPLITS, *random_splits(4)):
        require_split(model, tokens, split, expected, "step")
        with torch.inference_mode():
            require_split(model, tokens, split, expected, "step under inference_mode")


def random_splits(count: int) -> list[tuple[int, ...]]:
    """Pieces of 1 to 9 tokens that make up LENGTH."""
    generator = torch.Generator().manual_seed(0)
    splits = []
    for _ in range(count):
        pieces: list[int] = []
        while sum(pieces) < LENGTH:
            size = int(torch.randint(1, 10, (), generator=generator))
            pieces.append(min(size, LENGTH - sum(pieces)))
        splits.append(tuple(pieces))
    return splits


def require_split(model: LanguageModel, tokens: Tensor, split: Sequence[int], expected: Tensor, what: str) -> None:
    """Logits gathered piece by piece; the first piece starts from None, as a user's would."""
    state: State | None = None
    gathered = []
    for piece in tokens.split(list(split), dim=1):
        logits, state = model.step(piece, state)
        gathered.append(logits)
    shown = "+".join(str(size) for size in split[:4]) + ("+…" if len(split) > 4 else "")
    require_equal(torch.cat(gathered, dim=1), expected, f"{what} over {shown} against forward over {LENGTH} tokens")


def forward_continues(subject: Subject) -> None:
    """At every cut, `forward(tokens, state)` says what the uninterrupted sequence would have said."""
    model = subject.model()
    tokens = subject.tokens(2, LENGTH)
    expected = model(tokens)
    for cut in range(1, LENGTH, 3):
        _, state = model.step(tokens[:, :cut])
        before = cloned(state)
        require_equal(model(tokens[:, cut:], state), expected[:, cut:], f"forward continued at {cut} against forward")
        require_same_state(state, before, f"forward continued at {cut} changed the state it was given")


def state_untouched(subject: Subject) -> None:
    """Prefixes branch: an old state goes on being good after others stepped from it."""
    model = subject.model()
    tokens = subject.tokens(2, LENGTH)
    expected = model(tokens)
    state = model.initial_state(2, capacity=LENGTH)
    for cut in range(LENGTH - 1):
        before = cloned(state)
        model.step(subject.replaced(tokens[:, cut:]), state)
        logits, after = model.step(tokens[:, cut : cut + 1], state)
        require_same_state(state, before, f"a step at position {cut} changed the state it was given")
        require_equal(logits, expected[:, cut : cut + 1], f"a state used twice at position {cut} against forward")
        state = after
