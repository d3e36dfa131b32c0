"""Finding the memories of a model, and setting their hooks so that they are always put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from torch import nn

from lockstep.models.mixers.neural_memory import Ablation, NeuralMemory, Observation

Observer = Callable[[Observation], None]


def neural_memories(model: nn.Module) -> dict[str, NeuralMemory]:
    """Every memory of a model by the name of its module, in the order of the layers; an architecture may have none."""
    return {name: module for name, module in model.named_modules() if isinstance(module, NeuralMemory)}


@contextmanager
def ablated(model: nn.Module, kind: Ablation) -> Iterator[None]:
    """All memories without their reads ("off") or without their writes ("frozen"), as long as the block lasts."""
    if kind not in get_args(Ablation):
        raise ValueError(f"unknown ablation {kind}; valid: {', '.join(get_args(Ablation))}")
    memories = neural_memories(model).values()
    before = [memory.ablation for memory in memories]
    try:
        for memory in memories:
            memory.ablation = kind
        yield
    finally:
        for memory, was in zip(memories, before, strict=True):
            memory.ablation = was


@contextmanager
def observed(model: nn.Module, observers: Mapping[str, Observer]) -> Iterator[None]:
    """The named memories tell their observers of every call, as long as the block lasts."""
    memories = neural_memories(model)
    before = {name: memories[name].observer for name in observers}
    try:
        for name, observer in observers.items():
            memories[name].observer = observer
        yield
    finally:
        for name, was in before.items():
            memories[name].observer = was
