"""Held-out language modelling: loss, perplexity, accuracy and bits per byte.

A split is read in windows of the training length, each starting without context; every token but the very first
is predicted exactly once. Bits per byte divide by the bytes of the original text that the scored tokens stand for, so
that tokenizers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data.masking import IGNORED, mask_tokens
from lockstep.data.prepare import Prepared
from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import TokenLosses, losses_of_logits

Predict = Callable[[Tensor], Tensor]
"""Logits [batch, time, vocab] of tokens [batch, time]; a language model is one."""
Progress = Callable[[float], None]
"""Told the share of the work that is done."""


class TokenScores(NamedTuple):
    """What is known of targets [batch, time]; both have their shape."""

    nats: Tensor
    hits: Tensor
    """Whether the likeliest token is the target."""


@dataclass(slots=True)
class LanguageScore:
    """Sums over scored tokens; the means are derived."""

    nats: float = 0.0
    correct: int = 0
    tokens: int = 0
    bytes: int = 0

    @torch.no_grad()
    def add(self, logits: Tensor, targets: Tensor, lengths: NDArray[np.int64]) -> None:
        """Score logits [batch, time, vocab] against targets [batch, time], whose bytes are `lengths`."""
        self.enter(scores_of(losses_of_logits(logits, targets)), targets, lengths)

    def enter(self, scores: TokenScores, targets: Tensor, lengths: NDArray[np.int64]) -> None:
        """The same of what is known of each target [batch, time] already."""
        scored = targets != IGNORED
        self.nats += scores.nats.double().sum().item()
        self.correct += int((scores.hits & scored).sum())
        self.tokens += int(scored.sum())
        self.bytes += int(lengths[scored.cpu().numpy()].sum())

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    def as_dict(self, perplexity: str = "perplexity") -> dict[str, float | int | None]:
        """What is reported; bits per byte are missing where no byte was scored."""
        return {
            "loss": self.loss,
            perplexity: math.exp(min(self.loss, 700.0)),
            "bits_per_byte": self.nats / math.log(2) / self.bytes if self.bytes else None,
            "accuracy": self.correct / self.tokens,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


class HeldOutBatch(NamedTuple):
    """Windows that are scored at once."""

    windows: NDArray[np.int64]
    """[batch, time + 1]"""
    targets: NDArray[np.int64]
    """[batch, time]: all tokens but the first, IGNORED where a task asks for nothing."""
    lengths: NDArray[np.int64]
    """[batch, time]: bytes of the targets."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A split as windows to be scored."""

    prepared: Prepared
    split: str
    length: int
    batch_size: int
    sequences: int | None = None
    """Only the first so many windows; None means all of them."""

    def batches(self) -> list[tuple[NDArray[np.int64], int]]:
        """Where the windows of each batch start, and how long they are: the split's last one may be shorter."""
        targets = len(self.prepared.tokens(self.split)) - 1
        if targets < 1:
            raise UserError(f"the {self.split} split has {targets + 1} tokens; scoring needs at least two")
        whole, rest = divmod(targets, self.length)
        starts = np.arange(whole)[: self.sequences] * self.length
        groups = [(starts[i : i + self.batch_size], self.length) for i in range(0, len(starts), self.batch_size)]
        if rest and (self.sequences is None or self.sequences > whole):
            groups.append((np.array([whole * self.length]), rest))
        return groups

    def read(self, progress: Progress | None = None) -> Iterator[HeldOutBatch]:
        tokens, batches = self.prepared.tokens(self.split), self.batches()
        for done, (starts, length) in enumerate(batches, start=1):
            index = starts[:, None] + np.arange(length + 1)
            targets = self.prepared.targets(self.split, index[:, 1:])
            lengths = self.prepared.byte_lengths(self.split, index[:, 1:])
            yield HeldOutBatch(tokens[index].astype(np.int64), targets, lengths)
            if progress is not None:
                progress(done / len(batches))


@torch.no_grad()
def score_tokens(predict: Predict, inputs: Tensor, targets: Tensor) -> TokenScores:
    """Of targets [batch, time] after inputs [batch, time]; a language model holds the logits of a piece at a time."""
    if isinstance(predict, LanguageModel):
        return scores_of(predict(inputs, targets=targets))
    return scores_of(losses_of_logits(predict(inputs), targets))


def scores_of(found: TokenLosses) -> TokenScores:
    """What a model gives where no gradients are recorded."""
    assert found.hits is not None
    return TokenScores(found.nats, found.hits)


@torch.no_grad()
def score_causal(
    predict: Predict, data: HeldOut, device: torch.device, progress: Progress | None = None
) -> LanguageScore:
    """Next-token scores."""
    score = LanguageScore()
    for windows, wanted, lengths in data.read(progress):
        inputs, targets = torch.from_numpy(windows[:, :-1]).to(device), torch.from_numpy(wanted).to(device)
        score.enter(score_tokens(predict, inputs, targets), targets, lengths)
    return score


@torch.no_grad()
def score_masked(
    predict: Predict, data: HeldOut, device: torch.device, probability: float, progress: Progress | None = None
) -> LanguageScore:
    """Scores of hidden tokens, at masks fixed per window; not comparable with next-token scores."""
    score, first = LanguageScore(), 0
    for windows, _, lengths in data.read(progress):
        # A window's targets, so that byte lengths and tokens stand side by side.
        rows = hide(windows[:, 1:], probability, data.prepared.tokenizer, first)
        first += len(windows)
        inputs, targets = (torch.from_numpy(one).to(device) for one in rows)
        score.enter(score_tokens(predict, inputs, targets), targets, lengths)
    if not score.tokens:
        raise UserError(f"the {data.split} split has no token that could be masked")
    return score


def hide(
    rows: NDArray[np.int64], probability: float, tokenizer: Tokenizer, first: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Masked inputs and targets; each row's masks depend on its number alone, not on the batch it is in."""
    assert tokenizer.mask_id is not None
    where = (probability, tokenizer.mask_id, tokenizer.special_ids, tokenizer.vocab_size, "evaluation")
    pairs = [mask_tokens(row, *where, first + number) for number, row in enumerate(rows)]
    return np.stack([inputs for inputs, _ in pairs]), np.stack([targets for _, targets in pairs])


@torch.no_grad()
def score_pseudo(
    predict: Predict, data: HeldOut, device: torch.device, progress: Progress | None = None
) -> LanguageScore:
    """Pseudo-perplexity (Salazar et al., arXiv 1910.14659): each token hidden alone, all others visible.

    One forward pass per token. Separators and other special tokens are seen but not scored: they are never hidden
    in training either.
    """
    mask_id, special_ids = data.prepared.tokenizer.mask_id, data.prepared.tokenizer.special_ids
    assert mask_id is not None
    score = LanguageScore()
    for window, _, lengths in replace(data, batch_size=1).read(progress):
        row = torch.from_numpy(window[0, 1:]).to(device)
        eligible = np.flatnonzero(~np.isin(window[0, 1:], list(special_ids)))
        for hidden in torch.from_numpy(eligible).to(device).split(data.batch_size):
            copies = torch.arange(len(hidden), device=device)
            inputs, targets = row.repeat(len(hidden), 1), torch.full((len(hidden), len(row)), IGNORED, device=device)
            inputs[copies, hidden], targets[copies, hidden] = mask_id, row[hidden]
            nats, hits = (one[copies, hidden][None] for one in score_tokens(predict, inputs, targets))
            score.enter(TokenScores(nats, hits), row[None, hidden], lengths[:, hidden.cpu().numpy()])
    return score
