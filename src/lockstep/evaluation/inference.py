"""What reading and writing cost: seconds, and bytes beyond the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.evaluation.live_bytes import held_bytes
from lockstep.evaluation.timing import Spread, in_mode, now, seconds, spread
from lockstep.models.decoding import Decoder, advanced, own
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.models.precision import as_in_training
from lockstep.models.state import State, map_state, state_bytes

WARM_UP = 4
"""Decoded tokens that do not count."""


@dataclass(frozen=True, slots=True)
class InferenceTime:
    """One sequence, after a context of some length."""

    length: int
    prefill_seconds: Spread
    """Of the whole context: the time to the first token."""
    decode_seconds: Spread
    """Per token, right after it."""
    prefill_peak_bytes: int
    """The most that was held at once beyond the weights; the state is a part of it."""
    decode_peak_bytes: int
    state_bytes: int
    """Of a state with room for the context and no more; its shapes are the same from the first token on."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BatchTime:
    """A batch of sequences read at once."""

    length: int
    batch: int
    seconds: Spread

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def longest(model: LanguageModel) -> int | None:
    """How many tokens the model has positions for; None means any number. Decoding needs one more than the context."""
    return model.spec.max_length if model.spec.learned_positions else None


@torch.inference_mode()
def measure_inference(
    model: LanguageModel, length: int, device: torch.device, decoded: int = 32, rounds: int = 5
) -> InferenceTime:
    """Prefill of one random sequence by `step`, and decoding by a decoder, as texts are written.

    Decoding goes on from token to token; where the positions end before that, it goes back to the end of the context.
    Bytes come from a round of their own, which no clock sees.
    """
    check_steps(model, length)
    tokens = random_tokens(model, 1, length + WARM_UP + decoded, device)
    context, following = tokens[:, :length], tokens[:, length:]

    def prefill(room: int) -> State:
        with as_in_training(model):
            return model.step(context, model.initial_state(1, capacity=length + room))[1]

    with in_mode(model, training=False):
        prefill_seconds = seconds(lambda: prefill(1), rounds, device)
        decode_seconds = time_decoding(model, following, prefill(following.shape[1]), device)
        with held_bytes(device) as counted:
            state = prefill(1)
            prefill_peak = counted.peak
            state = map_state(own, state)
            counted.restart()
            advanced(model, state, following[:, :1])
            decode_peak = counted.peak
        held = state_bytes(model.initial_state(1, capacity=length))
    return InferenceTime(length, spread(prefill_seconds), spread(decode_seconds), prefill_peak, decode_peak, held)


def check_steps(model: LanguageModel, length: int) -> None:
    if not model.causal:
        raise ValueError(f"{model.spec.architecture} is bidirectional and cannot go token by token")
    most = longest(model)
    if most is not None and length >= most:
        raise ValueError(f"no position is left after {length} tokens: max_length is {most}")


def time_decoding(model: LanguageModel, following: Tensor, context: State, device: torch.device) -> list[float]:
    """Seconds of each token after the context, which is left as it was; the first few are left out."""
    most, start = longest(model), int(context["position"][0])
    room = following.shape[1] if most is None else min(most - start, following.shape[1])
    taken, decoder = [], Decoder(model, context)
    for place in range(following.shape[1]):
        if place % room == 0:
            decoder.go_on_from(context)
        begun = now(device)
        decoder.step(following[:, place : place + 1])
        taken.append(now(device) - begun)
    return taken[WARM_UP:]


@torch.inference_mode()
def measure_batch(model: LanguageModel, length: int, batch: int, device: torch.device, rounds: int = 5) -> BatchTime:
    """How long a random batch takes to be read by `forward`; any model can do that."""
    tokens = random_tokens(model, batch, length, device)
    with in_mode(model, training=False), as_in_training(model):
        return BatchTime(length, batch, spread(seconds(lambda: model(tokens), rounds, device)))


def measure_training_peak(model: LanguageModel, tokens: Tensor) -> int:
    """The most bytes that one forward, loss and backward of tokens [batch, time] hold beyond the weights.

    The gradients are a part of it; an optimizer's state is not. What the targets are changes nothing, so the tokens
    themselves are predicted. Precision is the caller's, who may have autocast turned on.
    """
    before = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    try:
        with in_mode(model, training=True), held_bytes(tokens.device) as counted:
            token_losses(model(tokens), tokens).mean().backward()
            return counted.peak
    finally:
        for parameter, gradient in zip(model.parameters(), before, strict=True):
            parameter.grad = gradient


def random_tokens(model: LanguageModel, batch: int, length: int, device: torch.device) -> Tensor:
    """The same on every machine."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(model.embedding.num_embeddings, (batch, length), generator=generator).to(device)
