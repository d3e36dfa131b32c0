"""How likely a causal model finds a continuation after a context, and whether it would have said the same.

Requests that share a context read it once: the state after it is branched. Rows of different lengths are padded on the
right, which no output of a causal model can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.evaluation.inference import longest
from lockstep.evaluation.language import Progress
from lockstep.evaluation.reading import PIECE, read_in_pieces
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import IGNORED, token_losses
from lockstep.models.state import State, select

BATCH = 16
"""Requests read at once, where nobody says otherwise."""

Request = tuple[Sequence[int], Sequence[int]]
"""The tokens of a context, at least one, and those of its continuation."""


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of one continuation."""

    log_probability: float
    """Nats, the sum over its tokens."""
    greedy: bool
    """Whether each token is the likeliest after those before it."""
    tokens: int


def encode_request(tokenizer: Tokenizer, context: str, continuation: str) -> Request:
    """The tokens of a pair of texts, cut as the LM Evaluation Harness cuts them.

    Spaces that end a context begin the continuation, as words bring their space with them. The pair is encoded as one
    text, of which the context's own tokens are left out. An empty context is the beginning of a document.

    Where one token swallows both, the harness fails. Here the continuation is then encoded by itself: it would be
    taken for certain otherwise.
    """
    kept = context.rstrip()
    before = encode_text(tokenizer, kept)
    after = encode_text(tokenizer, context + continuation)[len(before) :]
    return before or [tokenizer.eos_id], after or encode_text(tokenizer, context[len(kept) :] + continuation)


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text.encode("utf-8", "surrogateescape"))]


@torch.inference_mode()
def log_likelihoods(
    model: LanguageModel, requests: Sequence[Request], batch_size: int = BATCH, progress: Progress | None = None
) -> list[Likelihood]:
    """One for each request, in their order; neither the batch size nor the neighbours change it.

    Where positions are limited, a request that is too long keeps its last tokens.
    """
    check_causal(model)
    fitted = [fitting(longest(model), *request) for request in requests]
    found: dict[int, Likelihood] = {}
    with in_mode(model, training=False):
        for places in batches(fitted, batch_size):
            scores = _score_together(model, [fitted[place] for place in places], batch_size)
            found.update(zip(places, scores, strict=True))
            if progress is not None:
                progress(len(found) / len(fitted))
    return [found[place] for place in range(len(fitted))]


def check_causal(model: LanguageModel) -> None:
    if not model.causal:
        raise UserError(f"{model.spec.architecture} is bidirectional and gives no likelihood of a continuation")


def fitting(positions: int | None, context: Sequence[int], continuation: Sequence[int]) -> Request:
    """The request with as much of its context as there are positions for; the last token needs none."""
    if not context:
        raise ValueError("a context must hold at least one token; an empty one begins with the separator")
    if positions is None or len(context) + len(continuation) <= positions + 1:
        return context, continuation
    if len(continuation) > positions:
        raise UserError(
            f"a continuation of {len(continuation)} tokens exceeds the {positions} positions of the model;"
            f" use a model with a larger max_length"
        )
    return context[len(context) + len(continuation) - positions - 1 :], continuation


def batches(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Places of the requests that are read together: all of one context, and contexts of about one length.

    The longest come first, so that what does not fit into memory fails at once. One context may have more than `size`.
    """
    sharing: dict[tuple[int, ...], list[int]] = {}
    for place, (context, _) in enumerate(requests):
        sharing.setdefault(tuple(context), []).append(place)
    batch: list[int] = []
    for context in sorted(sharing, key=len, reverse=True):
        if batch and len(batch) + len(sharing[context]) > size:
            yield batch
            batch = []
        batch += sharing[context]
    if batch:
        yield batch


def _score_together(model: LanguageModel, requests: Sequence[Request], size: int) -> list[Likelihood]:
    """Contexts are read once, as far as the shortest goes but for one token, whose logits each row needs."""
    rows = {context: row for row, context in enumerate(dict.fromkeys(tuple(context) for context, _ in requests))}
    branching = len(rows) < len(requests) and can_continue(model)
    shared = min(map(len, rows)) - 1 if branching else 0
    state = None
    if shared:
        room = max(len(context) + len(continuation) for context, continuation in requests)
        prefixes = torch.tensor([context[:shared] for context in rows], device=model.embedding.weight.device)
        _, state = model.step(prefixes, model.initial_state(len(rows), capacity=room))
    scores: list[Likelihood] = []
    for start in range(0, len(requests), size):
        some = requests[start : start + size]
        branch = None if state is None else select(state, [rows[tuple(context)] for context, _ in some])
        scores += _score_rows(model, some, shared, branch)
    return scores


def can_continue(model: LanguageModel) -> bool:
    """Whether it goes on from a state: some networks of the transformers library do not."""
    try:
        model.initial_state(1, capacity=1)
    except UserError:
        return False
    return True


def _score_rows(model: LanguageModel, requests: Sequence[Request], read: int, state: State | None) -> list[Likelihood]:
    """Each request is a row, without the first `read` tokens of its context, which the state has seen."""
    rows = [[*context[read:], *continuation[:-1]] for context, continuation in requests]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    targets = torch.full_like(tokens, IGNORED)
    for number, (context, continuation) in enumerate(requests):
        first = len(context) - read - 1
        tokens[number, : len(rows[number])] = torch.tensor(rows[number])
        targets[number, first : first + len(continuation)] = torch.tensor(continuation)
    device = model.embedding.weight.device
    return _scores(model(tokens.to(device), state), targets.to(device))


def _scores(logits: Tensor, targets: Tensor) -> list[Likelihood]:
    """Of each row of logits [rows, time, vocab]; targets [rows, time] are IGNORED outside the continuation."""
    scored = targets != IGNORED
    chosen, wanted = logits[scored], targets[scored]
    losses = token_losses(chosen[None], wanted[None])[0].double().cpu()
    hits = (chosen.argmax(dim=-1) == wanted).cpu()
    counts = scored.sum(dim=1).tolist()
    parts = zip(losses.split(counts), hits.split(counts), counts, strict=True)
    return [Likelihood(0.0 - float(loss.sum()), bool(hit.all()), count) for loss, hit, count in parts]


def rolling_log_likelihoods(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    separator: int,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> list[Likelihood]:
    """Of whole texts, each as a document of its own after a separator.

    Where positions are limited, a long text is read in windows as the LM Evaluation Harness cuts them: each token is
    predicted once. Where they are not, each token sees all of its text.
    """
    check_causal(model)
    pieces: list[tuple[int, Request]] = []
    parts: list[list[Likelihood]] = [[] for _ in texts]
    for place, text in enumerate(texts):
        if longest(model) is None and len(text) > PIECE and can_continue(model):
            parts[place].append(_read_through(model, [separator, *text]))
        else:
            pieces += [(place, window) for window in windows(text, separator, longest(model) or len(text))]
    scores = log_likelihoods(model, [window for _, window in pieces], batch_size, progress)
    for (place, _), score in zip(pieces, scores, strict=True):
        parts[place].append(score)
    return [_sum(some) for some in parts]


def windows(text: Sequence[int], separator: int, length: int) -> Iterator[Request]:
    """Every token is predicted once; the last window, which may have few, sees as many before them as fit."""
    for first in range(0, len(text), length):
        end = min(first + length, len(text))
        yield [separator] if first == 0 else text[end - length - 1 : first], text[first:end]


@torch.inference_mode()
def _read_through(model: LanguageModel, document: Sequence[int]) -> Likelihood:
    """All tokens but the first, predicted from all before them."""
    tokens = torch.tensor([document])
    parts = []
    with in_mode(model, training=False):
        for start, logits in read_in_pieces(model, tokens[:, :-1]):
            targets = tokens[:, start + 1 : start + 1 + logits.shape[1]]
            parts += _scores(logits, targets.to(logits.device))
    return _sum(parts)


def _sum(parts: Sequence[Likelihood]) -> Likelihood:
    return Likelihood(
        sum(part.log_probability for part in parts),
        all(part.greedy for part in parts),
        sum(part.tokens for part in parts),
    )
