"""Ablations: what a trained model loses when its memory is taken away, stopped, emptied or filled with other text.

None of them trains anything. A model that never learned to do without what is taken away may lose more than one that
was trained without it: an ablation says how much this model leans on its memory, not what memory is worth.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import torch
from torch import Tensor

from lockstep.evaluation.memory_hooks import ablated, neural_memories
from lockstep.memory import MemoryState
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import IGNORED, token_losses
from lockstep.models.mixers.memory_as_context import ContextState
from lockstep.models.mixers.neural_memory import Ablation, NeuralState
from lockstep.models.state import State, select


@torch.inference_mode()
def score_ablations(
    model: LanguageModel, tokens: Tensor, other: Tensor | None = None, *, segment: int, targets: Tensor | None = None
) -> dict[str, float]:
    """Mean next-token loss in nats over tokens [batch, time + 1], by what was done to the memory:

    - intact: nothing;
    - off: all reads are zero;
    - frozen: nothing is written, so that the weights stay as they were learned;
    - reset: before every `segment` tokens the memory is as it was at the beginning, while caches and tails go on;
    - warm: the memory has read `other` [rows, time] before, of which all else knows nothing.

    What cannot be done is absent: without a memory all but intact, without other text warm. The targets [batch, time]
    are the tokens themselves unless given: a task asks for some of them only.
    """
    loss = partial(mean_loss, model, tokens, tokens[:, 1:] if targets is None else targets)
    scores = {"intact": loss()}
    if not neural_memories(model):
        return scores
    for kind in get_args(Ablation):
        with ablated(model, kind):
            scores[kind] = loss()
    scores["reset"] = loss(segment=segment)
    if other is not None:
        batch, time = tokens.shape
        scores["warm"] = loss(warm_state(model, other, batch, capacity=time))
    return scores


def mean_loss(
    model: LanguageModel, tokens: Tensor, targets: Tensor, state: State | None = None, segment: int | None = None
) -> float:
    """Nats per target of tokens [batch, time + 1] after `state`, the memory being reset before each further segment."""
    inputs = tokens[:, :-1]
    batch, time = inputs.shape
    state = model.initial_state(batch, capacity=time) if state is None else state
    losses = []
    for start in range(0, time, segment or time):
        now = slice(start, start + (segment or time))
        logits, state = model.step(inputs[:, now], reset_memory(model, state) if start else state)
        losses.append(token_losses(logits, targets[:, now]))
    return torch.cat(losses, dim=1).double().sum().item() / int((targets != IGNORED).sum())


def reset_memory(model: LanguageModel, state: State) -> State:
    """The state with every memory as it is before the first token; all else goes on, the positions of chunks too."""
    return with_memory_of(state, model.initial_state(state["position"].shape[0]))


def warm_state(model: LanguageModel, other: Tensor, batch: int, capacity: int | None = None) -> State:
    """A state before the first token, but with memories that have read `other` [rows, time].

    Where the rows are fewer than the batch they are used again.
    """
    fresh = model.initial_state(batch, capacity)
    rows, time = other.shape
    if not time:
        return fresh
    _, read = model.step(other, model.initial_state(rows, capacity=time))
    return with_memory_of(fresh, select(read, [row % rows for row in range(batch)]))


def with_memory_of(state: State, donor: State) -> State:
    """A new tree: `state`, but what its memories hold is `donor`'s, which is a state of the same model and batch."""
    if isinstance(state, Tensor):
        return state
    if isinstance(state, MemoryState):
        # Gradients are taken where it now stands. The chunk's phase is the token's position, which does not change.
        return MemoryState(donor.weights, donor.weights, donor.velocity, state.position)
    if isinstance(state, dict):
        return {key: with_memory_of(part, donor[key]) for key, part in state.items()}
    parts = [with_memory_of(mine, theirs) for mine, theirs in zip(state, donor, strict=True)]
    if not hasattr(state, "_fields"):
        return tuple(parts)
    changed = type(state)(*parts)
    if isinstance(changed, ContextState) and isinstance(changed.memory, NeuralState):
        # What the segment reads as its past must not know what the memory no longer knows.
        return changed._replace(standing=changed.memory.memory.weights)
    return changed
