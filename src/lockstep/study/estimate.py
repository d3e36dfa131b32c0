"""What training will take, measured on this machine with a few layers and carried on to all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.training import TrainingSpec
from lockstep.models.loss import token_losses
from lockstep.models.spec import ModelSpec
from lockstep.training.loop import AUTOCAST
from lockstep.training.optimizers import build_optimizers

MOST_TOKENS = 4096
"""Of the batch that is timed: a whole micro-batch, or as many of its sequences as these are."""
ROUNDS = 3
"""The first warms up."""


@dataclass(frozen=True)
class Measured:
    """One step of training."""

    seconds: float
    activation_bytes: int
    """Kept between forward and backward."""


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
    sequences = min(batch_size, max(MOST_TOKENS // length, 1))
    period, repeats = spec.period, spec.depth / spec.period
    shape = (sequences, min(length, MOST_TOKENS))
    few, more = (measure(with_depth(spec, layers), training, shape, device) for layers in (period, 2 * period))
    # On a busy machine the larger model may happen to be faster.
    seconds = few.seconds + (repeats - 1) * max(more.seconds - few.seconds, 0.0)
    kept = few.activation_bytes + (repeats - 1) * (more.activation_bytes - few.activation_bytes)
    timed = shape[0] * shape[1]
    with torch.device("meta"):
        parameters = spec.build().cost(length).parameters
    kept_by_optimizer = 1 if training.optimizer == "muon" else 2
    return Estimate(
        seconds=seconds / timed * tokens,
        weight_bytes=4 * parameters * (2 + kept_by_optimizer),
        activation_bytes=round(kept / timed * length * batch_size),
    )


def with_depth(spec: ModelSpec, depth: int) -> ModelSpec:
    return spec.model_validate({**spec.model_dump(), "depth": depth})


def measure(spec: ModelSpec, training: TrainingSpec, shape: tuple[int, int], device: torch.device) -> Measured:
    """The best of a few rounds, all of whose tensors are made up."""
    model = spec.build().to(device).train()
    optimizers = build_optimizers(model, training)
    tokens = torch.randint(spec.vocab_size, shape, device=device)
    seconds = []
    for _ in range(ROUNDS):
        kept = Kept(model)
        began = now(device)
        lower = AUTOCAST.get(training.precision)
        with (
            torch.autocast(device.type, lower, enabled=lower is not None),
            torch.autograd.graph.saved_tensors_hooks(kept.count, lambda tensor: tensor),
        ):
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
