"""Memories for the kernels: as a model makes them when its training begins, and harsher ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.memory import Form, Gates, Memory, MemorySpec, Outer, begin, stream
from lockstep.memory.kernel import unshifted
from lockstep.memory.streaming import recollect
from lockstep.memory.types import Weights
from lockstep.models.mixers.neural_memory import NeuralMemory, Observation
from tests.memory.cases import Case, Named, each_gate, outcome

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Size(NamedTuple):
    """Of a memory: heads `width` wide, `hidden` units, `chunk` tokens."""

    width: int
    hidden: int
    chunk: int
    batch: int = 2
    heads: int = 2


def as_a_model_draws(spec: MemorySpec, size: Size, length: int, seed: int = 0) -> Case:
    """What a layer hands to its memory at first, some chunks into a text; of float32.

    Thresholds are lowered to where errors are, and the norm's map is shaken, which begins as a constant.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        spec = MemorySpec(**{**spec.model_dump(), "expansion": size.hidden // size.width, "chunk": size.chunk})
        layer = NeuralMemory(size.width * size.heads, size.heads, spec)
        layer.initialise()
        seen: list[Observation] = []
        layer.observer = seen.append
        with torch.no_grad():
            _, state = layer.step(torch.randn(size.batch, 3 * size.chunk, layer.dim), None)
            layer.step(torch.randn(size.batch, length, layer.dim), state)
            gain, shift, initial = layer.outer
            if gain is not None and shift is not None:
                gain = gain * (1 + 0.3 * torch.randn(gain.shape))
                shift = gain.abs().mean() * 0.3 * torch.randn(shift.shape)
    found = seen[-1]
    errors = found.values.norm(dim=-1).median()
    threshold = None if found.gates.threshold is None else found.gates.threshold * errors
    memory = Memory(found.before.weights, found.before.velocity or None)
    anchor = initial if spec.decay_to == "initial" else None
    gates = found.gates._replace(threshold=threshold)
    return each_tensor(
        lambda x: x.detach().clone(),
        Case(spec, found.queries, found.keys, found.values, gates, memory, Outer(gain, shift, anchor)),
    )


def harsh(spec: MemorySpec, size: Size, length: int, seed: int = 0, anchor_of_samples: bool = False) -> Case:
    """Keys of any length, high rates, everything forgotten now and then, exact zeros in every gate; of float32."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=draw) * scale

    leading = size.batch, size.heads
    rows = (*leading, length)

    def matrices(*front: int, scale: float) -> Weights:
        first, second = normal(*front, size.width, size.hidden), normal(*front, size.hidden, size.width)
        return first * scale, second * scale * size.hidden**-0.5

    def holed(gate: Tensor) -> Tensor:
        return gate.masked_fill(torch.rand(gate.shape, generator=draw) < 0.08, 0.0)

    gates = Gates(
        keep=holed((2 * normal(*rows) + 2).sigmoid()),
        rate=holed((2 * normal(*rows)).sigmoid() / size.chunk),
        momentum=holed((2 * normal(*rows)).sigmoid()) if spec.has_momentum else None,
        threshold=F.softplus(normal(*rows)) * 2 if spec.bias == "huber" else None,
    )
    if gates.threshold is not None and spec.huber_form != "coordinate":  # whose corners meet at a threshold of zero
        gates = gates._replace(threshold=holed(gates.threshold))
    anchored = spec.decay_to == "initial"
    return Case(
        spec=MemorySpec(**{**spec.model_dump(), "chunk": size.chunk}),
        queries=normal(*rows, size.width, scale=1.2 * size.width**-0.5),
        keys=normal(*rows, size.width, scale=1.2 * size.width**-0.5),
        values=normal(*rows, size.width),
        gates=gates,
        memory=Memory(matrices(*leading, scale=1.0), matrices(*leading, scale=0.1) if spec.has_momentum else None),
        outer=Outer(
            gain=1 + normal(size.heads, size.width, scale=0.3) if spec.norm else None,
            shift=normal(size.heads, size.width, scale=0.3) if spec.norm else None,
            initial=matrices(*(leading if anchor_of_samples else leading[1:]), scale=1.0) if anchored else None,
        ),
    )


def away_from_turns(case: Case, gap: float = 0.03) -> Case:
    """Values and thresholds moved where the loss "switch" turns: where an error is nearly zero, and at the threshold.

    Errors that are smaller than a thousandth have second derivatives a thousand times as large as others': to change
    values in the last of their 32 bits is then to change gradients in the third digit, and no arithmetic is to blame.
    """
    exact, pieces = each_tensor(Tensor.double, case), []
    state = begin(exact.memory)
    for start in range(0, case.keys.shape[2], case.spec.chunk):
        piece = exact.between(start, start + case.spec.chunk)
        assert piece.gates.threshold is not None
        said = recollect(piece.keys, state.weights, case.spec, exact.outer)
        values = kept_apart(piece.values, said, gap)
        threshold = kept_apart(piece.gates.threshold, (said - values).norm(dim=-1), gap)
        piece = piece._replace(values=values, gates=piece.gates._replace(threshold=threshold))
        _, state = stream(*piece[1:5], state, case.spec, exact.outer, position=start)
        pieces.append(piece)
    threshold = torch.cat([piece.gates.threshold for piece in pieces if piece.gates.threshold is not None], dim=2)
    values = torch.cat([piece.values for piece in pieces], dim=2)
    return case._replace(values=values.to(case.values), gates=case.gates._replace(threshold=threshold.to(case.values)))


def kept_apart(x: Tensor, fixed: Tensor, gap: float) -> Tensor:
    """x, moved to this distance where it is nearer."""
    away = x - fixed
    return torch.where(away.abs() < gap, fixed + torch.where(away < 0, -gap, gap), x)


def each_tensor(function: Callable[[Tensor], Tensor], case: Case) -> Case:
    """A case with a function applied to every tensor of it."""

    def all_of(weights: Weights | None) -> Weights | None:
        return None if weights is None else tuple(map(function, weights))

    gain, shift, initial = case.outer
    return Case(
        spec=case.spec,
        queries=function(case.queries),
        keys=function(case.keys),
        values=function(case.values),
        gates=each_gate(function, case.gates),
        memory=Memory(tuple(map(function, case.memory.weights)), all_of(case.memory.velocity)),
        outer=Outer(
            gain=None if gain is None else function(gain),
            shift=None if shift is None else function(shift),
            initial=all_of(initial),
        ),
    )


def in_precision(case: Case, dtype: torch.dtype) -> Case:
    """Tokens of this precision, and the anchor rounded to it: it is an operand of products. All else stays float32."""
    initial = case.outer.initial
    rounded = None if initial is None else tuple(matrix.to(dtype).float() for matrix in initial)
    queries, keys, values = (x.to(dtype) for x in (case.queries, case.keys, case.values))
    return case._replace(queries=queries, keys=keys, values=values, outer=case.outer._replace(initial=rounded))


def everything(case: Case, form: Form) -> Named:
    """What comes out, and the gradients of all that went in, in double precision.

    Adjoints are drawn, the same for every precision. A memory's weigh less than reads', as in a model, where it is the
    reads that count.
    """
    case = each_tensor(torch.clone, case).tracked()
    reads, last = case.run(form)
    found, given = outcome(reads, last._replace(weights=unshifted(last.weights, case.spec))), case.inputs()
    draw = torch.Generator().manual_seed(5)
    adjoints = []
    for name, x in found.items():
        drawn = torch.randn(x.shape, generator=draw) * (1.0 if name == "reads" else 0.1)
        adjoints.append(drawn.bfloat16().to(x))
    gradients = torch.autograd.grad(list(found.values()), list(given.values()), adjoints)
    named = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {**found, **named}.items()}


def errors(found: Named, exact: Named) -> dict[str, float]:
    """Of each tensor, in its norm."""
    assert found.keys() == exact.keys()
    assert all(x.isfinite().all() and x.norm() > 0 for x in exact.values())
    return {name: float((found[name] - x).norm() / x.norm()) for name, x in exact.items()}
