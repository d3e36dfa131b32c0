"""Small models with memories: some random, one whose memory is known by heart."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lockstep.evaluation.memory_hooks import neural_memories
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import build

VOCABULARY = 32
SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 16, "depth": 2, "heads": 2}
CHUNK, SEGMENT = 4, 8
TITANS: dict[str, dict[str, Any]] = {
    "titans-lmm": {"chunk": CHUNK},
    "titans-mac": {"chunk": CHUNK, "segment": SEGMENT},
    "titans-mag": {"chunk": CHUNK, "window": 6},
    "titans-mal": {"chunk": CHUNK, "window": 6},
}
MIRAS: dict[str, dict[str, Any]] = {name: {"chunk": CHUNK, "expansion": 2} for name in ("yaad", "moneta", "memora")}


def random_model(architecture: str, **fields: Any) -> LanguageModel:
    """Every parameter random, in float64, the same on every machine."""
    torch.manual_seed(3)
    model = build(architecture, **{**SMALL, **TITANS.get(architecture, {}), **MIRAS.get(architecture, {}), **fields})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.double().eval()


def random_tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(seed))


def only_memory(model: LanguageModel) -> NeuralMemory:
    (memory,) = neural_memories(model).values()
    return memory


def set_gate(memory: NeuralMemory, name: str, logit: float) -> None:
    """A gate that is the same for every token."""
    first = memory.gate_names.index(name) * memory.heads
    with torch.no_grad():
        memory.gates.weight[first : first + memory.heads] = 0
        memory.gates.bias[first : first + memory.heads] = logit


def planted_model(keep: float | None = None, **fields: Any) -> LanguageModel:
    """A delta rule of rate 1 whose keys are orthonormal: token i has the i-th unit vector as its key.

    So each token is stored exactly, and disturbs no other. `keep` is the share that each later token leaves of it.
    """
    torch.manual_seed(4)
    point = {"structure": "linear", "residual": False, "memory_norm": False, "rule": "gradient-descent"}
    size = {"vocab_size": VOCABULARY, "dim": VOCABULARY, "depth": 1, "heads": 1, "conv": 0}
    common = {"chunk": 1, "decay": keep is not None, "decay_to": "zero", "tie_embeddings": False}
    model = build("memory", **{**point, **size, **common, **fields}).double().eval()
    memory = only_memory(model)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(VOCABULARY))
        queries, keys, _ = memory.qkv.weight.view(3, VOCABULARY, VOCABULARY)
        for projection in (queries, keys):
            projection.copy_(10 * torch.eye(VOCABULARY))
        for matrix in memory.weights:
            matrix.zero_()
        memory.qkv.weight[2 * VOCABULARY :] = torch.randn(VOCABULARY, VOCABULARY)
    assert memory.largest_rate == 1
    set_gate(memory, "rate", math.inf)
    if keep is not None:
        set_gate(memory, "keep", math.log(keep / (1 - keep)))
    return model


def every_token_once(batch: int = 2) -> Tensor:
    """[batch, VOCABULARY], each row in an order of its own."""
    draw = torch.Generator().manual_seed(9)
    return torch.stack([torch.randperm(VOCABULARY, generator=draw) for _ in range(batch)])
