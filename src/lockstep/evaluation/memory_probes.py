"""Probes: what the memories of a model do while it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from lockstep.evaluation.memory_hooks import neural_memories, observed
from lockstep.evaluation.memory_measures import (
    Ranks,
    Retrieval,
    Spread,
    effective_weights,
    half_lives,
    ranks,
    retrievals,
    spread,
    surprises,
    update_magnitudes,
)
from lockstep.memory import Gates, MemoryState
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.neural_memory import NeuralMemory, Observation

SATURATED = 0.95
"""From this share of its bound on, a rate counts as saturated."""


@dataclass(frozen=True, slots=True)
class MemoryProbe:
    """What one memory did while it read; `memory_measures` has the definitions."""

    layer: str
    """The name of its module."""
    sequences: int
    tokens: int
    """Of each sequence."""
    chunk: int
    """Tokens per chunk; the last chunk of a series may be shorter."""
    update: float
    """How much a chunk changes the weights, relative to them: mean over samples, heads and chunks."""
    update_series: list[float]
    """Its mean over samples and heads, chunk by chunk."""
    surprise: float
    """How far a token's value lies from what the memory said at its chunk's start: mean over all tokens."""
    surprise_series: list[float]
    """Its mean, chunk by chunk."""
    utilisation: list[Ranks]
    """Per matrix: the ranks of its change from the first weights to the last."""
    retrieval: list[Retrieval]
    """By age."""
    candidates: int
    """Stored values among which one is looked for; 1 / candidates is what chance finds."""
    half_life: list[float]
    """Tokens, per head; infinite where nothing decays."""
    gates: dict[str, Spread]
    """By name; a gate that the memory does not have is absent."""
    saturation: float
    """The share of tokens whose rate lies above 0.95 of its bound."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: what is infinite or does not exist is None."""
        found: dict[str, Any] = finite(asdict(self))
        return found


@dataclass(slots=True)
class Watch:
    """Sees every chunk that goes through a memory; keeps tokens, but of weights only the first and the last."""

    memory: NeuralMemory
    updates: list[Tensor] = field(default_factory=list)
    surprises: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    gates: list[Gates] = field(default_factory=list)
    first: MemoryState | None = None
    last: MemoryState | None = None

    def __call__(self, seen: Observation) -> None:
        spec = self.memory.spec
        before, after = (effective_weights(state.weights, spec) for state in (seen.before, seen.after))
        self.updates.append(update_magnitudes(before, after))
        self.surprises.append(surprises(seen.keys, seen.values, seen.before.point, spec, self.memory.outer))
        self.keys.append(seen.keys)
        self.values.append(seen.values)
        self.gates.append(seen.gates)
        self.first, self.last = self.first or seen.before, seen.after


@torch.inference_mode()
def probe_memory(model: LanguageModel, tokens: Tensor) -> list[MemoryProbe]:
    """One probe per memory, from reading tokens [batch, time] as fresh sequences; none for a model without memory.

    The model is stepped chunk by chunk, so that each memory is seen at every start of a chunk. The hooks are put back
    whatever happens.
    """
    memories = neural_memories(model)
    watches = {name: Watch(memory) for name, memory in memories.items()}
    for chunk in sorted({memory.spec.chunk for memory in memories.values()}):
        # Nearly always one run: only an outsider's model may have chunks of several sizes.
        with observed(model, {name: watch for name, watch in watches.items() if watch.memory.spec.chunk == chunk}):
            state = model.initial_state(tokens.shape[0], capacity=tokens.shape[1])
            for piece in tokens.split(chunk, dim=1):
                _, state = model.step(piece, state)
    return [summary(name, watch) for name, watch in watches.items()]


def summary(name: str, watch: Watch) -> MemoryProbe:
    """What was seen, in numbers."""
    assert watch.first is not None
    assert watch.last is not None
    memory, spec = watch.memory, watch.memory.spec
    keys, values, gates = torch.cat(watch.keys, dim=2), torch.cat(watch.values, dim=2), joined(watch.gates)
    first, last = (effective_weights(state.weights, spec) for state in (watch.first, watch.last))
    by_age = retrievals(keys, values, watch.last.weights, watch.first.weights, spec, memory.outer)
    return MemoryProbe(
        layer=name,
        sequences=keys.shape[0],
        tokens=keys.shape[2],
        chunk=spec.chunk,
        update=mean(torch.cat(watch.updates)),
        update_series=[mean(chunk) for chunk in watch.updates],
        surprise=mean(torch.cat(watch.surprises, dim=2)),
        surprise_series=[mean(chunk) for chunk in watch.surprises],
        utilisation=[ranks(new - old) for old, new in zip(first, last, strict=True)],
        retrieval=by_age,
        candidates=sum(group.tokens for group in by_age),
        half_life=half_lives(gates["keep"]),
        gates={name: spread(gates[name]) for name in memory.gate_names},
        saturation=mean(gates["rate"] > SATURATED * memory.largest_rate),
    )


def joined(pieces: list[Gates]) -> dict[str, Tensor]:
    """The gates of all tokens by name, [batch, heads, time] each."""
    present = [name for name, gate in pieces[0]._asdict().items() if gate is not None]
    return {name: torch.cat([getattr(piece, name) for piece in pieces], dim=2) for name in present}


def mean(x: Tensor) -> float:
    """Of all numbers; of none it is not a number."""
    return float(x.double().mean())


def finite(tree: Any) -> Any:
    """A tree of dicts, lists and numbers, with None for what JSON has no number for."""
    if isinstance(tree, Mapping):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
