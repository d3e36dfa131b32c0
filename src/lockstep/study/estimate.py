"""What training will take, measured on this machine with a few layers and carried on to all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.training import TrainingSpec
from lockstep.models.loss import token_losses
from lockstep.models.spec import ModelSpec
from lockstep.training.optimizers import build_optimizers

LONGEST = 2048
"""Tokens of the one sequence that is timed, at most."""
ROUNDS = 3
"""The first warms up."""


@dataclass(frozen=True)
class Measured:
    """One sequence, forward and backward."""

    seconds: float
    activation_bytes: int
    """Kept between the two."""


@dataclass(frozen=True)
class Estimate:
    """Of training with full batches."""

    seconds: float
    """For all tokens."""
    weight_bytes: int
    """Parameters, gradients, and what the optimizer keeps."""
    activation_bytes: int
    """Of one micro-batch."""

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes


def estimate(
    spec: ModelSpec, training: TrainingSpec, length: int, batch_size: int, tokens: int, device: torch.device
) -> Estimate:
    """Layers are alike, so that two models with few of them tell what all of them take."""
    timed = min(length, LONGEST)
    period, repeats = spec.period, spec.depth / spec.period
    few, more = (measure(with_depth(spec, layers), training, timed, device) for layers in (period, 2 * period))
    seconds = few.seconds + (repeats - 1) * (more.seconds - few.seconds)
    kept = few.activation_bytes + (repeats - 1) * (more.activation_bytes - few.activation_bytes)
    with torch.device("meta"):
        parameters = spec.build().cost(length).parameters
    kept_by_optimizer = 1 if training.optimizer == "muon" else 2
    return Estimate(
        seconds=max(seconds, 0.0) / timed * tokens,
        weight_bytes=4 * parameters * (2 + kept_by_optimizer),
        activation_bytes=round(max(kept, 0) / timed * length * batch_size),
    )


def with_depth(spec: ModelSpec, depth: int) -> ModelSpec:
    return spec.model_validate({**spec.model_dump(), "depth": depth})


def measure(spec: ModelSpec, training: TrainingSpec, length: int, device: torch.device) -> Measured:
    """The best of a few rounds, all of whose tensors are made up."""
    model = spec.build().to(device).train()
    optimizers = build_optimizers(model, training)
    tokens = torch.randint(spec.vocab_size, (1, length), device=device)
    seconds = []
    for _ in range(ROUNDS):
        kept = Kept(model)
        began = now(device)
        with torch.autograd.graph.saved_tensors_hooks(kept.count, lambda tensor: tensor):
            loss = token_losses(model(tokens), tokens).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(now(device) - began)
    return Measured(min(seconds[1:]), kept.bytes)


class Kept:
    """Bytes of what autograd keeps, shared storages once and parameters never."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.bytes = 0

    def count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def now(device: torch.device) -> float:
    """The time once the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
