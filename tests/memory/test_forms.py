"""The dual form is the definition: reads, memory and every gradient, over the whole grid of choices."""

from __future__ import annotations

import pytest

from lockstep.memory import MemorySpec, memorize
from tests.memory.cases import (
    POINTS,
    Anchor,
    Case,
    Fields,
    Named,
    assert_close,
    draw_case,
    gradients,
    outcome,
    point,
)

STRUCTURES: dict[str, Fields] = {
    "linear": {"structure": "linear"},
    "linear,residual,norm": {"structure": "linear", "residual": True, "norm": True},
    "mlp1": {"depth": 1},
    "mlp2": {"depth": 2},
    "mlp2,residual,silu": {"depth": 2, "residual": True, "activation": "silu"},
    "mlp2,norm": {"depth": 2, "norm": True},
    "mlp2,residual,norm": {"depth": 2, "residual": True, "norm": True},
    "mlp3,relu": {"depth": 3, "activation": "relu"},
    "mlp3,residual,norm,silu": {"depth": 3, "residual": True, "norm": True, "activation": "silu"},
}
BIASES: dict[str, Fields] = {
    "l2": {"bias": "l2"},
    "l3": {"bias": "lp", "p": 3},
    "l2.5": {"bias": "lp", "p": 2.5},
    "l1.5": {"bias": "lp", "p": 1.5},
    "l1": {"bias": "lp", "p": 1},
    "huber-norm": {"bias": "huber", "huber_form": "norm"},
    "huber-coordinate": {"bias": "huber", "huber_form": "coordinate"},
    "huber-switch": {"bias": "huber", "huber_form": "switch"},
    "dot": {"bias": "dot"},
}
RULES: dict[str, Fields] = {
    "descent": {"rule": "gradient-descent"},
    "descent-to-initial": {"rule": "gradient-descent", "decay_to": "initial"},
    "momentum": {"rule": "momentum"},
    "momentum-to-initial": {"rule": "momentum", "decay_to": "initial"},
    "lq4": {"rule": "gradient-descent", "retention": "lq", "q": 4},
    "lq3": {"rule": "gradient-descent", "retention": "lq", "q": 3},
    "kl": {"rule": "gradient-descent", "retention": "kl"},
    "kl-to-initial": {"rule": "gradient-descent", "retention": "kl", "decay_to": "initial", "simplex": 2.0},
}
"""Retentions and rules together: momentum is legal with l2 alone."""
CLIPPED_BEFORE: Fields = {"read": "before", "clip": 0.5}


def require_same(case: Case) -> None:
    """The two forms give the same outcome and the same gradients with respect to every input."""
    inputs = case.tracked().inputs()
    found: list[Named] = []
    for form in ("chunked", "sequential"):
        result = outcome(*case.run(form))
        found.append({**result, **gradients(result, inputs)})
    chunked, sequential = found
    assert_close(chunked, sequential)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("structure", STRUCTURES)
class TestEveryPoint:
    """The full cross product, in few dimensions; exact zeros stand in every gate unless said otherwise."""

    def test_a_gradient_at_every_token(self, structure: str, bias: str, rule: str) -> None:
        spec = MemorySpec(**STRUCTURES[structure], **BIASES[bias], **RULES[rule], chunk=1)
        require_same(draw_case(spec, length=5, zeros=True))

    def test_chunks(self, structure: str, bias: str, rule: str) -> None:
        spec = MemorySpec(**STRUCTURES[structure], **BIASES[bias], **RULES[rule], chunk=4)
        require_same(draw_case(spec, length=10, zeros=True))

    def test_chunks_clipped_and_read_before(self, structure: str, bias: str, rule: str) -> None:
        spec = MemorySpec(**STRUCTURES[structure], **BIASES[bias], **RULES[rule], **CLIPPED_BEFORE, chunk=4)
        require_same(draw_case(spec, length=6))


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("options", [{}, CLIPPED_BEFORE], ids=["after", "before,clipped"])
@pytest.mark.parametrize(("chunk", "length"), [(1, 1), (1, 7), (4, 3), (4, 8), (16, 7), (16, 37)])
@pytest.mark.parametrize("name", POINTS)
def test_lengths_of_any_kind(name: str, chunk: int, length: int, options: Fields, zeros: bool) -> None:
    """Shorter than a chunk, whole chunks, and some tokens over."""
    require_same(draw_case(point(name, chunk=chunk, **options), length, batch=1, heads=2, zeros=zeros))


@pytest.mark.parametrize("length", [40, 70, 131])
@pytest.mark.parametrize("name", POINTS)
def test_long_chunks(name: str, length: int) -> None:
    require_same(draw_case(point(name, chunk=64), length, batch=1, heads=2, zeros=length == 70))


@pytest.mark.parametrize("length", [1, 5, 13])
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("decay_to", ["zero", "initial"])
@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("name", ["linear attention", "delta rule", "linear Titans"])
def test_tiles_where_the_rule_is_exact(name: str, residual: bool, decay_to: str, read: str, length: int) -> None:
    """A gradient at every token, five tokens at once."""
    spec = point(name, chunk=1, tile=5, residual=residual, read=read, decay_to=decay_to)
    assert spec.exact
    require_same(draw_case(spec, length, zeros=True))


@pytest.mark.parametrize("anchor", ["heads", "samples", "memory"])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", ["linear Titans", "Titans", "Yaad", "Moneta", "Memora"])
def test_wherever_forgetting_leads(name: str, chunk: int, anchor: Anchor) -> None:
    require_same(draw_case(point(name, chunk=chunk, decay_to="initial"), length=6, anchor=anchor))


@pytest.mark.parametrize("structure", ["linear", "mlp2", "mlp2,residual,norm"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_memory_emptied_altogether(structure: str, rule: str, chunk: int) -> None:
    """Nothing kept and nothing written at one token: weights of exactly zero, which a quotient would not survive."""
    case = draw_case(MemorySpec(**STRUCTURES[structure], **RULES[rule], chunk=chunk), length=9)
    for gate in (case.gates.keep, case.gates.rate, case.gates.momentum):
        if gate is not None:
            gate[:, :, 6] = 0.0
    if "lq" in rule:
        assert_close(outcome(*case.run("chunked")), outcome(*case.run("sequential")))
    else:
        require_same(case)


def test_chunked_is_the_default() -> None:
    case = draw_case(point("Titans", chunk=4), length=6)
    reads, memory = memorize(*case[1:6], case.spec)
    assert_close(outcome(reads, memory), outcome(*case.run("chunked")), tolerance=0)
