"""Points of the grid that are older models, written here a second time as their authors write them; and points that
coincide, or must not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.memory import Form, Gates, Memory, MemorySpec
from lockstep.memory.spec import Activation
from tests.memory.cases import Case, Named, assert_close, draw_case, outcome, point

FORMS: list[Form] = ["sequential", "chunked"]
TOLERANCE = 1e-12


def held_still(case: Case, **gates: float) -> Case:
    """The case with some gates at one value for all tokens."""
    constant = {name: torch.full_like(case.gates.keep, value) for name, value in gates.items()}
    return case._replace(gates=case.gates._replace(**constant))


def reads_of(case: Case) -> Named:
    return {"reads": case.run()[0]}


# --- points that coincide


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("form", ["norm", "coordinate", "switch"])
@pytest.mark.parametrize("structure", ["linear", "mlp"])
def test_huber_below_its_threshold_is_l2(structure: str, form: str, chunk: int) -> None:
    spec = point("Titans", structure=structure, bias="huber", huber_form=form, chunk=chunk)
    case = held_still(draw_case(spec, length=9), threshold=1e6)
    plain = case.with_spec(bias="l2")._replace(gates=case.gates._replace(threshold=None))
    assert_close(outcome(*case.run()), outcome(*plain.run()), TOLERANCE)


@pytest.mark.parametrize("form", ["norm", "coordinate", "switch"])
def test_huber_beyond_its_threshold_is_not_l2(form: str) -> None:
    case = held_still(draw_case(point("Yaad", huber_form=form, chunk=4), length=9), threshold=0.1)
    plain = case.with_spec(bias="l2")._replace(gates=case.gates._replace(threshold=None))
    assert (case.run()[0] - plain.run()[0]).abs().amax() > 0.01


@pytest.mark.parametrize(("p", "tolerance"), [(2.0, TOLERANCE), (2 - 1e-7, 1e-5), (2 + 1e-7, 1e-5)])
def test_lp_at_two_is_l2(p: float, tolerance: float) -> None:
    """And near two it is near: the power is smoothed below and not above, with no step between."""
    case = draw_case(point("Titans", bias="lp", p=p, chunk=4), length=9)
    assert_close(outcome(*case.run()), outcome(*case.with_spec(bias="l2").run()), tolerance)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", ["linear Titans", "Titans", "anchored Titans"])
def test_momentum_of_zero_is_gradient_descent(name: str, chunk: int) -> None:
    """Whatever velocity there was."""
    case = held_still(draw_case(point(name, chunk=chunk), length=9), momentum=0.0)
    plain = case.with_spec(rule="gradient-descent")._replace(
        gates=case.gates._replace(momentum=None), memory=Memory(case.memory.weights)
    )
    reads, memory = case.run()
    assert_close(outcome(reads, Memory(memory.weights)), outcome(*plain.run()), TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 4])
def test_an_mlp_of_one_matrix_is_linear(chunk: int) -> None:
    case = draw_case(point("linear Titans", chunk=chunk), length=9)
    assert_close(outcome(*case.run()), outcome(*case.with_spec(structure="mlp", depth=1).run()), TOLERANCE)


@pytest.mark.parametrize("tile", [1, 5, 64])
@pytest.mark.parametrize("name", ["linear attention", "delta rule", "linear Titans"])
def test_tiles_leave_no_trace(name: str, tile: int) -> None:
    case = draw_case(point(name, chunk=1, tile=7), length=70, zeros=True)
    assert case.spec.exact
    assert_close(outcome(*case.with_spec(tile=tile).run()), outcome(*case.run()), TOLERANCE)


# --- older models


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("forgets", [False, True], ids=["delta rule", "gated delta rule"])
def test_delta_rules(forgets: bool, form: Form) -> None:
    """Titans' flavour of the gated one: the error is measured on the memory before it is decayed."""
    case = draw_case(point("delta rule", chunk=1), length=12)
    case = case if forgets else held_still(case, keep=1.0)
    M, expected = case.memory.weights[0], []
    for q, k, v, keep, rate in each_token(case):
        M = keep * M - rate * k.mT @ (k @ M - v)
        expected.append(q @ M)
    reads, memory = case.run(form)
    assert_close(outcome(reads, memory), outcome(torch.cat(expected, dim=2), Memory((M,))), TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("form", FORMS)
def test_causal_linear_attention(form: Form, chunk: int) -> None:
    """The chunk is nothing to it: its gradient does not depend on the memory."""
    case = held_still(draw_case(point("linear attention", chunk=chunk), length=12), keep=1.0, rate=1.0)
    empty = case._replace(memory=Memory(tuple(torch.zeros_like(matrix) for matrix in case.memory.weights)))
    expected = (case.queries @ case.keys.mT).tril() @ case.values
    written = case.keys.mT @ case.values
    assert_close(outcome(*empty.run(form)), outcome(expected, Memory((written,))), TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("form", FORMS)
def test_retentive_network(form: Form, chunk: int) -> None:
    """Linear attention that forgets."""
    case = draw_case(point("linear attention", chunk=chunk), length=12)
    M, expected = case.memory.weights[0], []
    for q, k, v, keep, rate in each_token(case):
        M = keep * M + rate * k.mT @ v
        expected.append(q @ M)
    assert_close(outcome(*case.run(form)), outcome(torch.cat(expected, dim=2), Memory((M,))), TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 4])
def test_test_time_training(chunk: int) -> None:
    """TTT-Linear, f(x) = x + LN(x W), each step by automatic differentiation of its loss."""
    case = held_still(draw_case(point("TTT", chunk=chunk), length=10), keep=1.0)
    gain, shift = case.outer.gain, case.outer.shift
    assert gain is not None
    assert shift is not None

    def f(x: Tensor, weights: Tensor) -> Tensor:
        return x + F.layer_norm(x @ weights, x.shape[-1:], eps=1e-5) * gain[:, None] + shift[:, None]

    W, expected, start = case.memory.weights[0], [], torch.empty(())
    for t, (q, k, v, _, rate) in enumerate(each_token(case)):
        if t % chunk == 0:
            start = W.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((f(k, start) - v).square().sum() / 2, start)
        W = W - rate * gradient
        expected.append(f(q, W))
    assert_close(outcome(*case.run()), outcome(torch.cat(expected, dim=2), Memory((W,))), TOLERANCE)


def test_titans() -> None:
    """Equations 10, 13 and 15 with a network of two layers, a gradient at every token."""
    case = draw_case(point("Titans", chunk=1), length=8)
    assert case.memory.velocity is not None
    assert case.gates.momentum is not None

    def network(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        return F.gelu(x @ weights[0], approximate="tanh") @ weights[1]

    M, S, expected = case.memory.weights, case.memory.velocity, []
    for t, (q, k, v, keep, theta) in enumerate(each_token(case)):
        eta = case.gates.momentum[:, :, t, None, None]
        M = tuple(matrix.detach().requires_grad_() for matrix in M)
        surprise = torch.autograd.grad((network(k, M) - v).square().sum() / 2, M)
        S = tuple(eta * old - theta * new for old, new in zip(S, surprise, strict=True))
        M = tuple(keep * old + new for old, new in zip(M, S, strict=True))
        expected.append(network(q, M))
    assert_close(outcome(*case.run()), outcome(torch.cat(expected, dim=2), Memory(M, S)), TOLERANCE)


def each_token(case: Case) -> zip[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Query, key, value as rows [batch, heads, 1, dim], keep and rate [batch, heads, 1, 1]."""
    rows = (x.split(1, dim=2) for x in (case.queries, case.keys, case.values))
    gates = (gate[..., None].split(1, dim=2) for gate in (case.gates.keep, case.gates.rate))
    return zip(*rows, *gates, strict=True)


BETWEEN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
}


@pytest.mark.parametrize("activation", BETWEEN)
def test_a_chunk_descends_its_summed_loss(activation: Activation) -> None:
    """One chunk without decay is one step down the sum of its tokens' losses, each as large as its rate."""
    spec = MemorySpec(rule="gradient-descent", residual=True, norm=True, activation=activation, chunk=16)
    case = held_still(draw_case(spec, length=16), keep=1.0)
    first, second = (matrix.clone().requires_grad_() for matrix in case.memory.weights)
    gain, shift = case.outer.gain, case.outer.shift
    assert gain is not None
    assert shift is not None
    said = F.layer_norm(BETWEEN[activation](case.keys @ first) @ second, (3,)) * gain[:, None] + shift[:, None]
    losses = (case.keys + said - case.values).square().sum(dim=-1) / 2
    steps = torch.autograd.grad((case.gates.rate * losses).sum(), (first, second))
    after = Memory((first.detach() - steps[0], second.detach() - steps[1]))
    reads, memory = case.run()
    assert_close(outcome(reads, memory), outcome(reads, after), TOLERANCE)


# --- points that must not coincide


def test_the_models_of_miras_differ() -> None:
    """From the same weights on the same tokens, Titans, Yaad, Moneta and Memora say the same before they have written
    anything, and then drift apart by more than a twentieth of what they say.
    """
    bare = {"residual": False, "norm": False, "read": "before", "chunk": 4}
    case = draw_case(point("Titans", **bare), length=32)
    weights = tuple(matrix.softmax(dim=-1) for matrix in case.memory.weights)
    inverted = tuple(W / (W**4).sum(dim=(-2, -1), keepdim=True).sqrt() for W in weights)
    velocity = tuple(torch.zeros_like(matrix) for matrix in weights)
    rate = torch.full_like(case.gates.rate, 0.1)
    threshold = torch.full_like(case.gates.keep, 0.5)
    plain = Gates(case.gates.keep, rate)
    cases = {
        "Titans": case._replace(gates=case.gates._replace(rate=rate), memory=Memory(weights, velocity)),
        "Yaad": case._replace(
            spec=point("Yaad", **bare), gates=plain._replace(threshold=threshold), memory=Memory(weights)
        ),
        "Moneta": case._replace(spec=point("Moneta", **bare), gates=plain, memory=Memory(inverted)),
        "Memora": case._replace(
            spec=point("Memora", **bare), gates=plain, memory=Memory(tuple(W.log() for W in weights))
        ),
    }
    reads = {name: one.run()[0] for name, one in cases.items()}
    for one, other in combinations(reads, 2):
        apart = (reads[one] - reads[other]).norm(dim=-1) / reads[one].norm(dim=-1)
        assert apart[:, :, 0].amax() < 1e-5, f"{one} and {other} begin {apart[:, :, 0].amax():.1e} apart"
        assert apart[:, :, -8:].mean() > 0.05, f"{one} and {other} end {apart[:, :, -8:].mean():.1%} apart"
