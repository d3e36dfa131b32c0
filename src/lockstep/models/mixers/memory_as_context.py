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

from lockstep.memory.ownership import is_given_up
from lockstep.memory.recomputation import as_operand, never_kept
from lockstep.memory.types import Weights
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attending import attend_in
from lockstep.models.mixers.attention import POSITION_BYTES, Attention
from lockstep.models.mixers.cache import KeyValueCache, Prefix, put
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
    standing: Weights  # what the memory held when the segment began; its first token finds out
    memory: NeuralState | tuple[()]


class Rows(NamedTuple):
    """What tokens bring to their segment, all projected before any of it is run."""

    qkv: Tensor  # [batch, time, 3 × dim]
    asking: Tensor | None  # [batch, heads, time, head_dim], the queries to the standing memory
    inside: Tensor  # [batch, time], the place in the segment
    said: Tensor | None = None  # [batch, 1, 2 × dim], to a single token, if the standing memory has been asked already

    def split(self, sizes: list[int]) -> list[Rows]:
        """Piece by piece."""
        asking = [None] * len(sizes) if self.asking is None else self.asking.split(sizes, dim=2)
        parts = zip(self.qkv.split(sizes, dim=1), asking, self.inside.split(sizes, dim=1), strict=True)
        return [Rows(*part) for part in parts]


class Heads(NamedTuple):
    """What attention is given, [batch, heads, time, head_dim] each; keys and values may be several for a token."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class Piece(NamedTuple):
    """Tokens that no sample's segment begins among."""

    size: int
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
        self.persistent = attention.pinned
        self.gate = MemoryGate(self.dim, attention.heads, use_memory=memory is not None)
        self.read_norm = None if memory is None else nn.RMSNorm(self.dim, eps=EPSILON)
        self.write_norm = None if memory is None else nn.RMSNorm(self.dim, eps=EPSILON)

    @property
    def output(self) -> nn.Linear:
        return self.attention.output

    def forward(self, x: Tensor, state: ContextState | None = None) -> Tensor:
        if state is not None or x.shape[1] % self.segment:
            return self.step(x, state)[0]
        # No segment stays open, so that there is no need of room for one.
        mixed: Tensor = self.run(x, self.opened(x.shape[0], 0), 0)[0]
        return mixed

    def step(self, x: Tensor, state: ContextState | None) -> tuple[Tensor, ContextState]:
        if state is None:
            return self.run(x, self.initial_state(x.shape[0]), 0)  # type: ignore[no-any-return] # see there
        if x.shape[1] == 1:
            return self.one_token(x, state)
        return self.run(x, state, state.position)  # type: ignore[no-any-return] # see there

    # One after the other, segments are compiled as one: a graph of all would take minutes for a long text.
    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator] # torch leaves it untyped
    def run(self, x: Tensor, state: ContextState, position: Tensor | int) -> tuple[Tensor, ContextState]:
        """`step`, from where all samples stand, if that is known."""
        inside = (state.position[:, None] + torch.arange(x.shape[1], device=x.device)) % self.segment
        rows, tail = self.rows(x, inside, state.tail)
        state = state._replace(tail=tail)
        pinned = KeyValueCache(*state[:3]).pinned(self.persistent)
        pieces = list(self.pieces(position, x.shape[1]))
        sizes = [piece.size for piece in pieces]
        attended, reads = [], []
        for piece, part, brought in zip(pieces, x.split(sizes, dim=1), rows.split(sizes), strict=True):
            seen, said, state = self.within_segment(part, brought, piece.phase, pinned, state)
            attended.append(seen)
            reads.append(said)
        return self.joined(attended, reads), state

    def one_token(self, x: Tensor, state: ContextState) -> tuple[Tensor, ContextState]:
        """`step` of one, as one graph: nobody is asked where the samples stand."""
        qkv, inside = self.attention.qkv(x), state.position[:, None] % self.segment
        if self.asks_over(qkv, state):
            rows, tail = Rows(qkv, None, inside, self.said_to_one(x, state)), state.tail
        else:
            asking, tail = self.asking(x, state.tail)
            rows = Rows(qkv, asking, inside)
        # Not by _replace, as below.
        state = ContextState(*state[:3], tail, *state[4:])
        attended, said, state = self.within_segment(x, rows, None, (), state)
        return self.joined([attended], [said]), state

    def asks_over(self, qkv: Tensor, state: ContextState) -> bool:
        """Whether our kernel asks the standing memory, and writes over it where a segment begins."""
        if self.memory is None or not self.attention.looks(qkv):
            return False
        return self.memory.recalls_over(qkv, state.standing)

    def said_to_one(self, x: Tensor, state: ContextState) -> Tensor:
        """By that kernel, which writes over the tail as well: `said` to a single token."""
        assert self.memory is not None
        assert isinstance(state.tail, Tensor)
        assert isinstance(state.memory, NeuralState)
        held = state.memory.memory.weights
        return self.projected(
            self.memory.recall_over(x, state.tail, state.standing, held, state.position, self.segment)
        )

    def rows(self, x: Tensor, inside: Tensor, tail: Tail) -> tuple[Rows, Tail]:
        """What the tokens bring, and the tail after them."""
        asking, tail = self.asking(x, tail)
        return Rows(self.attention.qkv(x), asking, inside), tail

    def asking(self, x: Tensor, tail: Tail) -> tuple[Tensor | None, Tail]:
        """Queries to the standing memory, if there is one."""
        return (None, ()) if self.memory is None else self.memory.asking(x, tail)

    def pieces(self, position: Tensor | int, time: int) -> Iterator[Piece]:
        """Cut the time where a segment begins in any sample."""
        places = [position] if isinstance(position, int) else position.tolist()
        phases, done = {at % self.segment for at in places}, 0
        while done < time:
            now = {(phase + done) % self.segment for phase in phases}
            size = min(time - done, *(self.segment - phase for phase in now))
            yield Piece(size, now.pop() if len(now) == 1 else None)
            done += size

    def within_segment(
        self, x: Tensor, rows: Rows, phase: int | None, pinned: Prefix, state: ContextState
    ) -> tuple[Tensor, Tensor | None, ContextState]:
        """Read, attend, write, for tokens of one segment: what both sides of the gate are given."""
        attended, state = self.attend(rows, phase, pinned, self.begun(rows, phase, state))
        attended = x + attended
        memory, reads = state.memory, None
        if self.memory is not None and isinstance(memory, NeuralState):
            reads, memory = self.memory.step(never_kept(self.written, attended), memory, phase)
        # Not by _replace: what torch 2.11 compiles would hand out a tuple without elements.
        return attended, reads, ContextState(*state[:5], memory)

    def begun(self, rows: Rows, phase: int | None, state: ContextState) -> ContextState:
        """With what is held as what stands, where a segment begins with these tokens."""
        if not isinstance(state.memory, NeuralState) or rows.said is not None or phase not in (None, 0):
            return state
        standing, held = state.standing, state.memory.memory.weights
        if phase == 0:
            return ContextState(*state[:4], held, state.memory)
        begins = (rows.inside[:, 0] == 0)[:, None, None, None]
        after = tuple(torch.where(begins, new, old) for new, old in zip(held, standing, strict=True))
        if is_given_up():
            after = tuple(old.copy_(new) for old, new in zip(standing, after, strict=True))
        return ContextState(*state[:4], after, state.memory)

    def written(self, attended: Tensor) -> Tensor:
        """What the memory is given."""
        assert self.write_norm is not None
        return as_operand(normed(self.write_norm, attended))

    def joined(self, attended: list[Tensor], reads: list[Tensor | None]) -> Tensor:
        """The output, of all segments."""
        return never_kept(self.gated, attended, reads)

    def gated(self, attended: list[Tensor], reads: list[Tensor | None]) -> Tensor:
        y: Tensor = self.output(self.gate(attended, reads))
        return y

    def attend(self, rows: Rows, phase: int | None, pinned: Prefix, state: ContextState) -> tuple[Tensor, ContextState]:
        """Attention inside the segment [batch, time, dim], and the state after these tokens, but for the memory."""
        cache, rest = KeyValueCache(*state[:3]), state[3:]
        if self.attention.looks(rows.qkv):
            said = rows.said
            if said is None and rows.asking is not None:
                said = self.said(rows.asking, state.standing)
            attended, cache = self.attention.look(rows.qkv, cache, said, segmented=True)
            return attended, ContextState(*cache, *rest)
        attended, keys, values = self.attended(rows, phase, pinned, state)
        return attended, ContextState(keys, values, state.position + rows.inside.shape[1], *rest)

    def attended(
        self, rows: Rows, phase: int | None, pinned: Prefix, state: ContextState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """By torch, or by the kernel of whole segments; and the keys and values after these tokens."""
        whole = phase == 0 and rows.inside.shape[1] == self.segment
        if whole and self.attention.by_kernel(rows.qkv):
            said = None if rows.asking is None else never_kept(self.said, rows.asking, state.standing)
            return self.attention.at_once(rows.qkv, said, pinned, self.segment, self.segment), state.keys, state.values
        if phase == 0:
            # Nothing of the segment lies in the cache yet, and nothing need be put there if it ends here.
            heads = never_kept(self.context, rows, state.standing, pinned)
            kept = (state.keys, state.values) if whole else self.put(state, heads, rows.inside)
            return self.from_start(heads), *kept
        heads = never_kept(self.context, rows, state.standing, ())
        keys, values = self.put(state, heads, rows.inside)
        seen = rows.inside[:, :, None] >= torch.arange(self.segment, device=rows.inside.device).repeat(self.contexts)
        mask = F.pad(seen, (self.persistent, 0), value=True)
        attended = self.attention.attend(heads.queries, keys, values, mask[:, None])
        return self.attention.merge(attended), keys, values

    def from_start(self, heads: Heads) -> Tensor:
        """Attention [batch, time, dim] of the first tokens of a segment; whole segments all look alike."""
        time = heads.queries.shape[2]
        if time == self.segment and self.attention.skips(*heads):
            return self.attention.merge(attend_in(Sight(self.contexts, time, time), *heads))
        order = torch.arange(time, device=heads.queries.device)
        seen = order[:, None] >= order.repeat(self.contexts)
        mask = F.pad(seen, (0, self.persistent), value=True)
        return self.attention.merge(self.attention.attend(*heads, mask[None, None]))

    def said(self, asking: Tensor, standing: Weights) -> Tensor:
        """Keys and values of what the standing memory says, side by side: [batch, time, 2 × dim], not turned."""
        assert self.memory is not None
        return self.projected(self.memory.recall(asking, standing))

    def projected(self, reads: Tensor) -> Tensor:
        """Keys and values of reads [batch, time, heads, head_dim]."""
        assert self.read_norm is not None
        return F.linear(as_operand(normed(self.read_norm, reads.flatten(2))), self.attention.qkv.weight[self.dim :])

    def context(self, rows: Rows, standing: Weights, pinned: Prefix) -> Heads:
        """Keys and values of what the standing memory says to the tokens, of the tokens, of those that are pinned."""
        queries, keys, values = self.attention.apart(rows.qkv, rows.inside, self.segment)
        if rows.asking is not None:
            pair = self.said(rows.asking, standing).unflatten(-1, (2, self.attention.heads, -1))
            said = pair.permute(2, 0, 3, 1, 4)
            turned = self.attention.turned(said[0], rows.inside, self.segment)
            keys, values = torch.cat((turned, keys), dim=2), torch.cat((said[1], values), dim=2)
        return Heads(queries, *self.attention.before_prefix(keys, values, pinned))

    def put(self, state: ContextState, heads: Heads, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with these at their places in the segment; what is pinned, at their end, is there already."""
        slots = torch.cat([inside + (self.persistent + part * self.segment) for part in range(self.contexts)], dim=1)
        count = slots.shape[1]
        return put(state.keys, slots, heads.keys[:, :, :count]), put(state.values, slots, heads.values[:, :, :count])

    def initial_state(self, batch: int, capacity: int | None = None) -> ContextState:
        return self.opened(batch, self.contexts * self.segment)

    def opened(self, batch: int, slots: int) -> ContextState:
        """The state before the first token, with room for keys of a segment."""
        cache = self.attention.opened(batch, slots)
        if self.memory is None:
            return ContextState(*cache, (), (), ())
        memory = self.memory.initial_state(batch)
        tail = self.memory.initial_tail(batch, self.memory.dim)
        return ContextState(*cache, tail, memory.memory.weights, memory)

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
        projections = product_flops(self.dim, self.dim) + product_flops(self.dim, 2 * self.dim)
        recalled = projections + self.memory.recall_flops()
        standing = self.memory.tail_bytes(self.dim) + self.memory.held_bytes(1)
        # What the memory is asked, and says, is computed again on the way back.
        asked = Cost(forward_flops=recalled, training_extra=recalled)
        return own + asked + self.memory.cost(length, self.segment) + Cost(state_bytes=standing)
