"""Titans' MAC: attention over a segment whose context the memory supplies; what it makes of it is written back.

Per segment, in the paper's order: read, attend, write, gate. Taken literally the printed equations see the future in two
places, and both are repaired. Token i sees the reads h_1..h_i of its segment and not all of them, because h_j is made of
token j; and its output is gated by the memory as it stands after token i and not after the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.types import Weights
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attention import POSITION_BYTES, Attention
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, Tail, normed
from lockstep.models.rotary import rotate

EPSILON = 1e-6

Prefix = tuple[Tensor, Tensor] | None
"""Keys and values of the persistent tokens."""


class ContextState(NamedTuple):
    """What MAC carries: the open segment, and the memory. Without memory its parts are empty."""

    keys: Tensor  # [batch, heads, contexts × segment, head_dim]: those of the reads, then those of the tokens
    values: Tensor
    position: Tensor  # [batch], tokens seen
    tail: Tail  # of the convolution of the queries to the standing memory
    standing: Weights  # the memory at the end of the segment before
    memory: NeuralState | tuple[()]


class Segment(NamedTuple):
    """Rows of some tokens, seen by their segment: [batch, heads, time, head_dim] each."""

    queries: Tensor
    keys: tuple[Tensor, ...]  # of the reads, where there is a memory, and of the tokens
    values: tuple[Tensor, ...]


class MemoryAsContext(Mixer):
    """Attention inside segments of equal length; what lies before reaches them through the memory alone."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None, segment: int) -> None:
        """The attention lends its projections and persistent tokens; a segment is a whole number of chunks."""
        super().__init__()
        self.attention, self.memory, self.segment = attention, memory, segment
        dim = attention.output.in_features
        self.gate = MemoryGate(dim, attention.heads, use_memory=memory is not None)
        self.read_norm = None if memory is None else nn.RMSNorm(dim, eps=EPSILON)
        self.write_norm = None if memory is None else nn.RMSNorm(dim, eps=EPSILON)

    @property
    def output(self) -> nn.Linear:
        return self.attention.output

    def step(self, x: Tensor, state: ContextState | None) -> tuple[Tensor, ContextState]:
        standing: int | Tensor = 0 if state is None else state.position
        state = self.initial_state(x.shape[0]) if state is None else state
        mixed, prefix = [], self.attention.prefix()
        for piece, phase in self.pieces(x, standing):
            y, state = self.within_segment(piece, phase, state, prefix)
            mixed.append(y)
        return self.output(torch.cat(mixed, dim=1)), state

    def pieces(self, x: Tensor, position: Tensor | int) -> Iterator[tuple[Tensor, int | None]]:
        """Cut the time so that no sample crosses a segment's start, with the phase where it is common to all."""
        time = x.shape[1]
        if isinstance(position, Tensor) and time == 1 and x.device.type != "cpu":
            yield x, None  # asking where the samples stand would make the device wait
            return
        places = [position] if isinstance(position, int) else position.tolist()
        phases, done = {at % self.segment for at in places}, 0
        while done < time:
            now = {(phase + done) % self.segment for phase in phases}
            size = min(time - done, *(self.segment - phase for phase in now))
            yield x[:, done : done + size], now.pop() if len(now) == 1 else None
            done += size

    def within_segment(
        self, x: Tensor, phase: int | None, state: ContextState, prefix: Prefix
    ) -> tuple[Tensor, ContextState]:
        """Read, attend, write, gate, for tokens of one segment; before the output projection."""
        positions = state.position[:, None] % self.segment + torch.arange(x.shape[1], device=x.device)
        segment, tail = self.project(x, positions, state)
        attended, keys, values = self.attend(segment, positions, phase, state, prefix)
        attended = x + attended
        standing, memory, reads = state.standing, state.memory, None
        if self.memory is not None and self.write_norm is not None and isinstance(memory, NeuralState):
            reads, memory = self.memory.step(normed(self.write_norm, attended), memory, phase)
            standing = self.stands(standing, memory, positions, phase)
        after = ContextState(keys, values, state.position + x.shape[1], tail, standing, memory)
        return self.gate(attended, reads), after

    def project(self, x: Tensor, positions: Tensor, state: ContextState) -> tuple[Segment, Tail]:
        """Queries of the tokens, keys and values of what the standing memory says to them and of themselves."""
        queries, keys, values = self.attention.project(x, positions)
        if self.memory is None or self.read_norm is None:
            return Segment(queries, (keys,), (values,)), state.tail
        reads, tail = self.memory.recall(x, state.standing, state.tail)
        own = F.linear(
            normed(self.read_norm, reads), self.attention.qkv.weight[self.attention.heads * self.attention.head_dim :]
        )
        read_keys, read_values = own.unflatten(-1, (2, self.attention.heads, -1)).movedim(2, 0).transpose(2, 3)
        if self.attention.rope_theta is not None:
            read_keys = rotate(read_keys, positions, self.attention.rope_theta, self.attention.rotary_dim)
        return Segment(queries, (read_keys, keys), (read_values, values)), tail

    def attend(
        self, segment: Segment, positions: Tensor, phase: int | None, state: ContextState, prefix: Prefix
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention inside the segment, and its keys and values after these tokens."""
        time = positions.shape[1]
        if phase == 0:
            # Nothing of the segment lies in the cache yet, and nothing need be put there if it ends here.
            keys, values = torch.cat(segment.keys, dim=2), torch.cat(segment.values, dim=2)
            inside = torch.arange(time, device=positions.device)
            mask = (inside[:, None] >= inside.repeat(len(segment.keys)))[None]
            cached = state.keys, state.values
            if time < self.segment:
                cached = (
                    self.put(state.keys, segment.keys, positions),
                    self.put(state.values, segment.values, positions),
                )
        else:
            keys, values = (
                self.put(state.keys, segment.keys, positions),
                self.put(state.values, segment.values, positions),
            )
            slots = torch.arange(keys.shape[2], device=positions.device) % self.segment
            mask = positions[:, :, None] >= slots
            cached = keys, values
        keys, values, mask = self.attention.with_prefix(keys, values, mask, prefix)
        mixed = self.attention.attend(segment.queries, keys, values, mask[:, None])
        return self.attention.merge(mixed), *cached

    def put(self, cache: Tensor, rows: tuple[Tensor, ...], positions: Tensor) -> Tensor:
        """The cache with rows at their places in the segment."""
        slots = torch.cat([positions + part * self.segment for part in range(len(rows))], dim=1)
        new = torch.cat(rows, dim=2).to(cache.dtype)
        return cache.scatter(2, slots[:, None, :, None].expand_as(new), new)

    def stands(self, standing: Weights, memory: NeuralState, positions: Tensor, phase: int | None) -> Weights:
        """The memory that the next token reads: a new one where its segment has ended."""
        held = memory.memory.weights
        if phase is not None:
            return held if phase + positions.shape[1] == self.segment else standing
        ended = (positions[:, -1] + 1 == self.segment)[:, None, None, None]
        return tuple(torch.where(ended, new, old) for new, old in zip(held, standing, strict=True))

    def initial_state(self, batch: int, capacity: int | None = None) -> ContextState:
        contexts = 1 if self.memory is None else 2
        shape = (batch, self.attention.heads, contexts * self.segment, self.attention.head_dim)
        position = torch.zeros(batch, dtype=torch.int64, device=self.like.device)
        caches = self.zeros(*shape), self.zeros(*shape)
        if self.memory is None:
            return ContextState(*caches, position, (), (), ())
        memory = self.memory.initial_state(batch)
        tail = self.memory.initial_tail(batch, self.memory.dim)
        return ContextState(*caches, position, tail, memory.memory.weights, memory)

    def initialise(self) -> None:
        if self.memory is not None:
            self.memory.initialise()

    def cost(self, length: int) -> Cost:
        attention, dim = self.attention, self.attention.output.in_features
        persistent = 0 if attention.persistent is None else attention.persistent.shape[0]
        contexts = 1 if self.memory is None else 2
        whole, rest = divmod(length, self.segment)
        pairs = whole * self.segment * (contexts * self.segment + persistent) + rest * (contexts * rest + persistent)
        flops = 2 * product_flops(dim, 1) * pairs / length
        flops += product_flops(*attention.qkv.weight.shape)
        flops += product_flops(dim, dim)
        cache = 2 * contexts * self.segment * dim * self.like.element_size() + POSITION_BYTES
        own = Cost(forward_flops=flops, state_bytes=cache)
        if self.memory is None:
            return own
        recalled = product_flops(dim, dim) + self.memory.recall_flops()
        bytes_ = self.memory.tail_bytes(dim) + self.memory.held_bytes(1)
        return (
            own
            + self.memory.cost(length)
            + Cost(forward_flops=recalled + product_flops(dim, 2 * dim), state_bytes=bytes_)
        )
