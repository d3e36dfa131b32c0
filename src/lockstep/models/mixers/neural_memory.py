"""The memory of Titans and MIRAS as a part of mixers: projections, convolution, gates, and the memory itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.kernels.memory import token as memory_token
from lockstep.kernels.memory.token_brought import Projected
from lockstep.kernels.rows import choice, token
from lockstep.memory import Gates, Memory, MemorySpec, MemoryState, Outer, begin, recollect, stream
from lockstep.memory.cost import Flops, memory_flops, token_flops
from lockstep.memory.initialisation import draw_weights, stable_rate
from lockstep.memory.ownership import is_given_up
from lockstep.memory.recomputation import never_kept
from lockstep.memory.types import Weights, arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attention import POSITION_BYTES
from lockstep.models.mixers.convolution import ShortConvolution

SHORTEST, LONGEST = 64, 4096
"""Tokens after which heads have forgotten 1 - 1/e at the beginning of training, spread geometrically."""
MOMENTUM = 0.5
"""What remains of the velocity per token at the beginning of training."""
HEADROOM = 8.0
"""How far a gate may open beyond the stable rate, at which it begins: a token that matters may be written at once."""
BARE_HEADROOM = 1.0
"""The same where no norm bounds what the memory says: a chunk of one repeated key must not overshoot, whatever is kept.
Such a gate begins half open, as DeltaNet's does."""
UNIT_EPSILON = 1e-6

Tail = Tensor | tuple[()]
"""What a convolution carries; nothing where there is none."""


Ablation = Literal["off", "frozen"]
"""Nothing is read, or nothing is written."""


class Observation(NamedTuple):
    """What went through a memory in one call: [batch, heads, time, head_dim], gates [batch, heads, time].

    Reads are as made, whatever an ablation then does with them; those of a standing memory are not among them.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: Gates
    reads: Tensor
    before: MemoryState
    after: MemoryState


class NeuralState(NamedTuple):
    """What a neural memory carries."""

    tail: Tail  # [batch, conv - 1, 3 × dim]
    memory: MemoryState


class NeuralMemory(nn.Module):
    """One memory per head, written with keys and values and read with queries, all made of the same input."""

    def __init__(self, dim: int, heads: int, spec: MemorySpec, *, conv: int = 4, decay: bool = True) -> None:
        """`conv` is the width of the convolution, 0 or 1 being none; without `decay` nothing is forgotten."""
        super().__init__()
        self.dim, self.heads, self.spec, self.decay = dim, heads, spec, decay
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.conv = ShortConvolution(3 * dim, conv) if conv > 1 else None
        present = {"keep": decay, "rate": True, "momentum": spec.has_momentum, "threshold": spec.bias == "huber"}
        self.gate_names = tuple(name for name, there in present.items() if there)
        self.gates = nn.Linear(dim, heads * len(self.gate_names))
        self.weights = nn.ParameterList(draw_weights(spec, heads, self.head_dim))
        first_gain = self.head_dim**-0.5
        self.gain = nn.Parameter(torch.full((dim,), first_gain)) if spec.norm else None
        self.shift = nn.Parameter(torch.zeros(dim)) if spec.norm else None
        momentum = MOMENTUM if spec.has_momentum else 0.0
        self.headroom = HEADROOM if spec.norm else BARE_HEADROOM
        self.largest_rate = self.headroom * stable_rate(spec, self.head_dim, first_gain, momentum)
        self.ablation: Ablation | None = None
        self.observer: Callable[[Observation], None] | None = None

    def step(
        self, x: Tensor, state: NeuralState | None, position: int | None = None, norm: nn.RMSNorm | None = None
    ) -> tuple[Tensor, NeuralState]:
        """What each token reads, [batch, time, heads, head_dim], and the state after the last of them.

        None starts a sequence; `position` is where all samples stand, if that is known. A norm is put on what each head
        reads, in the same kernel where a single token has one.
        """
        if state is None:
            state, position = self.initial_state(x.shape[0]), 0
        qkv = self.qkv(x)
        if self.makes_all(qkv, state):
            brought = self.bringing(qkv, x, state.tail, norm)
            reads, memory = memory_token.run_of(brought, state.memory, self.spec, self.outer)
            return self.heard(reads), NeuralState(state.tail, memory)
        queries, keys, values, tail = never_kept(self.rows, qkv, state.tail, state.memory.position)
        del qkv  # which is as large as the three
        gates = self.gate_values(x)
        reads, memory = stream(queries, keys, values, gates, state.memory, self.spec, self.outer, position)
        if self.observer is not None:
            self.observer(Observation(queries, keys, values, gates, reads, state.memory, memory))
        said = self.heard(reads)
        return said if norm is None else normed(norm, said), NeuralState(tail, memory)

    def makes_all(self, qkv: Tensor, state: NeuralState) -> bool:
        """Whether our kernel takes a single token from its projections on, and writes over the state."""
        # Memories of another kind make their rows otherwise, what is frozen has other gates, and rows may be observed.
        usual = type(self).rows is NeuralMemory.rows and self.ablation != "frozen" and self.observer is None
        rows = qkv.shape[0] * self.heads
        return usual and self.in_place(qkv) and memory_token.makes(rows, state.memory.weights, self.spec)

    def bringing(self, qkv: Tensor, x: Tensor, tail: Tail, norm: nn.RMSNorm | None) -> Projected:
        """What that kernel is given of a token."""
        assert self.conv is not None
        assert isinstance(tail, Tensor)
        assert norm is None or norm.eps is not None
        return Projected(
            qkv[:, 0].contiguous(),
            self.conv.weight[:, 0],
            tail,
            x[:, 0].contiguous(),
            self.gates.weight,
            self.gates.bias,
            UNIT_EPSILON,
            self.decay,
            "threshold" in self.gate_names,
            self.largest_rate,
            *((None, 0.0) if norm is None else (norm.weight, norm.eps)),
        )

    def rows(self, qkv: Tensor, tail: Tail, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tail]:
        """Queries, keys and values [batch, heads, time, head_dim] from their projections, whatever the position."""
        lengths = [1.0, 1.0, 0.0]
        if self.in_place(qkv):
            queries, keys, values = self.made_in_place(qkv, tail, lengths)
            return queries, keys, values, tail
        if self.by_kernel(qkv):
            queries, keys, values, after = self.made_at_once(qkv, tail, lengths)
            return queries, keys, values, after
        mixed, tail = self.convolved(qkv, tail)
        # Apart before they are activated: adjoints are joined where a convolution takes them, and there alone.
        queries, keys, values = map(F.silu, mixed.unflatten(-1, (3, self.heads, self.head_dim)).unbind(2))
        return heads_first(unit(queries)), heads_first(unit(keys)), heads_first(values), tail

    def asking(self, x: Tensor, tail: Tail) -> tuple[Tensor, Tail]:
        """Queries alone, [batch, heads, time, head_dim]; the tail is theirs."""
        return never_kept(self.asked, x, tail)

    def asked(self, x: Tensor, tail: Tail) -> tuple[Tensor, Tail]:
        return self.query_rows(F.linear(x, self.qkv.weight[: self.dim]), tail)

    def query_rows(self, projected: Tensor, tail: Tail) -> tuple[Tensor, Tail]:
        if self.in_place(projected):
            (queries,) = self.made_in_place(projected, tail, [1.0])
            return queries, tail
        if self.by_kernel(projected):
            queries, after = self.made_at_once(projected, tail, [1.0])
            return queries, after
        mixed, tail = self.convolved(projected, tail)
        return heads_first(unit(F.silu(mixed).unflatten(-1, (self.heads, self.head_dim)))), tail

    def by_kernel(self, projected: Tensor) -> bool:
        return self.conv is not None and choice.takes(projected, self.head_dim, self.conv.width)

    def made_at_once(self, projected: Tensor, tail: Tail, lengths: list[float]) -> tuple[Tensor, ...]:
        """By our kernel: of each part its rows [batch, heads, time, head_dim], of these lengths, then the tail."""
        # Triton is needed where it is used alone.
        from lockstep.kernels.rows.operator import rows

        assert self.conv is not None
        assert isinstance(tail, Tensor)
        weight = self.conv.weight[:, 0, : projected.shape[-1]]
        made, after = rows(projected, weight, tail, None, [self.heads] * len(lengths), lengths, UNIT_EPSILON, False)
        return *(x.unflatten(0, (-1, self.heads)) for x in made), after

    def in_place(self, projected: Tensor) -> bool:
        """Whether there is one token, and our kernel may write over the tail."""
        return self.conv is not None and is_given_up() and token.takes(projected, self.head_dim, self.conv.width)

    def made_in_place(self, projected: Tensor, tail: Tail, lengths: list[float]) -> list[Tensor]:
        """By that kernel: of each part rows [batch, heads, 1, head_dim]."""
        assert self.conv is not None
        assert isinstance(tail, Tensor)
        weight = self.conv.weight[:, 0, : projected.shape[-1]]
        return token.run(projected, weight, tail, None, [self.heads] * len(lengths), lengths, UNIT_EPSILON)

    def recall(self, queries: Tensor, held: Weights) -> Tensor:
        """What a memory that stands still says to queries, [batch, time, heads, head_dim]."""
        return self.heard(recollect(queries, held, self.spec, self.outer))

    def recall_over(
        self, x: Tensor, tail: Tensor, standing: Weights, held: Weights, position: Tensor, segment: int
    ) -> Tensor:
        """The same to one token of each sample, [batch, 1, dim], by our kernel: `asking` and `recall` in one.

        The tail is written over and, where a segment begins, what stands by what is held. Samples have seen `position`
        [batch] tokens before this one.
        """
        assert self.conv is not None
        projected = F.linear(x, self.qkv.weight[: self.dim]).view(-1, self.heads, self.head_dim)
        asking = projected, self.conv.weight[:, 0, : self.dim], tail, UNIT_EPSILON
        return self.heard(memory_token.recall_over(asking, standing, held, (position, segment), self.spec, self.outer))

    def recalls_over(self, projected: Tensor, standing: Weights) -> bool:
        """Whether that kernel should, of projections like these."""
        return self.in_place(projected) and memory_token.knows(standing, self.spec)

    def heard(self, reads: Tensor) -> Tensor:
        """Reads [batch, heads, time, head_dim] as mixers take them, [batch, time, heads, head_dim]; or silence."""
        if self.ablation == "off":
            reads = torch.zeros_like(reads)
        return reads.transpose(1, 2)

    def convolved(self, x: Tensor, tail: Tail) -> tuple[Tensor, Tail]:
        if self.conv is None:
            return x, tail
        y, after = self.conv(x, tail)
        return y, after

    def gate_values(self, x: Tensor) -> Gates:
        """Every gate is bounded for any input: keep and momentum by 1, the rate by its headroom."""
        logits = self.gates(x).to(arithmetic(x.dtype)).unflatten(-1, (-1, self.heads)).permute(2, 0, 3, 1)
        found = dict(zip(self.gate_names, logits.unbind(), strict=True))
        rate = self.largest_rate * found["rate"].sigmoid()
        keep = found["keep"].sigmoid() if self.decay else torch.ones_like(rate)
        momentum = found["momentum"].sigmoid() if "momentum" in found else None
        threshold = F.softplus(found["threshold"]) if "threshold" in found else None
        if self.ablation == "frozen":
            keep, rate = torch.ones_like(keep), torch.zeros_like(rate)
            momentum = None if momentum is None else torch.zeros_like(momentum)
        return Gates(keep, rate, momentum, threshold)

    @property
    def outer(self) -> Outer:
        gain, shift = (None if x is None else x.view(self.heads, -1) for x in (self.gain, self.shift))
        return Outer(gain, shift, tuple(self.weights))

    def initial_state(self, batch: int) -> NeuralState:
        return NeuralState(self.initial_tail(batch, 3 * self.dim), begin(self.initial_memory(batch)))

    def initial_memory(self, batch: int) -> Memory:
        exactly = arithmetic(self.qkv.weight.dtype)
        # Cloned: a state that is written into must not write into the model.
        weights = tuple(matrix.to(exactly).expand(batch, *matrix.shape).clone() for matrix in self.weights)
        velocity = tuple(torch.zeros_like(matrix) for matrix in weights) if self.spec.has_momentum else None
        return Memory(weights, velocity)

    def initial_tail(self, batch: int, channels: int) -> Tail:
        return () if self.conv is None else self.conv.initial_tail(batch, channels)

    @torch.no_grad()
    def initialise(self) -> None:
        """Gates that begin at a stable rate, half momentum, and horizons spread over the heads."""
        if self.conv is not None:
            self.conv.initialise()
        share = torch.linspace(0, 1, self.heads) if self.heads > 1 else torch.full((1,), 0.5)
        horizon = SHORTEST * (LONGEST / SHORTEST) ** share
        first = {
            "keep": (horizon - 1).log(),
            "rate": torch.full((self.heads,), -math.log(self.headroom / min(1.0, self.headroom / 2) - 1)),
            "momentum": torch.full((self.heads,), math.log(MOMENTUM / (1 - MOMENTUM))),
            "threshold": torch.full((self.heads,), math.log(math.e - 1)),
        }
        self.gates.bias.copy_(torch.cat([first[name] for name in self.gate_names]))

    def cost(self, length: int, at_once: int | None = None) -> Cost:
        """At this length, run through in pieces of `at_once` tokens."""
        whole, rest = divmod(length, at_once or length)
        runs = [self.run_flops(tokens) for tokens in [at_once or length] * whole + [rest] * (rest > 0)]
        share = self.heads / length
        forward = share * sum(run.forward for run in runs)
        projections = product_flops(*self.qkv.weight.shape) + product_flops(*self.gates.weight.shape)
        held = self.held_bytes(3 if self.spec.has_momentum else 2)
        return Cost(
            forward_flops=projections + forward,
            training_extra=share * sum(run.extra for run in runs),
            decoding_extra=self.heads * token_flops([matrix.shape[1:] for matrix in self.weights]) - forward,
            state_bytes=self.tail_bytes(3 * self.dim) + held + POSITION_BYTES,
        )

    def run_flops(self, tokens: int) -> Flops:
        return memory_flops(self.spec, [matrix.shape[1:] for matrix in self.weights], tokens, self.decay)

    def recall_flops(self) -> float:
        """Per token, of the matrices alone."""
        return 2.0 * self.held_numbers

    def tail_bytes(self, channels: int) -> int:
        return 0 if self.conv is None else (self.conv.width - 1) * channels * self.qkv.weight.element_size()

    def held_bytes(self, copies: int) -> int:
        """Copies of the memory, as held between tokens."""
        return copies * self.held_numbers * arithmetic(self.qkv.weight.dtype).itemsize

    @property
    def held_numbers(self) -> int:
        return sum(matrix.numel() for matrix in self.weights)


def unit(x: Tensor) -> Tensor:
    """Rows of norm one, in the precision they came in; an empty row stays empty."""
    exact = x.to(arithmetic(x.dtype))
    return (exact * (exact.square().sum(dim=-1, keepdim=True) + UNIT_EPSILON).rsqrt()).to(x.dtype)


def heads_first(x: Tensor) -> Tensor:
    """[batch, time, heads, dim] to [batch, heads, time, dim] in one piece, as memories take it; they would copy it."""
    return x.transpose(1, 2).contiguous()


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Normalised in the norm's own precision, which autocast would lower."""
    y: Tensor = norm(x.to(norm.weight.dtype))
    return y


def per_head(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """[batch, time, dim] from [batch, time, heads, head_dim], each head normalised on its own."""
    return normed(norm, x).flatten(-2)
