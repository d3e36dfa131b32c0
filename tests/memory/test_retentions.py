"""How what is held becomes weights: on the simplex for kl, by an inverted scale for lq."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.memory import Memory, MemorySpec
from lockstep.memory.retentions import Retained
from tests.memory.cases import DESCENT, assert_close, draw_case, outcome, point


def spec_of(retention: str, **fields: Any) -> MemorySpec:
    return MemorySpec(**{**DESCENT, "retention": retention, **fields})


def matrix(seed: int = 0, scale: float = 1.0) -> Tensor:
    """[2, 3, 5], what two memories hold."""
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@pytest.mark.parametrize(
    "spec", [spec_of("l2"), spec_of("lq"), spec_of("lq", q=3), spec_of("kl")], ids=lambda s: s.retention
)
def test_a_chunk_starts_at_its_weights(spec: MemorySpec) -> None:
    """The line that stands for the retention inside a chunk passes through the retention itself at the start."""
    held = matrix()
    retained = Retained(held, spec)
    torch.testing.assert_close(retained.at(held), retained.weights, rtol=1e-14, atol=1e-15)


def test_l2_holds_the_weights() -> None:
    held, later = matrix(), matrix(1)
    retained = Retained(held, spec_of("l2"))
    assert torch.equal(retained.weights, held)
    assert torch.equal(retained.at(later), later)


# --- kl


on_a_simplex = pytest.mark.parametrize("simplex", [1.0, 2.5])


@on_a_simplex
def test_kl_is_a_softmax_of_each_row(simplex: float) -> None:
    retained = Retained(matrix(), spec_of("kl", simplex=simplex))
    torch.testing.assert_close(retained.weights, simplex * matrix().softmax(dim=-1))


def test_rows_of_kl_sum_to_one() -> None:
    """Unless asked otherwise."""
    torch.testing.assert_close(Retained(matrix(), spec_of("kl")).weights.sum(dim=-1), torch.ones(2, 3).double())


@on_a_simplex
def test_rows_of_kl_keep_their_sum_inside_the_chunk(simplex: float) -> None:
    retained = Retained(matrix(), spec_of("kl", simplex=simplex))
    for weights in (retained.weights, retained.at(matrix(1)), retained.at(matrix(2, scale=10.0))):
        torch.testing.assert_close(weights.sum(dim=-1), torch.full((2, 3), simplex, dtype=torch.float64))


@pytest.mark.parametrize("form", ["sequential", "chunked"])
@on_a_simplex
@pytest.mark.parametrize("decay_to", ["zero", "initial"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_rows_of_kl_keep_their_sum_at_every_token(chunk: int, decay_to: str, simplex: float, form: Any) -> None:
    """Seen from outside: a linear memory's answer to a query is a sum of its rows."""
    case = draw_case(spec_of("kl", structure="linear", chunk=chunk, decay_to=decay_to, simplex=simplex), length=11)
    reads, _ = case.run(form)
    torch.testing.assert_close(reads.sum(dim=-1), simplex * case.queries.sum(dim=-1))


@pytest.mark.parametrize("form", ["sequential", "chunked"])
@pytest.mark.parametrize("decay_to", ["zero", "initial"])
def test_a_shifted_row_says_the_same(decay_to: str, form: Any) -> None:
    """log W is held up to a number per row."""
    case = draw_case(point("Memora", chunk=4, decay_to=decay_to), length=11)
    shifted = tuple(held + 3.0 * held[..., :1].detach() for held in case.memory.weights)
    reads, memory = case.run(form)
    other_reads, other = case._replace(memory=Memory(shifted)).run(form)
    assert_close({"reads": other_reads}, {"reads": reads}, 1e-12)
    for one, same in zip(memory.weights, other.weights, strict=True):
        torch.testing.assert_close(one.softmax(dim=-1), same.softmax(dim=-1))


@on_a_simplex
def test_kl_follows_the_softmax_at_the_uniform_distribution(simplex: float) -> None:
    held = torch.full((1, 1, 5), 0.7, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda row: simplex * row.softmax(dim=-1), held[0, 0])
    assert isinstance(jacobian, Tensor)
    change = matrix()
    torch.testing.assert_close(Retained(held, spec_of("kl", simplex=simplex)).follow(change), change @ jacobian.mT)


def test_kl_follows_alike_wherever_it_stands() -> None:
    """A fixed linear map, so that the dual form applies."""
    change = matrix(3)
    found = [Retained(matrix(seed), spec_of("kl")).follow(change) for seed in (0, 1)]
    assert torch.equal(*found)


# --- lq


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_lq_at_a_chunk_start(q: float, scale: float) -> None:
    """W = A / ‖A‖_q^(q-2), one norm for each matrix."""
    held = matrix(scale=scale)
    norms = held.abs().pow(q).sum(dim=(-2, -1), keepdim=True).pow(1 / q)
    # What is added to the norm, 1e-6, shows in the smallest.
    torch.testing.assert_close(Retained(held, spec_of("lq", q=q)).weights, held / norms ** (q - 2), rtol=2e-3, atol=0)


@pytest.mark.parametrize("factor", [0.25, 3.0, 50.0])
def test_lq_inverts_scale(factor: float) -> None:
    """W(cA) = W(A)/c at q = 4: what decays grows."""
    spec = spec_of("lq", q=4)
    one, scaled = Retained(matrix(), spec).weights, Retained(matrix() * factor, spec).weights
    torch.testing.assert_close(scaled, one / factor, rtol=1e-5, atol=0)


def test_lq_at_two_holds_the_weights() -> None:
    torch.testing.assert_close(Retained(matrix(), spec_of("lq", q=2)).weights, matrix(), rtol=1e-5, atol=0)


def test_lq_is_frozen_inside_a_chunk() -> None:
    retained = Retained(matrix(), spec_of("lq"))
    torch.testing.assert_close(retained.at(matrix() * 5), retained.weights * 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", [1.5, 3.0, 4.0, 6.0])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e8])
def test_lq_is_finite_at_any_scale(scale: float, q: float, dtype: torch.dtype) -> None:
    """The sixth power of 1e8 is no float32."""
    held = (matrix() * scale).to(dtype).requires_grad_()
    weights = Retained(held, spec_of("lq", q=q)).weights
    (derivative,) = torch.autograd.grad(weights.sum(), held)
    assert weights.isfinite().all()
    assert derivative.isfinite().all()


@pytest.mark.parametrize("q", [8.0, 12.0])
def test_an_empty_lq_memory_has_derivatives_for_any_q(q: float) -> None:
    held = torch.zeros(2, 3, 5, requires_grad=True)
    (derivative,) = torch.autograd.grad(Retained(held, spec_of("lq", q=q)).weights.sum(), held)
    assert derivative.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", ["Titans", "Yaad", "Moneta", "Memora"])
def test_an_empty_memory_is_finite(name: str, chunk: int) -> None:
    case = draw_case(point(name, chunk=chunk), length=6, dtype=torch.float32)
    empty = Memory(
        tuple(torch.zeros_like(held, requires_grad=True) for held in case.memory.weights),
        None if case.memory.velocity is None else tuple(torch.zeros_like(held) for held in case.memory.velocity),
    )
    found = outcome(*case._replace(memory=empty).run())
    derivatives = torch.autograd.grad(found["reads"].sum(), empty.weights)
    assert all(tensor.isfinite().all() for tensor in (*found.values(), *derivatives))
