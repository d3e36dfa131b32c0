"""Where on held-out text a causal model is good: by position, by distance to a repetition, by document.

All of it comes from the one pass that gives the score, and every breakdown adds up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.prepare import Prepared
from lockstep.evaluation.language import HeldOut, LanguageScore, Predict, Progress, score_tokens

SPAN = 8
"""Bytes of text that a repeated n-gram stands for, about: long enough that a repetition is seldom chance."""
BUCKETS = 64

Ends = tuple[int | None, int | None]
"""The first and the last number of a bucket."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Scored tokens that have something in common."""

    first: int | None
    last: int | None
    """Positions in the window (from 1), or distances back to the last occurrence; None and None: no occurrence."""
    tokens: int
    nats: float

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    def as_dict(self) -> dict[str, float | int | None]:
        return {"first": self.first, "last": self.last, "tokens": self.tokens, "loss": self.loss}


@dataclass(frozen=True, slots=True)
class Documents:
    """Sums per document, in the order of the split; [documents] each.

    The separator that ends a document belongs to it. A first document that is nothing but its separator has no scored
    token, and where only some windows were read the last document may have been cut.
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Detail:
    """A score, and what it is made of; buckets without tokens are left out."""

    score: LanguageScore
    positions: tuple[Bucket, ...]
    """By position in the window."""
    repeats: tuple[Bucket, ...]
    """By distance back to where the n-gram that ends at the target last stood in the same window."""
    ngram: int
    """Tokens of such an n-gram."""
    documents: Documents


@dataclass(slots=True)
class Tally:
    """Counts and sums by the number of a bucket."""

    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))
    nats: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BUCKETS))

    def add(self, numbers: NDArray[np.integer], losses: NDArray[np.float64]) -> None:
        self.tokens += np.bincount(numbers.ravel(), minlength=BUCKETS)
        self.nats += np.bincount(numbers.ravel(), losses.ravel(), minlength=BUCKETS)

    def buckets(self, ends: Sequence[Ends]) -> tuple[Bucket, ...]:
        """With the ends of each; those without tokens are left out."""
        counted = zip(ends, self.tokens.tolist(), self.nats.tolist(), strict=True)
        return tuple(Bucket(first, last, tokens, nats) for (first, last), tokens, nats in counted if tokens)


class DocumentSums:
    """Sums per document while windows come in one after another."""

    def __init__(self, count: int, eos_id: int, current: int) -> None:
        self.documents = Documents(np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
        self.eos_id, self.current = eos_id, current

    @classmethod
    def of(cls, data: HeldOut) -> DocumentSums:
        """Before the first window; the split's first token is not scored, but may be all of its document."""
        starts, length = data.batches()[-1]
        tokens, eos_id = data.prepared.tokens(data.split), data.prepared.tokenizer.eos_id
        before_last = tokens[: int(starts[-1]) + length]
        return cls(1 + int(np.count_nonzero(before_last == eos_id)), eos_id, int(tokens[0] == eos_id))

    def add(self, targets: NDArray[np.int64], losses: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        """The tokens that follow those added before."""
        ends = targets.ravel() == self.eos_id
        number = np.cumsum(ends) - ends
        here = slice(self.current, self.current + int(number[-1]) + 1)
        self.documents.nats[here] += np.bincount(number, losses.ravel())
        self.documents.tokens[here] += np.bincount(number)
        np.add.at(self.documents.bytes, self.current + number, lengths.ravel())
        self.current += int(ends.sum())


@torch.no_grad()
def score_in_detail(predict: Predict, data: HeldOut, device: torch.device, progress: Progress | None = None) -> Detail:
    """What `score_causal` gives of text, to the last bit, and its breakdowns."""
    score, positions, repeats, documents = LanguageScore(), Tally(), Tally(), DocumentSums.of(data)
    ngram = repeated_tokens(data.prepared, data.split)
    for windows, _, lengths in data.read(progress):
        batch = torch.from_numpy(windows).to(device)
        scores = score_tokens(predict, batch[:, :-1], batch[:, 1:])
        score.enter(scores, batch[:, 1:], lengths)
        losses = scores.nats.double().cpu().numpy()
        positions.add(np.broadcast_to(powers(np.arange(1, windows.shape[1])), losses.shape), losses)
        distances = repeat_distances(windows, ngram)
        repeats.add(np.where(distances > 0, 1 + powers(distances), 0), losses)
        documents.add(windows[:, 1:], losses, lengths)
    ends = [span(power, data.length) for power in range(BUCKETS)]
    return Detail(
        score, positions.buckets(ends), repeats.buckets([(None, None), *ends[:-1]]), ngram, documents.documents
    )


def repeated_tokens(prepared: Prepared, split: str) -> int:
    """Tokens of an n-gram that stands for about 8 bytes of the split's text; at least two."""
    facts = prepared.manifest.splits[split]
    return max(2, round(SPAN * facts.tokens / max(1, facts.bytes)))


def powers(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least power of two that reaches a number: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8."""
    return np.frexp(numbers - 1)[1].astype(np.int64)


def span(power: int, longest: int) -> Ends:
    """The numbers of one power, none of them beyond `longest`."""
    return (1, 1) if power == 0 else (2 ** (power - 1) + 1, min(2**power, longest))


def repeat_distances(windows: NDArray[np.int64], ngram: int) -> NDArray[np.int64]:
    """How far back the n-gram that ends at each target stood last, [batch, time]; 0 where it is new.

    windows [batch, time + 1], the targets being all tokens but the first. Occurrences may overlap. A target with fewer
    than n - 1 tokens before it in its window has no n-gram, and counts as new.
    """
    distances = np.zeros((windows.shape[0], windows.shape[1] - 1), dtype=np.int64)
    if windows.shape[1] < ngram:
        return distances
    # Equal numbers for equal n-grams of one row; numbered anew at each length, so that no number grows too large.
    kinds, base = np.arange(len(windows))[:, None].repeat(windows.shape[1], axis=1), int(windows.max()) + 1
    for place in range(ngram):
        longer = kinds[:, : windows.shape[1] - place] * base + windows[:, place:]
        kinds = np.unique(longer, return_inverse=True)[1].reshape(longer.shape)
    order = np.argsort(kinds, axis=None, kind="stable")
    again = np.diff(kinds.ravel()[order]) == 0
    found = np.zeros(kinds.size, dtype=np.int64)
    found[order[1:][again]] = np.diff(order)[again]
    distances[:, ngram - 2 :] = found.reshape(kinds.shape)
    return distances


def joined(details: Sequence[Sequence[Bucket]]) -> tuple[Bucket, ...]:
    """The same breakdown of several runs as one, the tokens of all of them together."""
    sums: dict[Ends, tuple[int, float]] = {}
    for bucket in (bucket for buckets in details for bucket in buckets):
        tokens, nats = sums.get((bucket.first, bucket.last), (0, 0.0))
        sums[bucket.first, bucket.last] = tokens + bucket.tokens, nats + bucket.nats
    ordered = sorted(sums, key=lambda ends: ends[0] or 0)
    return tuple(Bucket(*ends, *sums[ends]) for ends in ordered)
