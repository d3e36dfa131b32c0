"""Heat maps of a model that reads: where attention looks, where a memory was written, what an output depends on."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.evaluation.attention_weights import Attended, listening
from lockstep.evaluation.inference import longest
from lockstep.evaluation.memory_hooks import neural_memories, observed
from lockstep.evaluation.memory_measures import effective_weights
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.memory_as_context import MemoryAsContext
from lockstep.models.mixers.neural_memory import NeuralMemory, Observation

T = TypeVar("T")

SIDE = 48
"""The most rows and columns of a picture that can be made smaller."""
COPIES = 16
"""Perturbed copies of a text that are read at once."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A heat map; the report's record says what each kind shows."""

    kind: Literal["attention", "memory", "influence"]
    title: str
    layer: str | None
    values: tuple[tuple[float, ...], ...]
    """[rows, columns], rounded to four digits."""
    rows: str
    """What a row is."""
    columns: str
    """What a column is."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def pictures(model: LanguageModel, tokens: Tensor) -> tuple[Picture, ...]:
    """All that there are of tokens [1, time], but for those of a model whose numbers are not finite any more."""
    made = (*attention_pictures(model, tokens), *memory_pictures(model, tokens), influence_picture(model, tokens))
    return tuple(one for one in made if all(math.isfinite(value) for row in one.values for value in row))


@torch.inference_mode()
def attention_pictures(model: LanguageModel, tokens: Tensor) -> tuple[Picture, ...]:
    """Attention weights of the first and the last layer that have them, mean over heads, as tokens [1, time] are read.

    As many rows as tokens. Windows are put together again; of MAC's segments, which do not see each other, it is the
    last whole one. A model without attention, or whose attention is not torch's, has none.
    """
    with in_mode(model, training=False), listening(model) as calls:
        model(tokens)
    return tuple(attention_picture(model, layer, calls[layer], tokens.shape[1]) for layer in ends(sorted(calls)))


def attention_picture(model: LanguageModel, layer: int, calls: list[Attended], time: int) -> Picture:
    """Of one layer, which may have called attention once per segment, or with blocks in the place of the batch."""
    mixer, attention = attention_of(model, layer)
    kept = 0 if attention is None or attention.persistent is None else attention.persistent.num_embeddings
    pinned = f"{kept} persistent tokens, then " if kept else ""
    rows, columns, call = "token", f"{pinned}token that it looks at", calls[-1]
    if isinstance(mixer, MemoryAsContext):
        place = max(range(len(calls)), key=lambda number: (calls[number].query.shape[2], number))
        call, size = calls[place], calls[place].query.shape[2]
        reads = f"{size} reads of the memory, then " if mixer.memory is not None else ""
        rows, columns = f"token of segment {place + 1}", f"{pinned}{reads}{size} tokens of the segment"
    weights = call.weights.mean(dim=1)
    if isinstance(mixer, MemoryAsContext):
        weights = weights.roll(kept, dims=-1)  # of a segment's keys the persistent tokens' stand last
    seen = weights[0] if len(weights) == 1 else unblocked(weights, kept, time)
    title = f"attention weights, mean over {call.query.shape[1]} heads"
    return Picture("attention", title, layer_name(model, layer), rounded(seen), rows, columns)


def attention_of(model: LanguageModel, layer: int) -> tuple[object, Attention | None]:
    """A layer's mixer and the attention in it; a model that is not made of our blocks has neither."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        return None, None
    found = (module for module in blocks[layer].modules() if isinstance(module, Attention))
    return blocks[layer].mixer, next(found, None)


def unblocked(weights: Tensor, kept: int, time: int) -> Tensor:
    """Windowed weights [blocks, window, kept + 2 × window] as [time, kept + time]: blocks see the one before."""
    blocks, window, _ = weights.shape
    whole = weights.new_zeros(blocks * window, kept + (blocks + 1) * window)
    for number, block in enumerate(weights):
        rows, first = slice(number * window, (number + 1) * window), kept + number * window
        whole[rows, :kept] = block[:, :kept]
        whole[rows, first : first + 2 * window] = block[:, kept:]
    # What stands before the first block are empty places, which nobody sees.
    return torch.cat((whole[:time, :kept], whole[:time, kept + window : kept + window + time]), dim=1)


@torch.inference_mode()
def memory_pictures(model: LanguageModel, tokens: Tensor) -> tuple[Picture, ...]:
    """How far each weight of the first and the last layer's memory moved while tokens [1, time] were read.

    Of the first matrix of the first head. Large matrices are shown by the means of blocks.
    """
    memories = neural_memories(model)
    chosen = {name: Moved(memories[name]) for name in ends(list(memories))}
    with in_mode(model, training=False), observed(model, chosen):
        model(tokens)
    return tuple(memory_picture(model, name, moved) for name, moved in chosen.items())


class Moved:
    """Keeps the weights from before the first call and after the last."""

    def __init__(self, memory: NeuralMemory) -> None:
        self.memory = memory
        self.before: Tensor | None = None
        self.after: Tensor | None = None

    def __call__(self, seen: Observation) -> None:
        spec = self.memory.spec
        if self.before is None:
            self.before = effective_weights(seen.before.weights, spec)[0][0, 0]
        self.after = effective_weights(seen.after.weights, spec)[0][0, 0]

    @property
    def distance(self) -> Tensor:
        assert self.before is not None
        assert self.after is not None
        return (self.after - self.before).abs()


def memory_picture(model: LanguageModel, name: str, moved: Moved) -> Picture:
    shown, (tall, wide) = block_means(moved.distance.double().cpu().numpy())
    rows, columns = (
        what if size == 1 else f"{what}s, means of {size}" for what, size in (("input", tall), ("output", wide))
    )
    number = re.match(r"blocks\.(\d+)\.", name)
    layer = name if number is None else layer_name(model, int(number[1]))
    title = "how far each weight moved, first matrix of the first head"
    return Picture("memory", title, layer, rounded(shown), rows, columns)


def block_means(matrix: NDArray[np.float64], side: int = SIDE) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Means over the smallest blocks that leave at most `side` rows and columns, and their size; the last is cut."""
    size = -(-matrix.shape[0] // side), -(-matrix.shape[1] // side)
    starts = [np.arange(0, length, step) for length, step in zip(matrix.shape, size, strict=True)]
    sums = np.add.reduceat(np.add.reduceat(matrix, starts[0], axis=0), starts[1], axis=1)
    counts = [np.diff(np.append(start, length)) for start, length in zip(starts, matrix.shape, strict=True)]
    return sums / np.outer(*counts), size


@torch.inference_mode()
def influence_picture(model: LanguageModel, tokens: Tensor) -> Picture:
    """How much the output at a row changes when the token at a column is another one; the largest change is 1.

    The change is the Euclidean distance between log-probabilities; tokens [1, time], of which the first 48 are read.
    A causal model's outputs do not depend on later tokens, which the laws prove, so that rounding is not shown there.
    """
    tokens = tokens[:, : min(SIDE, longest(model) or SIDE)]
    with in_mode(model, training=False):
        plain = log_probabilities(model, tokens)
        changed = [
            (log_probabilities(model, some) - plain).square().sum(dim=-1).sqrt()
            for some in perturbed(tokens[0], model.embedding.num_embeddings).split(COPIES)
        ]
    distances = torch.cat(changed).t().double()
    distances = distances.tril() if model.causal else distances
    largest = float(distances.max())
    shown = rounded(distances / largest if largest else distances)
    title = "how much an output changes when a token is another one"
    return Picture("influence", title, None, shown, "output after this token", "token that is replaced")


def perturbed(tokens: Tensor, vocabulary: int) -> Tensor:
    """Copies of tokens [time], in the j-th of which the j-th token is the next in the text that differs."""
    copies = tokens.repeat(len(tokens), 1)
    for place, token in enumerate(tokens.tolist()):
        others = [other for other in tokens.roll(-place).tolist() if other != token]
        copies[place, place] = others[0] if others else (token + 1) % vocabulary
    return copies


def log_probabilities(model: LanguageModel, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)


def layer_name(model: LanguageModel, number: int) -> str:
    return f"layer {number + 1} of {model.spec.depth}"


def ends(things: list[T]) -> list[T]:
    """The first and the last of them; one where that is the same."""
    return things if len(things) < 2 else [things[0], things[-1]]


def rounded(matrix: Tensor | NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """To four significant digits."""
    return tuple(tuple(float(f"{value:.4g}") for value in row) for row in matrix.tolist())
