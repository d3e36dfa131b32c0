"""Loss far beyond the training length: by position in one long read, and of the same tokens after more context.

A text begins cold and is read in pieces, so that memory holds one piece and the state. It may cross the end of a
document: the state runs on there, as in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.lengths import LengthsSpec
from lockstep.data.prepare import Prepared
from lockstep.evaluation.detail import BUCKETS, Bucket, Tally, powers, span
from lockstep.evaluation.inference import longest
from lockstep.evaluation.reading import PIECE, read_in_pieces
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.progress import showing

SPLIT = "test"

Read = Callable[[int], None]
"""Told how many more tokens have been read."""


def untold(tokens: int) -> None:
    """For those who do not want to be told."""


@dataclass(frozen=True, slots=True)
class ContextLoss:
    """The scored tokens, after so many tokens of context."""

    context: int
    tokens: int
    nats: float

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    def as_dict(self) -> dict[str, float | int | None]:
        loss = finite(self.loss)
        perplexity = None if loss is None else math.exp(min(loss, 700.0))
        return {"context": self.context, "tokens": self.tokens, "loss": loss, "perplexity": perplexity}


def measure_beyond(
    model: LanguageModel, prepared: Prepared, training_length: int, spec: LengthsSpec, device: torch.device
) -> dict[str, Any] | None:
    """Both measures on texts of the test split, cut to what the split and the model's positions have.

    "longest" is how many tokens a text has, "texts" how many there are: as many as were asked for, or as have room
    beside each other. A loss that is no number, because the model's own numbers overflowed, is None. Masked models have
    no such measure, nor has a split of tasks, in which most tokens ask for nothing.
    """
    if not model.causal or SPLIT in prepared.manifest.asked:
        return None
    tokens = prepared.tokens(SPLIT)
    scored = min(spec.scored, len(tokens) // 2)
    length = reachable(model, spec.times * training_length, len(tokens) - scored)
    starts = spread_out(len(tokens), length + scored, spec.texts)
    contexts = fitting(model, spec.contexts or doubling(length), length, scored)
    work = len(starts) * (length + sum(context + scored - 1 for context in contexts))
    texts = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    with showing(f"{model.spec.architecture}, {length:,} tokens at once", "share", work) as progress:
        model = model.to(device)
        positions = losses_by_position(model, texts, progress.add)
        after = losses_by_context(model, tokens, starts + length, contexts, scored, progress.add)
    return {
        "positions": [{**bucket.as_dict(), "loss": finite(bucket.loss)} for bucket in positions],
        "contexts": [one.as_dict() for one in after],
        "longest": length,
        "texts": len(starts),
    }


def reachable(model: LanguageModel, asked: int, there: int) -> int:
    """Tokens of a text: no more than the split has, nor than the model has positions for."""
    most = longest(model)
    return min(asked, there) if most is None else min(asked, there, most)


def spread_out(tokens: int, length: int, texts: int) -> NDArray[np.int64]:
    """Where texts start: the first and the last at the ends of the split, none of them upon another."""
    count = max(1, min(texts, tokens // length))
    return np.linspace(0, tokens - length, count).astype(np.int64)


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, `most` at most."""
    return tuple(2**power for power in range(most.bit_length()))


def fitting(model: LanguageModel, contexts: Sequence[int], before: int, scored: int) -> list[int]:
    """The contexts that there is text for, and positions to read the scored tokens after them."""
    most = longest(model)
    there = before if most is None else min(before, most - scored + 1)
    return [context for context in contexts if context <= there]


@torch.inference_mode()
def losses_by_position(model: LanguageModel, texts: Tensor, read: Read = untold) -> tuple[Bucket, ...]:
    """Losses of texts [n, time + 1] by position, each text read once from its start, all of them side by side."""
    tally, length = Tally(), texts.shape[1] - 1
    for start, losses in read_losses(model, texts, read):
        numbers = powers(np.arange(start + 1, start + 1 + losses.shape[1]))
        tally.add(np.broadcast_to(numbers, losses.shape), losses)
    return tally.buckets([span(power, length) for power in range(BUCKETS)])


@torch.inference_mode()
def losses_by_context(
    model: LanguageModel,
    tokens: NDArray[np.integer],
    places: NDArray[np.int64],
    contexts: Sequence[int],
    scored: int,
    read: Read = untold,
) -> tuple[ContextLoss, ...]:
    """The loss of the same tokens, `scored` from each of `places` on, after different amounts of what stands before.

    Nothing is read before the context. A context that is longer than what stands before some place, or than the model
    has positions for, is left out, so that all are of the same tokens.
    """
    found = []
    for context in fitting(model, contexts, int(places.min()), scored):
        texts = torch.from_numpy(tokens[places[:, None] + np.arange(-context, scored)].astype(np.int64))
        nats = 0.0
        for start, losses in read_losses(model, texts, read):
            nats += float(losses[:, max(0, context - 1 - start) :].sum())
        found.append(ContextLoss(context, len(places) * scored, nats))
    return tuple(found)


def read_losses(model: LanguageModel, texts: Tensor, read: Read) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """The losses [n, piece] of each piece of texts [n, time + 1], and the place of its first.

    A piece is shorter where there are more texts, so that its logits are no larger.
    """
    targets, piece = texts[:, 1:], max(1, PIECE // len(texts))
    with in_mode(model, training=False):
        for start, logits in read_in_pieces(model, texts[:, :-1], piece):
            here = targets[:, start : start + piece].to(logits.device)
            yield start, token_losses(logits, here).double().cpu().numpy()
            read(here.numel())


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
