"""Each bias is the gradient of the loss it is named for, also where that loss has a corner."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lockstep.memory import MemorySpec
from lockstep.memory.biases import clipped, output_gradient

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of output and values [..., dim] and threshold [...], summed over all tokens."""


def smooth(x: Tensor) -> Tensor:
    """|x| of MIRAS, rounded off at zero."""
    return (x.square() + 1e-6).sqrt()


def hubers(size: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(size <= threshold, size.square() / 2, threshold * (size - threshold / 2))


def by_norm(output: Tensor, values: Tensor, threshold: Tensor) -> Tensor:
    return hubers((output - values).norm(dim=-1), threshold).sum()


def by_coordinate(output: Tensor, values: Tensor, threshold: Tensor) -> Tensor:
    return hubers((output - values).abs(), threshold[..., None]).sum()


def by_switch(output: Tensor, values: Tensor, threshold: Tensor) -> Tensor:
    error = output - values
    return torch.where(
        error.norm(dim=-1) <= threshold, error.square().sum(dim=-1) / 2, threshold * smooth(error).sum(dim=-1)
    ).sum()


LOSSES: dict[str, tuple[MemorySpec, Loss]] = {
    "l2": (MemorySpec(bias="l2"), lambda y, v, _: (y - v).square().sum() / 2),
    "dot": (MemorySpec(bias="dot"), lambda y, v, _: -(y * v).sum()),
    "l4": (MemorySpec(bias="lp", p=4), lambda y, v, _: (y - v).abs().pow(4).sum() / 4),
    "l3": (MemorySpec(bias="lp", p=3), lambda y, v, _: (y - v).abs().pow(3).sum() / 3),
    "l2.5": (MemorySpec(bias="lp", p=2.5), lambda y, v, _: (y - v).abs().pow(2.5).sum() / 2.5),
    "l2 as lp": (MemorySpec(bias="lp", p=2), lambda y, v, _: (y - v).abs().pow(2).sum() / 2),
    "l1.5": (MemorySpec(bias="lp", p=1.5), lambda y, v, _: smooth(y - v).pow(1.5).sum() / 1.5),
    "l1": (MemorySpec(bias="lp", p=1), lambda y, v, _: smooth(y - v).sum()),
    "huber-norm": (MemorySpec(bias="huber", huber_form="norm"), by_norm),
    "huber-coordinate": (MemorySpec(bias="huber", huber_form="coordinate"), by_coordinate),
    "huber-switch": (MemorySpec(bias="huber", huber_form="switch"), by_switch),
}
every_bias = pytest.mark.parametrize("name", LOSSES)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_bias
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    spec, loss = LOSSES[name]
    output, values = normal(50, 3, seed=0).requires_grad_(), normal(50, 3, seed=1)
    threshold = torch.linspace(0.2, 4.0, 50, dtype=torch.float64)
    inside = (output - values).norm(dim=-1) <= threshold
    assert 10 < inside.sum() < 40
    (expected,) = torch.autograd.grad(loss(output, values, threshold), output)
    torch.testing.assert_close(output_gradient(spec, output.detach(), values, threshold), expected)


def test_smoothing_is_for_corners_alone() -> None:
    """From p = 2 on, the power is exact at the smallest error; MIRAS's smoothing would change it a thousandfold."""
    tiny = torch.tensor([1e-6, -1e-6], dtype=torch.float64)
    found = output_gradient(MemorySpec(bias="lp", p=3), tiny, torch.zeros_like(tiny), None)
    torch.testing.assert_close(found, torch.tensor([1e-12, -1e-12], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [1.0, 1.5])
def test_smoothing_is_slight(p: float) -> None:
    """Away from zero, the sign of the error and its power."""
    error = torch.tensor([2.0, -0.5], dtype=torch.float64)
    found = output_gradient(MemorySpec(bias="lp", p=p), error, torch.zeros_like(error), None)
    torch.testing.assert_close(found, error.sign() * error.abs() ** (p - 1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.0, 1e-30, 0.5])
@every_bias
def test_no_error_at_all(name: str, threshold: float, dtype: torch.dtype) -> None:
    """A memory that says the value exactly: no gradient, and derivatives that are numbers."""
    spec, _ = LOSSES[name]
    output = normal(4, 3, seed=0).to(dtype).requires_grad_()
    values = output.detach().clone().requires_grad_()
    limit = torch.full((4,), threshold, dtype=dtype, requires_grad=True)
    found = output_gradient(spec, output, values, limit)
    assert torch.equal(found, -values if name == "dot" else torch.zeros_like(found))
    weight = normal(4, 3, seed=1).to(dtype)
    derivatives = torch.autograd.grad((found * weight).sum(), (output, values, limit), materialize_grads=True)
    assert all(derivative.isfinite().all() for derivative in derivatives)


def test_clipping_shortens_and_keeps_the_direction() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [-0.6, 0.8], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(clipped(gradient, 1.0), expected)
    assert clipped(gradient, None) is gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [0.01, 1.0, 1e4])
def test_clipping_has_derivatives_at_zero(limit: float, dtype: torch.dtype) -> None:
    gradient = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    (derivative,) = torch.autograd.grad(clipped(gradient, limit).sum(), gradient)
    assert torch.equal(derivative, torch.ones_like(derivative))


def test_derivatives_of_clipping() -> None:
    assert torch.autograd.gradcheck(lambda x: clipped(x, 1.0), normal(6, 3, seed=0).requires_grad_())
