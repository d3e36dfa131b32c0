"""The caches of the transformers library as states: trees of tensors of fixed shape that no call changes.

A state holds what the library's cache layers hold: keys and values, the newest at the right end, with empty slots
before the first token; and the states of recurrent layers. For a call they are put into a cache of the library, whose
masks count distances between slots, so that samples at different positions differ only in how many slots are empty.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UserError
from lockstep.models.hugging_face_config import library

Layer = Any
"""A cache layer of the library."""
Held = tuple[Tensor, ...]
"""The tensors of one layer: keys and values, then those of a recurrence, as far as it has them."""

CARRIED = (
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
)
"""The library's layers whose contents are understood here."""

RELATIVE = ("bloom", "mpt")
"""Families that are given no positions because they know distances only."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What the cache of a network holds, found out by showing it one token."""

    config: Any
    argument: str
    """Under which name the network takes its cache."""
    layers: tuple[Layer, ...]
    """The library's, after one token of one sequence, on the meta device."""

    @property
    def is_attention(self) -> bool:
        """Whether keys and values are all there is: these go on by any number of tokens, recurrences by one."""
        return all(has_keys(layer) and not recurrent_tensors(layer) for layer in self.layers)

    @property
    def has_attention(self) -> bool:
        return any(has_keys(layer) for layer in self.layers)

    def unkept(self) -> Any:
        """A cache that keeps nothing.

        Without any cache the library reads the positions, to see whether sequences are packed: that would wait for the
        device at every call, and cannot be done on the meta device.
        """
        transformers = library()
        passing = type("Passing", (transformers.cache_utils.DynamicLayer,), {"update": _hand_on})
        return transformers.Cache(layers=[passing() for _ in self.layers])

    @property
    def reach(self) -> int | None:
        """How many earlier tokens can reach an output, through windows upon windows; None where nothing bounds it."""
        # A chunk, unlike a window, does not move along: how far back it sees depends on where it began.
        spans = [window(layer) for layer in self.layers]
        if not self.is_attention or None in spans or getattr(self.config, "attention_chunk_size", None) is not None:
            return None
        return sum(span - 1 for span in spans if span is not None)

    def empty(self, batch: int, capacity: int, device: torch.device) -> tuple[Held, ...]:
        """The layers before the first token. One that sees a window remembers no more than the rest of the window."""
        states = []
        for layer in self.layers:
            span = window(layer)
            slots = capacity if span is None else min(span - 1, capacity)
            shapes = [(batch, one.shape[1], slots, one.shape[3]) for one in key_tensors(layer)]
            shapes += [(batch, *one.shape[1:]) for one in recurrent_tensors(layer)]
            kinds = [one.dtype for one in (*key_tensors(layer), *recurrent_tensors(layer))]
            pairs = zip(shapes, kinds, strict=True)
            states.append(tuple(torch.zeros(shape, dtype=kind, device=device) for shape, kind in pairs))
        return tuple(states)

    def room(self, states: tuple[Held, ...]) -> int | None:
        """How many tokens the states can hold; None where every layer forgets before it runs out."""
        short = []
        for layer, held in zip(self.layers, states, strict=True):
            span = window(layer)
            if has_keys(layer) and (span is None or held[0].shape[2] < span - 1):
                short.append(held[0].shape[2])
        return max(short, default=None)

    def past(self, states: tuple[Held, ...], position: Tensor, time: int) -> int:
        """Slots before `time` new tokens. Where there is room for these, the leftmost slots are still empty."""
        room = self.room(states)
        if room is None:
            kept = [held[0].shape[2] for layer, held in zip(self.layers, states, strict=True) if has_keys(layer)]
            return max(kept, default=0)
        # Reading the position costs a device synchronisation on a GPU, where the caller chooses the capacity.
        last = time - 1 + (int(position.max()) if position.device.type == "cpu" else 0)
        if last >= room:
            raise ValueError(f"the cache holds {room} tokens, but position {last} was reached")
        return room - time

    def fresh(self) -> Any:
        """A cache of the library, before the first token."""
        return library().DynamicCache(config=self.config)

    def filled(self, states: tuple[Held, ...], past: int) -> Any:
        """A cache of the library that goes on from the states; what it changes in place are copies."""
        cache = self.fresh()
        for layer, like, held in zip(cache.layers, self.layers, states, strict=True):
            if has_keys(like):
                seen = min(past, held[0].shape[2])
                layer.keys, layer.values = (tensor[:, :, tensor.shape[2] - seen :] for tensor in held[:2])
                layer.is_initialized, layer.dtype, layer.device = True, held[0].dtype, held[0].device
                layer.cumulative_length = past
            _place(layer, like, held[len(key_tensors(like)) :])
        return cache

    def read(self, cache: Any, before: tuple[Held, ...]) -> tuple[Held, ...]:
        """The states after a call, in the shapes and dtypes of those before it."""
        states = []
        for layer, held in zip(cache.layers, before, strict=True):
            found = (*key_tensors(layer), *recurrent_tensors(layer))
            # What a window leaves is a view, which would keep the keys of a whole prefill alive.
            copied = window(layer) is not None
            states.append(tuple(one.to(old.dtype, copy=copied) for one, old in zip(found, held, strict=True)))
        return tuple(states)


def find_layout(network: Any) -> CacheLayout:
    """The layout of a network on the meta device, or one line that says why it cannot be carried."""
    kind, transformers = network.config.model_type, library()
    token = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    try:
        answer = network(input_ids=token, use_cache=True)
    except Exception as error:
        raise refusal(kind, f"it needs values to know its shapes ({type(error).__name__})") from None
    for argument in ("past_key_values", "cache_params"):
        cache = answer.get(argument)
        if type(cache) is transformers.DynamicCache:
            unknown = sorted({type(layer).__name__ for layer in cache.layers} - set(CARRIED))
            if unknown:
                raise refusal(kind, f"its cache has layers of kind {unknown[0]}")
            layout = CacheLayout(network.config, argument, tuple(cache.layers))
            if layout.has_attention and not takes_positions(network) and kind not in RELATIVE:
                raise refusal(kind, "it counts positions by the length of its cache")
            return layout
    raise refusal(kind, "it returns no cache of the library's common kind")


def takes_positions(network: Any) -> bool:
    return "position_ids" in inspect.signature(network.forward).parameters


def refusal(kind: str, reason: str) -> UserError:
    return UserError(f"hf: {kind} can be trained and evaluated, but not continued token by token: {reason}")


def window(layer: Layer) -> int | None:
    """How many tokens a layer sees, the token itself included."""
    span: int | None = getattr(layer, "sliding_window", None)
    return span


def has_keys(layer: Layer) -> bool:
    return bool(key_tensors(layer))


def key_tensors(layer: Layer) -> Held:
    """Keys and values [batch, heads, slots, width], where a layer has them."""
    return (layer.keys, layer.values) if getattr(layer, "is_initialized", False) else ()


def recurrent_tensors(layer: Layer) -> Held:
    """Tails of convolutions and states of recurrences, in a fixed order."""
    tails, states = getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})
    return tuple(one for one in (*tails.values(), *states.values()) if one is not None)


def _hand_on(layer: Layer, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return keys, values


def _place(layer: Layer, like: Layer, held: Held) -> None:
    """Copies of the tensors of a recurrence, where `like` has them."""
    rest = iter(held)
    for name in ("conv_states", "recurrent_states"):
        for index, tensor in getattr(like, name, {}).items():
            if tensor is not None:
                getattr(layer, name)[index] = next(rest).clone()
                getattr(layer, f"is_{name}_initialized")[index] = True
                layer.has_previous_state[index] = True
                layer.conv_kernel_size[index] = like.conv_kernel_size[index]
