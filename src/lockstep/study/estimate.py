"""What training will take, measured on this machine with a few layers and carried on to all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.training import TrainingSpec
from lockstep.evaluation.timing import now
from lockstep.models.precision import autocast_to
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
    weight_bytes: int
    """Parameters, gradients, and what the optimizer keeps."""
    activation_bytes: int
    """Kept between forward and backward."""

    def and_more(self, larger: Measured, times: float) -> Measured:
        """With so many times what the larger one has beyond this."""
        # On a busy machine the larger model may happen to be faster.
        return Measured(
            self.seconds + times * max(larger.seconds - self.seconds, 0.0),
            round(self.weight_bytes + times * (larger.weight_bytes - self.weight_bytes)),
            round(self.activation_bytes + times * (larger.activation_bytes - self.activation_bytes)),
        )


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
    shape = (min(batch_size, max(MOST_TOKENS // length, 1)), min(length, MOST_TOKENS))
    if spec.brings_weights(spec.model_dump()):
        whole = measure(spec, training, shape, device)
    else:
        few, more = (measure(with_depth(spec, times * spec.period), training, shape, device) for times in (1, 2))
        whole = few.and_more(more, spec.depth / spec.period - 1)
    share = length * batch_size / (shape[0] * shape[1])
    return Estimate(
        seconds=whole.seconds / (shape[0] * shape[1]) * tokens,
        weight_bytes=whole.weight_bytes,
        activation_bytes=round(whole.activation_bytes * share),
    )


def with_depth(spec: ModelSpec, depth: int) -> ModelSpec:
    return spec.model_validate({**spec.model_dump(), "depth": depth})


def measure(spec: ModelSpec, training: TrainingSpec, shape: tuple[int, int], device: torch.device) -> Measured:
    """The best of a few rounds, all of whose tensors are made up."""
    model = spec.build().to(device).train()
    model.gradient_checkpointing = training.use_gradient_checkpointing
    optimizers = build_optimizers(model, training)
    tokens = torch.randint(spec.vocab_size, shape, device=device)
    lower = AUTOCAST.get(training.precision)
    seconds = []
    for _ in range(ROUNDS):
        kept = Kept(model)
        began = now(device)
        with (
            autocast_to(device, lower),
            torch.autograd.graph.saved_tensors_hooks(kept.count, lambda tensor: tensor),
        ):
            loss = model(tokens, targets=tokens).losses.mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(now(device) - began)
    weights = 2 * tensor_bytes(model.parameters())
    held = sum(tensor_bytes(one.values()) for optimizer in optimizers for one in optimizer.state.values())
    return Measured(min(seconds[1:]), weights + held, kept.bytes)


def tensor_bytes(things: Iterable[object]) -> int:
    """Of those that are tensors."""
    return sum(one.numel() * one.element_size() for one in things if isinstance(one, Tensor))


class Kept:
    """Bytes of what autograd keeps, shared storages once; parameters, and autocast's copies of them, never."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.ndim == 2}
        self.copied = shapes | {(columns, rows) for rows, columns in shapes}
        self.bytes = 0

    def count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_copy = tensor.dtype.itemsize == 2 and tuple(tensor.shape) in self.copied
        if storage.data_ptr() not in self.seen and not is_copy:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor
