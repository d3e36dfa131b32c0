"""Sampling with the cached step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.models.decoding import Decoder
from lockstep.models.precision import as_in_training

if TYPE_CHECKING:
    from lockstep.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy; each filter is off by default."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} is negative")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k {self.top_k} would leave no token")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} {share} is not between 0 and 1")


@torch.inference_mode()
def sample(model: LanguageModel, prompt: Tensor, new_tokens: int, sampling: Sampling, stop: int | None) -> Tensor:
    """Prompt and continuation, [batch, time + new_tokens]."""
    if prompt.shape[1] == 0:
        raise ValueError("the prompt must hold at least one token")
    if new_tokens < 0:
        raise ValueError(f"{new_tokens} new tokens cannot be written")
    generator = None
    if sampling.seed is not None:
        generator = torch.Generator(prompt.device).manual_seed(sampling.seed)
    was_training = model.training
    model.eval()
    try:
        return _continue(model, prompt, new_tokens, sampling, generator, stop)
    finally:
        model.train(was_training)


def _continue(
    model: LanguageModel,
    prompt: Tensor,
    new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    stop: int | None,
) -> Tensor:
    if not new_tokens:
        return prompt
    tokens, room = [prompt], prompt.shape[1] + new_tokens
    ended = torch.zeros(prompt.shape[0], 1, dtype=torch.bool, device=prompt.device)
    with as_in_training(model):
        read, state = model.step(prompt, model.initial_state(prompt.shape[0], capacity=room))
    logits, decoder = read[:, -1].clone(), Decoder(model, state)
    # A long prompt's are large, and nobody reads them again.
    del read, state
    for number in range(new_tokens):
        if number:
            logits = decoder.step(tokens[-1])
        latest = draw(logits, sampling, generator)
        if stop is not None:
            latest = torch.where(ended, stop, latest)
            ended = ended | (latest == stop)
        tokens.append(latest)
    return torch.cat(tokens, dim=1)


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> Tensor:
    """One token per row of logits [batch, vocab], as [batch, 1]."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Shifted first, so that a tiny temperature gives minus infinity for the others and not NaN.
    scaled = (exact - exact.amax(dim=-1, keepdim=True)) / sampling.temperature
    return torch.multinomial(filtered(scaled, sampling).softmax(dim=-1), 1, generator=generator)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with the excluded tokens at minus infinity; the likeliest token always stays."""
    if sampling.top_k is not None:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kept, -torch.inf)
    if sampling.min_p is not None:
        probabilities = logits.softmax(dim=-1)
        floor = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    if sampling.top_p is not None:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        # A token is dropped when those before it already hold the wanted mass; none stand before the likeliest.
        dropped = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        dropped[..., 0] = False
        logits = logits.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return logits
