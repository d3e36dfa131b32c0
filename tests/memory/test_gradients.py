"""The outer model learns through the memory: gradients reach everything, however they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lockstep.memory import Form, Gates, Memory, Outer
from tests.memory.cases import POINTS, Case, assert_close, draw_case, each_gate, gradients, outcome, point

FORMS: list[Form] = ["sequential", "chunked"]
every_form = pytest.mark.parametrize("form", FORMS)
every_point = pytest.mark.parametrize("name", POINTS)
every_chunk = pytest.mark.parametrize("chunk", [1, 4])


def drawn(name: str, chunk: int, length: int = 6) -> Case:
    """A case that has whole chunks and some tokens over."""
    return draw_case(point(name, chunk=chunk), length).tracked()


@every_form
@every_point
def test_every_input_gets_a_gradient(name: str, form: Form) -> None:
    """Else two forms that both forget one would agree."""
    case = drawn(name, chunk=4)
    found = gradients(outcome(*case.run(form)), case.inputs())
    assert [entry for entry, gradient in found.items() if not gradient.abs().amax() > 0] == []


@every_form
@pytest.mark.parametrize(("chunk", "read"), [(1, "after"), (2, "before")])
@every_point
def test_gradients_are_those_of_finite_differences(name: str, chunk: int, read: str, form: Form) -> None:
    """A write is itself a gradient: the derivatives of that count too."""
    case = draw_case(point(name, chunk=chunk, read=read), length=3, batch=1, heads=1, width=2).tracked()

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(outcome(*rebuilt(case, iter(tensors)).run(form)).values())

    assert torch.autograd.gradcheck(run, tuple(case.inputs().values()), fast_mode=True)


def rebuilt(case: Case, tensors: Iterator[Tensor]) -> Case:
    """The case with other tensors, in the order of its inputs."""

    def like(old: Tensor | None) -> Tensor | None:
        return None if old is None else next(tensors)

    def matrices(old: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        return None if old is None else tuple(next(tensors) for _ in old)

    queries, keys, values = (next(tensors) for _ in range(3))
    gates = Gates(next(tensors), next(tensors), like(case.gates.momentum), like(case.gates.threshold))
    outer = Outer(like(case.outer.gain), like(case.outer.shift), matrices(case.outer.initial))
    weights = tuple(next(tensors) for _ in case.memory.weights)
    memory = Memory(weights, matrices(case.memory.velocity))
    return Case(case.spec, queries, keys, values, gates, memory, outer)


@every_chunk
@every_point
def test_from_each_result_alone(name: str, chunk: int) -> None:
    """What is not used sends nothing back."""
    case = drawn(name, chunk)
    for result in outcome(*case.run()):
        found, expected = (
            gradients({result: outcome(*case.run(form))[result]}, case.inputs()) for form in ("chunked", "sequential")
        )
        assert_close(found, expected)


@every_chunk
@every_point
def test_to_each_input_alone(name: str, chunk: int) -> None:
    """What is not learned asks for nothing."""
    case = drawn(name, chunk)
    expected = gradients(outcome(*case.run()), case.inputs())
    for entry, tensor in case.inputs().items():
        for other in case.inputs().values():
            other.requires_grad_(other is tensor)
        found = gradients(outcome(*case.run()), {entry: tensor})
        assert_close(found, {name: expected[name] for name in found}, 1e-12)


@every_chunk
@every_point
def test_asked_for_twice(name: str, chunk: int) -> None:
    """Nothing that is kept for the way back is changed on it."""
    case = drawn(name, chunk)
    total = torch.stack([tensor.sum() for tensor in outcome(*case.run()).values()]).sum()
    inputs = list(case.inputs().values())
    first, second = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@every_chunk
@every_point
def test_not_asked_for(name: str, chunk: int) -> None:
    """The same bits come out, and nothing is kept."""
    case = drawn(name, chunk)
    expected = outcome(*case.run())
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            found = outcome(*case.run())
        assert_close(found, expected, tolerance=0)
        assert not any(tensor.requires_grad for tensor in found.values())


@every_chunk
@every_point
def test_inputs_are_left_alone(name: str, chunk: int) -> None:
    """On the way there and back."""
    case = drawn(name, chunk)
    copies = {entry: tensor.detach().clone() for entry, tensor in case.inputs().items()}
    gradients(outcome(*case.run()), case.inputs())
    assert all(torch.equal(tensor, copies[entry]) for entry, tensor in case.inputs().items())


@every_chunk
@every_point
def test_inputs_may_lie_anyhow_in_memory(name: str, chunk: int) -> None:
    """As projections give them: time before heads."""
    case = drawn(name, chunk)

    def relaid(x: Tensor) -> Tensor:
        return x.detach().transpose(1, 2).contiguous().transpose(1, 2)

    queries, keys, values = map(relaid, (case.queries, case.keys, case.values))
    assert not keys.is_contiguous()
    other = case._replace(queries=queries, keys=keys, values=values, gates=each_gate(relaid, case.gates)).tracked()
    found, expected = outcome(*other.run()), outcome(*case.run())
    assert_close(found, expected, 1e-14)
    assert_close(gradients(found, other.inputs()), gradients(expected, case.inputs()), 1e-12)


@every_chunk
@every_point
def test_samples_may_share_their_first_weights(name: str, chunk: int) -> None:
    """A model has one set of them: each sample's gradient is added to it."""
    case = drawn(name, chunk)
    shared = tuple(matrix[:1].detach().clone().requires_grad_() for matrix in case.memory.weights)
    copied = tuple(matrix.repeat(2, 1, 1, 1).detach().requires_grad_() for matrix in shared)
    expanded = tuple(matrix.expand(2, -1, -1, -1) for matrix in shared)
    found, expected = (
        outcome(*case._replace(memory=case.memory._replace(weights=weights)).run()) for weights in (expanded, copied)
    )
    assert_close(found, expected, 1e-14)
    ours = gradients(found, {str(n): matrix for n, matrix in enumerate(shared)})
    apart = gradients(expected, {str(n): matrix for n, matrix in enumerate(copied)})
    assert_close(ours, {entry: gradient.sum(dim=0, keepdim=True) for entry, gradient in apart.items()}, 1e-12)


@every_form
@every_chunk
def test_forgetting_that_leads_back_to_the_given_memory(chunk: int, form: Form) -> None:
    """The memory is then there twice, as what is forgotten and as where that leads, and learns from both."""
    spec = point("anchored Titans", chunk=chunk)
    case = draw_case(spec, length=6, anchor="memory").tracked()
    weights = case.memory.weights
    copies = tuple(matrix.detach().clone().requires_grad_() for matrix in weights)
    told = case._replace(outer=case.outer._replace(initial=copies))
    both = {str(n): matrix for n, matrix in enumerate((*weights, *copies))}
    found, expected = outcome(*case.run(form)), outcome(*told.run(form))
    assert_close(found, expected, tolerance=0)
    *apart, first, second = gradients(expected, both).values()
    sums = [one + other for one, other in zip(apart, (first, second), strict=True)]
    ours = gradients(found, {str(n): matrix for n, matrix in enumerate(weights)})
    assert_close(ours, dict(zip(ours, sums, strict=True)), 1e-12)


@every_chunk
@pytest.mark.parametrize("lent", ["gain", "shift", "nothing"])
@pytest.mark.parametrize("bias", ["l2", "lp"])
@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
def test_a_norm_with_parts_of_its_map(residual: bool, bias: str, lent: str, chunk: int) -> None:
    case = draw_case(point("Titans", norm=True, residual=residual, bias=bias, chunk=chunk), length=6)
    absent = {name: None for name in ("gain", "shift") if name != lent}
    case = case._replace(outer=case.outer._replace(**absent)).tracked()
    found, expected = (outcome(*case.run(form)) for form in ("chunked", "sequential"))
    assert_close(found, expected)
    assert_close(gradients(found, case.inputs()), gradients(expected, case.inputs()))


@every_chunk
@every_point
def test_second_derivatives_are_refused(name: str, chunk: int) -> None:
    """The way back is written out and has no way back of its own; without a word it would be a wrong one."""
    case = drawn(name, chunk)
    inputs = list(case.inputs().values())
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(case.run()[0].square().sum(), inputs, create_graph=True, materialize_grads=True)


@every_chunk
@every_point
def test_asked_for_inside_an_autocast_region(name: str, chunk: int) -> None:
    """Where torch's own way back loses precision, and does not fail."""
    case = draw_case(point(name, chunk=chunk), length=6, dtype=torch.float32).tracked()
    expected = gradients(outcome(*case.run()), case.inputs())
    result = outcome(*case.run())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(result, case.inputs())
    assert_close(found, expected, tolerance=0.05)
