"""The closed form of momentum and decay, against the recurrence it stands for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.memory import Gates
from lockstep.memory.coefficients import Coefficients, before, coefficients, products

unhurried = settings(deadline=None, derandomize=True, database=None)
gate_values = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))


def drawn(time: int, seed: int = 0, zeros: bool = False) -> Tensor:
    """Gates [2, time]."""
    draw = torch.Generator().manual_seed(seed)
    gates = torch.rand(2, time, generator=draw, dtype=torch.float64)
    return gates.masked_fill(torch.rand(2, time, generator=draw) < 0.3, 0.0) if zeros else gates


def three_gates(time: int, zeros: bool = False) -> Gates:
    return Gates(*(drawn(time, seed, zeros) for seed in range(3)))


def naive_products(gates: Tensor) -> Tensor:
    time = gates.shape[-1]
    found = gates.new_zeros(*gates.shape, time)
    for t in range(time):
        for r in range(t + 1):
            found[..., t, r] = gates[..., r + 1 : t + 1].prod(dim=-1)
    return found


def unrolled(gates: Gates) -> tuple[Tensor, Tensor]:
    """Memory and velocity after each token, [..., time, 2 + time]: what is left of the memory at the start, of the
    velocity at the start, and of each gradient.
    """
    keep, rate, momentum, _ = gates
    time = keep.shape[-1]
    memory, velocity = keep.new_zeros(*keep.shape[:-1], 2 + time), keep.new_zeros(*keep.shape[:-1], 2 + time)
    memory[..., 0] = 1.0
    velocity[..., 1] = 1.0
    memories, velocities = [], []
    for t in range(time):
        gradient = torch.zeros_like(velocity)
        gradient[..., 2 + t] = -rate[..., t]
        velocity = gradient if momentum is None else momentum[..., t, None] * velocity + gradient
        memory = keep[..., t, None] * memory + velocity
        memories.append(memory)
        velocities.append(velocity)
    return torch.stack(memories, dim=-2), torch.stack(velocities, dim=-2)


@unhurried
@given(st.lists(gate_values, min_size=1, max_size=12))
def test_products_between_any_two_tokens(gates: list[float]) -> None:
    given_gates = torch.tensor(gates, dtype=torch.float64)
    assert torch.allclose(products(given_gates), naive_products(given_gates), rtol=1e-14, atol=0)


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
def test_derivatives_of_products(zeros: bool) -> None:
    """Exact at zeros too, where a derivative by division has none."""
    assert torch.autograd.gradcheck(products, drawn(7, zeros=zeros).requires_grad_())


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("time", [1, 2, 9])
def test_momentum_unrolled(time: int, zeros: bool) -> None:
    gates = three_gates(time, zeros)
    found = coefficients(gates)
    memories, velocities = unrolled(gates)
    assert found.carried is not None
    assert found.velocity_kept is not None
    assert found.velocity_written is not None
    pairs = [
        (found.kept, memories[..., 0]),
        (found.carried, memories[..., 1]),
        (-found.written, memories[..., 2:]),
        (found.velocity_kept, velocities[..., -1, 1]),
        (-found.velocity_written, velocities[..., -1, 2:]),
    ]
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
def test_gradient_descent_unrolled(zeros: bool) -> None:
    gates = three_gates(9, zeros)._replace(momentum=None)
    found = coefficients(gates)
    memories, _ = unrolled(gates)
    torch.testing.assert_close(found.kept, memories[..., 0], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(-found.written, memories[..., 2:], rtol=1e-13, atol=1e-15)
    assert found[2:] == (None, None, None)


def test_before_is_the_row_of_the_token_before() -> None:
    """The first token finds the memory as it was: all of it kept, nothing carried, nothing written."""
    found = coefficients(three_gates(6))
    earlier = before(found)
    assert found.carried is not None
    assert earlier.carried is not None
    assert torch.equal(earlier.kept[..., 0], torch.ones(2, dtype=torch.float64))
    for shifted, rows in ((earlier.kept[..., 1:], found.kept), (earlier.carried[..., 1:], found.carried)):
        assert torch.equal(shifted, rows[..., :-1])
    assert torch.equal(earlier.written[..., 1:, :], found.written[..., :-1, :])
    for first in (earlier.carried[..., 0], earlier.written[..., 0, :]):
        assert torch.equal(first, torch.zeros_like(first))


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
def test_derivatives_of_the_coefficients(zeros: bool) -> None:
    def all_of(*gates: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for part in coefficients(Gates(*gates)) if part is not None)

    keep, rate, momentum, _ = three_gates(5, zeros)
    assert torch.autograd.gradcheck(
        all_of, tuple(gate.requires_grad_() for gate in (keep, rate, momentum) if gate is not None)
    )


def halved(time: int, dtype: torch.dtype) -> Coefficients:
    half = torch.full((time,), 0.5, dtype=dtype)
    return coefficients(Gates(half, half, half))


def test_long_decay_underflows_to_zero_and_not_to_nan() -> None:
    """alpha = 0.5 for 200 tokens: in float32 the quotient of cumulative products is 0/0."""
    gates = torch.full((200,), 0.5)
    cumulative = gates.cumprod(dim=0)
    assert (cumulative[:, None] / cumulative).isnan().any()
    gates.requires_grad_()
    found = coefficients(Gates(gates, gates, gates))
    parts = [part for part in found if part is not None]
    torch.stack([part.sum() for part in parts]).sum().backward()
    assert gates.grad is not None
    assert all(part.isfinite().all() for part in (*parts, gates.grad))
    for part, precise in zip(parts, (x for x in halved(200, torch.float64) if x is not None), strict=True):
        torch.testing.assert_close(part.detach().double(), precise, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("keep", "momentum"), [(0.97, 0.9), (0.5, 0.8), (0.9, 0.9), (1.0, 0.0), (0.0, 0.7)])
def test_constant_gates_have_a_toeplitz_form(keep: float, momentum: float, dtype: torch.dtype) -> None:
    """Between tokens n apart, rate·(a^(n+1) - eta^(n+1))/(a - eta), or rate·(n+1)·a^n where the two are equal."""
    time, rate = 24, 0.3
    found = coefficients(Gates(*(torch.full((time,), gate, dtype=dtype) for gate in (keep, rate, momentum))))
    apart = torch.arange(time)[:, None] - torch.arange(time)
    steps = apart.clamp_min(0).double()
    if keep == momentum:
        closed = rate * (steps + 1) * keep**steps
    else:
        closed = rate * (keep ** (steps + 1) - momentum ** (steps + 1)) / (keep - momentum)
    expected = closed.where(apart >= 0, 0.0)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.written.double(), expected, rtol=tolerance, atol=1e-15)
