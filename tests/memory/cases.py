"""Random memories and what is written into them: every input drawn, in float64, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lockstep.memory import Form, Gates, Memory, MemorySpec, Outer, memorize

Fields = Mapping[str, Any]
"""Fields of a `MemorySpec`."""
Named = dict[str, Tensor]

SQUARE: Fields = {"structure": "mlp", "depth": 2, "residual": True, "norm": True}
"""The structure of MIRAS's models."""
DESCENT: Fields = {"rule": "gradient-descent"}

POINTS: dict[str, Fields] = {
    "linear attention": {**DESCENT, "structure": "linear", "bias": "dot"},
    "delta rule": {**DESCENT, "structure": "linear"},
    "linear Titans": {"structure": "linear"},
    "TTT": {**DESCENT, "structure": "linear", "residual": True, "norm": True},
    "Titans": {"structure": "mlp"},
    "anchored Titans": {**SQUARE, "decay_to": "initial", "clip": 0.5},
    "Yaad": {**SQUARE, **DESCENT, "bias": "huber", "huber_form": "switch"},
    "Moneta": {**SQUARE, **DESCENT, "bias": "lp", "p": 3, "retention": "lq", "q": 4},
    "Memora": {**SQUARE, **DESCENT, "retention": "kl"},
}
"""Points of the grid that have a name, or stand for a whole region of it."""


def point(name: str, **changes: Any) -> MemorySpec:
    """A named point, some of its fields changed."""
    return MemorySpec(**{**POINTS[name], **changes})


class Case(NamedTuple):
    """All that `memorize` is given."""

    spec: MemorySpec
    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: Gates
    memory: Memory
    outer: Outer

    def run(self, form: Form = "chunked") -> tuple[Tensor, Memory]:
        return memorize(
            self.queries, self.keys, self.values, self.gates, self.memory, self.spec, form=form, outer=self.outer
        )

    def inputs(self) -> Named:
        """Every tensor that goes in, by name."""
        tokens = {"queries": self.queries, "keys": self.keys, "values": self.values}
        gates = {f"gates.{name}": gate for name, gate in self.gates._asdict().items()}
        norm = {"outer.gain": self.outer.gain, "outer.shift": self.outer.shift}
        found = {**tokens, **gates, **norm, **numbered("outer.initial", self.outer.initial), **held(self.memory)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def with_spec(self, **changes: Any) -> Case:
        """The same tensors under another specification."""
        return self._replace(spec=MemorySpec(**{**self.spec.model_dump(), **changes}))

    def tracked(self) -> Case:
        """The same case, gradients asked for."""
        for tensor in self.inputs().values():
            tensor.requires_grad_()
        return self

    def between(self, start: int, stop: int) -> Case:
        """Some of its tokens."""

        def cut(x: Tensor) -> Tensor:
            return x[:, :, start:stop]

        queries, keys, values = map(cut, (self.queries, self.keys, self.values))
        return self._replace(queries=queries, keys=keys, values=values, gates=each_gate(cut, self.gates))


def each_gate(function: Callable[..., Tensor], *gates: Gates) -> Gates:
    """Apply `function` to the corresponding gates that are there."""
    first = gates[0]
    present = [name for name, gate in first._asdict().items() if gate is not None]
    return first._replace(**{name: function(*(getattr(one, name) for one in gates)) for name in present})


def numbered(name: str, matrices: tuple[Tensor, ...] | None) -> Named:
    return {f"{name}.{number}": matrix for number, matrix in enumerate(matrices or ())}


def held(memory: Memory) -> Named:
    """The tensors of a memory by name."""
    return {**numbered("weights", memory.weights), **numbered("velocity", memory.velocity)}


def outcome(reads: Tensor, memory: Memory) -> Named:
    """What comes out of `memorize`, by name."""
    return {"reads": reads, **held(memory)}


def gradients(of: Named, to: Named) -> Named:
    """Of a fixed random sum over all that came out, with respect to all that went in."""
    draw = torch.Generator().manual_seed(5)
    parts = [(x * torch.randn(x.shape, generator=draw, dtype=x.dtype)).sum() for x in of.values()]
    total = torch.stack(parts).sum()
    found = torch.autograd.grad(total, list(to.values()), allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": gradient for name, gradient in zip(to, found, strict=True)}


def assert_close(actual: Named, expected: Named, tolerance: float = 1e-10) -> None:
    """Everything finite, and equal within the tolerance of a tensor's largest number, or of one where that is larger.

    Not of each number by itself: those that nearly cancel carry the rounding of their large neighbours.
    """
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        assert actual[name].shape == wanted.shape, name
        assert actual[name].dtype == wanted.dtype, name
        assert wanted.isfinite().all(), f"{name} is not finite"
        distance = ((actual[name] - wanted).abs().amax() / wanted.abs().amax().clamp_min(1)).item()
        assert distance <= tolerance, f"{name} differs by {distance:.1e}"


Anchor = Literal["heads", "samples", "memory"]
"""Where forgetting leads: to weights common to all samples, to those of each, or to the memory as it was given."""


def draw_case(
    spec: MemorySpec,
    length: int,
    *,
    seed: int = 0,
    batch: int = 2,
    heads: int = 3,
    width: int = 3,
    zeros: bool = False,
    anchor: Anchor = "heads",
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Keys `width` wide; values wider by one unless a residual forbids it, hidden layers by two. Rates are such that
    a chunk's writes stay stable; `zeros` plants exact zeros in every gate, though never in keep and rate at once, which
    would leave an empty memory.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=draw, dtype=torch.float64) * scale).to(dtype)

    def uniform() -> Tensor:
        return torch.rand(batch, heads, length, generator=draw, dtype=torch.float64)

    chance = uniform()
    forgotten = chance < 0.15
    if spec.retention == "lq":  # its weights are inverse to what it holds: an emptied memory is huge at the next chunk
        forgotten[..., :-1] = False

    def gate(low: float, high: float, dropped: Tensor) -> Tensor:
        drawn = uniform() * (high - low) + low
        return (drawn.masked_fill(dropped, 0.0) if zeros else drawn).to(dtype)

    said = width if spec.residual else width + 1
    widths = [width, *[width + 2] * (spec.layers - 1), said]

    def matrices(*leading: int, scale: float) -> tuple[Tensor, ...]:
        return tuple(normal(*leading, *pair, scale=scale) for pair in pairwise(widths))

    fastest = min(0.1, 0.5 / spec.chunk)
    gates = Gates(
        keep=gate(0.8, 1.0, forgotten),
        rate=gate(fastest / 2, fastest, chance > 0.85),
        momentum=gate(0.0, 0.8, uniform() < 0.15) if spec.has_momentum else None,
        threshold=gate(0.3, 1.5, uniform() < 0.15) if spec.bias == "huber" else None,
    )
    velocity = matrices(batch, heads, scale=0.1) if spec.has_momentum else None
    leading = {"heads": (heads,), "samples": (batch, heads), "memory": ()}[anchor]
    own = spec.decay_to == "initial" and anchor != "memory"
    return Case(
        spec=spec,
        queries=normal(batch, heads, length, width, scale=width**-0.5),
        keys=normal(batch, heads, length, width, scale=width**-0.5),
        values=normal(batch, heads, length, said),
        gates=gates,
        memory=Memory(matrices(batch, heads, scale=0.6), velocity),
        outer=Outer(
            gain=normal(heads, said) if spec.norm else None,
            shift=normal(heads, said) if spec.norm else None,
            initial=matrices(*leading, scale=0.6) if own else None,
        ),
    )
