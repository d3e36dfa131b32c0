"""What `step` carries from token to token: a tree of tensors whose first dimension is the batch.

A tree is a tensor, or a dict or tuple of trees. Shapes are fixed from the first step on, so that a decoding
step can be recorded once and replayed; nothing here changes a tree in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

State = Any
"""`Tensor | dict[str, State] | tuple[State, ...]`; the type checker has no use for the recursion."""


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply `function` to the corresponding tensors of trees of one shape."""
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, dict):
        return {key: map_state(function, state[key], *(other[key] for other in others)) for key in state}
    mapped = [map_state(function, *parts) for parts in zip(state, *others, strict=True)]
    return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)


def named_tensors(state: State, prefix: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree with its dotted name."""
    if isinstance(state, Tensor):
        yield prefix, state
        return
    children = state.items() if isinstance(state, dict) else enumerate(state)
    for key, child in children:
        yield from named_tensors(child, f"{prefix}.{key}")


def state_bytes(state: State) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in named_tensors(state))


def select(state: State, rows: Tensor | Sequence[int]) -> State:
    """The states of some sequences of the batch, in the given order; repeats branch a prefix."""
    index = torch.as_tensor(rows)
    return map_state(lambda tensor: tensor.index_select(0, index.to(tensor.device)), state)


def stack(states: Sequence[State]) -> State:
    """One batch out of several, which may stand at different positions."""
    first, *rest = states
    return map_state(lambda *tensors: torch.cat(tensors), first, *rest)


def reset(state: State, rows: Tensor, initial: State) -> State:
    """Start the sequences marked in `rows` (bool, [batch]) anew from `initial`; the others go on."""

    def choose(old: Tensor, new: Tensor) -> Tensor:
        mark = rows.to(old.device).view(-1, *[1] * (old.ndim - 1))
        return torch.where(mark, new, old)

    return map_state(choose, state, initial)


def save_state(state: State, path: Path) -> None:
    """Write a state to a file that holds tensors and nothing else."""
    # Cloned, because a file cannot hold two names for one tensor, as a memory at a chunk's start has.
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in named_tensors(state)}, path)


def load_state(path: Path, like: State) -> State:
    """Read a state back; `like` is any state of the same model and gives the tree and the device."""
    stored = load_file(path)
    names = iter([name for name, _ in named_tensors(like)])
    return map_state(lambda tensor: stored[next(names)].to(tensor.device), like)
