"""Titans' MAC: attention over a segment whose context the memory supplies; what it makes of it is written back.

Per segment, in the paper's order: read, attend, write, gate. Taken literally, the printed equations see the future in
two places, and both are repaired. Token i sees the reads h_1..h_i of its segment and not all of them, because h_j is
made of token j; and its output is gated by the memory as it stands after token i and not after the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.recomputation import recomputed
from lockstep.memory.types import Weights
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attending import attend_in
from lockstep.models.mixers.attention import POSITION_BYTES, Attention, Prefix
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, Tail, normed
from lockstep.models.mixers.sight import Sight

EPSILON = 1e-6


class ContextState(NamedTuple):
    """What MAC carries: the open segment, and the memory. Without memory its parts are empty."""

    keys: Tensor  # [batch, heads, slots, head_dim]: of the persistent tokens, of the segment's reads, of its tokens
    values: Tensor
    position: Tensor  # [batch], tokens seen
    tail: Tail  # of the convolution of the queries to the standing memory
    standing: Weights  # the memory at the end of the segment before
    memory: NeuralState | tuple[()]


class Rows(NamedTuple):
    """What tokens bring to their segment, all made before any of it is run; [batch, heads, time, head_dim] each."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    asking: Tensor | None  # queries to the standing memory
    inside: Tensor  # [batch, time], the place in the segment

    def part(self, place: slice) -> Rows:
        asking = None if self.asking is None else self.asking[:, :, place]
        queries, keys, values = (rows[:, :, place] for rows in self[:3])
        return Rows(queries, keys, values, asking, self.inside[:, place])


class Piece(NamedTuple):
    """Tokens that no sample's segment begins among."""

    place: slice
    phase: int | None  # where in their segment the first of them stands, if that is the same in all samples


class MemoryAsContext(Mixer):
    """Attention inside segments of equal length; what lies before reaches them through the memory alone."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None, segment: int) -> None:
        """The attention lends its projections and persistent tokens; a segment is a whole number of chunks."""
        super().__init__()
        if memory is not None and segment % memory.spec.chunk:
            raise ValueError(f"segment {segment} is not a whole number of chunks of {memory.spec.chunk}")
        self.attention, self.memory, self.segment = attention, memory, segment
        self.dim = attention.output.in_features
        self.contexts = 1 if memory is None else 2
        self.persistent = 0 if attention.persistent is None else attention.persistent.num_embeddings
        self.gate = MemoryGate(self.dim, attention.heads, use_memory=memory is not None)
        self.read_norm = None if memory is None else nn.RMSNorm(self.dim, eps=EPSILON)
        self.write_norm = None if memory is None else nn.RMSNorm(self.dim, eps=EPSILON)

    @property
    def output(self) -> nn.Linear:
        return self.attention.output

    def step(self, x: Tensor, state: ContextState | None) -> tuple[Tensor, ContextState]:
        position: int | Tensor = 0 if state is None else state.position
        state = self.initial_state(x.shape[0]) if state is None else state
        inside = (state.position[:, None] + torch.arange(x.shape[1], device=x.device)) % self.segment
        rows, tail = self.rows(x, inside, state.tail)
        state = state._replace(tail=tail)
        pinned = (state.keys[:, :, : self.persistent], state.values[:, :, : self.persistent]) if self.persistent else ()
        mixed = []
        for piece in self.pieces(position, x.shape[1], x.device):
            y, state = self.within_segment(x[:, piece.place], rows.part(piece.place), piece.phase, pinned, state)
            mixed.append(y)
        return self.output(mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)), state

    def rows(self, x: Tensor, inside: Tensor, tail: Tail) -> tuple[Rows, Tail]:
        queries, keys, values = self.attention.project(x, inside, self.segment)
        if self.memory is None:
            return Rows(queries, keys, values, None, inside), tail
        asking, tail = self.memory.asking(x, tail)
        return Rows(queries, keys, values, asking, inside), tail

    def pieces(self, position: Tensor | int, time: int, device: torch.device) -> Iterator[Piece]:
        """Cut the time where a segment begins in any sample."""
        if isinstance(position, Tensor) and time == 1 and device.type != "cpu":
            yield Piece(slice(0, 1), None)  # asking where the samples stand would make the device wait
            return
        places = [position] if isinstance(position, int) else position.tolist()
        phases, done = {at % self.segment for at in places}, 0
        while done < time:
            now = {(phase + done) % self.segment for phase in phases}
            size = min(time - done, *(self.segment - phase for phase in now))
            yield Piece(slice(done, done + size), now.pop() if len(now) == 1 else None)
            done += size

    def within_segment(
        self, x: Tensor, rows: Rows, phase: int | None, pinned: Prefix, state: ContextState
    ) -> tuple[Tensor, ContextState]:
        """Read, attend, write, gate, for tokens of one segment; before the output projection."""
        attended, keys, values = self.attend(rows, phase, pinned, state)
        attended = x + attended
        standing, memory, reads = state.standing, state.memory, None
        if self.memory is not None and self.write_norm is not None and isinstance(memory, NeuralState):
            reads, memory = self.memory.step(normed(self.write_norm, attended), memory, phase)
            standing = self.stands(standing, memory, rows.inside, phase)
        after = ContextState(keys, values, state.position + x.shape[1], state.tail, standing, memory)
        return recomputed(self.gate, attended, reads), after

    def attend(
        self, rows: Rows, phase: int | None, pinned: Prefix, state: ContextState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention inside the segment [batch, time, dim], and its keys and values after these tokens."""
        keys, values = recomputed(self.context, rows, state.standing)
        inside = rows.inside
        if phase == 0:
            # Nothing of the segment lies in the cache yet, and nothing need be put there if it ends here.
            cached = state.keys, state.values
            if inside.shape[1] < self.segment:
                cached = self.put(state.keys, keys, inside), self.put(state.values, values, inside)
            return self.from_start(rows.queries, keys, values, pinned), *cached
        keys, values = self.put(state.keys, keys, inside), self.put(state.values, values, inside)
        mask = inside[:, :, None] >= torch.arange(self.segment, device=inside.device).repeat(self.contexts)
        return self.masked(rows.queries, keys, values, mask), keys, values

    def from_start(self, queries: Tensor, keys: Tensor, values: Tensor, pinned: Prefix) -> Tensor:
        """Attention [batch, time, dim] of the first tokens of a segment; whole segments all look alike."""
        time = queries.shape[2]
        if time == self.segment and self.attention.skips(queries, keys, values):
            keys, values = self.attention.before_prefix(keys, values, pinned)
            return self.attention.merge(attend_in(Sight(self.contexts, time, time), queries, keys, values))
        keys, values = self.attention.after_prefix(keys, values, pinned)
        order = torch.arange(time, device=queries.device)
        return self.masked(queries, keys, values, (order[:, None] >= order.repeat(self.contexts))[None])

    def masked(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attention [batch, time, dim]; the mask [batch or 1, time, keys] is that of all but the persistent tokens."""
        mask = F.pad(mask, (self.persistent, 0), value=True)
        return self.attention.merge(self.attention.attend(queries, keys, values, mask[:, None]))

    def context(self, rows: Rows, standing: Weights) -> tuple[Tensor, Tensor]:
        """Keys and values of what the standing memory says to the tokens, and of the tokens themselves."""
        if self.memory is None or self.read_norm is None or rows.asking is None:
            return rows.keys, rows.values
        reads = normed(self.read_norm, self.memory.recall(rows.asking, standing))
        pair = F.linear(reads, self.attention.qkv.weight[self.dim :]).unflatten(-1, (2, self.attention.heads, -1))
        keys, values = pair.permute(2, 0, 3, 1, 4).unbind()
        keys = self.attention.turned(keys, rows.inside, self.segment)
        return torch.cat((keys, rows.keys), dim=2), torch.cat((values, rows.values), dim=2)

    def put(self, cache: Tensor, rows: Tensor, inside: Tensor) -> Tensor:
        """The cache with rows at their places in the segment."""
        slots = torch.cat([inside + (self.persistent + part * self.segment) for part in range(self.contexts)], dim=1)
        return cache.scatter(2, slots[:, None, :, None].expand_as(rows), rows.to(cache.dtype))

    def stands(self, standing: Weights, memory: NeuralState, inside: Tensor, phase: int | None) -> Weights:
        """The memory that the next token reads: a new one where its segment has ended."""
        held = memory.memory.weights
        if phase is not None:
            return held if phase + inside.shape[1] == self.segment else standing
        ended = (inside[:, -1] + 1 == self.segment)[:, None, None, None]
        return tuple(torch.where(ended, new, old) for new, old in zip(held, standing, strict=True))

    def initial_state(self, batch: int, capacity: int | None = None) -> ContextState:
        shape = (batch, self.attention.heads, self.contexts * self.segment, self.attention.head_dim)
        position = torch.zeros(batch, dtype=torch.int64, device=self.like.device)
        prefix = self.attention.prefix() or (self.zeros(*shape)[0, :, :0],) * 2
        caches = [torch.cat((part.expand(batch, -1, -1, -1), self.zeros(*shape)), dim=2) for part in prefix]
        if self.memory is None:
            return ContextState(caches[0], caches[1], position, (), (), ())
        memory = self.memory.initial_state(batch)
        tail = self.memory.initial_tail(batch, self.memory.dim)
        return ContextState(caches[0], caches[1], position, tail, memory.memory.weights, memory)

    def initialise(self) -> None:
        self.attention.initialise()
        if self.memory is not None:
            self.memory.initialise()

    def cost(self, length: int) -> Cost:
        whole, rest = divmod(length, self.segment)
        pairs = sum(
            count * size * (self.contexts * size + self.persistent)
            for count, size in ((whole, self.segment), (1, rest))
        )
        scores = 2 * product_flops(self.dim, 1) * pairs / length
        projections = product_flops(*self.attention.qkv.weight.shape) + product_flops(self.dim, self.dim)
        slots = self.persistent + self.contexts * self.segment
        cache = 2 * slots * self.dim * self.like.element_size() + POSITION_BYTES
        one_token = 2 * product_flops(self.dim, slots)
        own = Cost(forward_flops=projections + scores, decoding_extra=one_token - scores, state_bytes=cache)
        if self.memory is None:
            return own
        recalled = self.memory.recall_flops() + product_flops(self.dim, 2 * self.dim)
        standing = self.memory.tail_bytes(self.dim) + self.memory.held_bytes(1)
        # What the memory says is computed again on the way back.
        asked = Cost(forward_flops=product_flops(self.dim, self.dim) + recalled, training_extra=recalled)
        return own + asked + self.memory.cost(length, self.segment) + Cost(state_bytes=standing)
