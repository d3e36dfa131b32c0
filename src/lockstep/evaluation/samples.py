"""Text that a model writes, and how repetitive it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel
from lockstep.models.sampling import Sampling, filtered


@dataclass(frozen=True, slots=True)
class Written:
    """A continuation, without what it continues."""

    text: str
    repetition: float | None
    """Share of its 4-grams that it had written before; None where it is too short to have one."""
    entropy: float | None
    """Of the distributions that were drawn from: mean nats per token; None where nothing was drawn."""


def continue_text(model: LanguageModel, tokenizer: Tokenizer, prompt: str, new_tokens: int, sampling: Sampling) -> str:
    """The continuation of `prompt`, without it."""
    ids = prompt_ids(tokenizer, prompt)
    return readable(tokenizer, continuation(model, tokenizer, ids, new_tokens, sampling))


def write_sample(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, new_tokens: int, sampling: Sampling
) -> Written:
    """The continuation of `prompt`, and how it was drawn."""
    ids = prompt_ids(tokenizer, prompt)
    written = continuation(model, tokenizer, ids, new_tokens, sampling)
    told = [token for token in written if token != tokenizer.eos_id]
    return Written(readable(tokenizer, written), repetition(told), mean_entropy(model, ids, written, sampling))


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt; an empty one is the beginning of a document."""
    return [int(token) for token in tokenizer.encode(prompt.encode("utf-8", "surrogateescape"))] or [tokenizer.eos_id]


def continuation(
    model: LanguageModel, tokenizer: Tokenizer, ids: list[int], new_tokens: int, sampling: Sampling
) -> list[int]:
    """The tokens that follow `ids`, up to the first separator, which is the last of them."""
    if not model.causal:
        raise UserError(f"{model.spec.architecture} is bidirectional and cannot continue a text")
    device = model.embedding.weight.device
    positions = model.spec.max_length if model.spec.learned_positions else None
    if positions is not None and len(ids) + new_tokens > positions:
        raise UserError(
            f"{len(ids)} prompt tokens and {new_tokens} new ones exceed the {positions} positions of the model"
        )
    drawn = model.generate(torch.tensor([ids], device=device), new_tokens, sampling, stop=tokenizer.eos_id)
    written: list[int] = drawn[0, len(ids) :].tolist()
    return written[: written.index(tokenizer.eos_id) + 1] if tokenizer.eos_id in written else written


def readable(tokenizer: Tokenizer, written: Sequence[int]) -> str:
    # A model may have been given a larger vocabulary than its tokenizer has.
    known = [token for token in written if token < tokenizer.vocab_size]
    return tokenizer.decode([token for token in known if token != tokenizer.eos_id])


def repetition(tokens: Sequence[int], n: int = 4) -> float | None:
    """The share of n-grams that had been written before; None where there is none."""
    grams = list(zip(*(tokens[place:] for place in range(n)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else None


@torch.inference_mode()
def mean_entropy(model: LanguageModel, ids: list[int], written: list[int], sampling: Sampling) -> float | None:
    """Nats of the distributions that `written` was drawn from, mean over its tokens.

    Temperature and filters count: a greedy choice has none. One forward pass finds again what each step saw.
    """
    if not written:
        return None
    if sampling.temperature == 0:
        return 0.0
    tokens = torch.tensor([[*ids, *written[:-1]]], device=model.embedding.weight.device)
    with in_mode(model, training=False):
        logits = model(tokens)[0, len(ids) - 1 :].double()
    probabilities = filtered(logits / sampling.temperature, sampling).softmax(dim=-1)
    return float(torch.special.entr(probabilities).sum(dim=-1).mean())
