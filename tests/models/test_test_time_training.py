"""TTT layers are what their paper says: a model per head, trained on each chunk by plain gradient descent."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lockstep
from lockstep.laws.subject import randomise
from lockstep.memory.structures import EPSILON
from lockstep.models.mixers.test_time_training import TestTimeTraining
from lockstep.models.rotary import rotate

DIM, HEADS, CHUNK = 16, 2, 4
HEAD = DIM // HEADS


def memory_of(architecture: str) -> TestTimeTraining:
    model = lockstep.build(architecture, vocab_size=17, dim=DIM, depth=1, heads=HEADS, chunk=CHUNK, conv=0).double()
    randomise(model, seed=3)
    [memory] = [module for module in model.modules() if isinstance(module, TestTimeTraining)]
    return memory


def model_of(weights: list[Tensor], memory: TestTimeTraining, head: int, x: Tensor) -> Tensor:
    """f(x) = x + LN(f_res(x)), f_res linear or an MLP with GELU between."""
    assert memory.gain is not None
    assert memory.shift is not None
    y = x @ weights[0]
    for matrix in weights[1:]:
        y = F.gelu(y, approximate="tanh") @ matrix
    scope = slice(head * HEAD, (head + 1) * HEAD)
    return x + F.layer_norm(y, (HEAD,), memory.gain[scope], memory.shift[scope], eps=EPSILON)


def published(memory: TestTimeTraining, x: Tensor, base_rate: float) -> Tensor:
    """Token by token for one sequence [time, dim], gradients by autograd at the chunk's first weights."""
    projected = F.linear(x, memory.qkv.weight).unflatten(-1, (3, HEADS, HEAD))
    rates = base_rate / (HEAD * CHUNK) * F.linear(x, memory.gates.weight, memory.gates.bias).sigmoid()
    reads = torch.zeros(len(x), HEADS, HEAD, dtype=x.dtype)
    for head in range(HEADS):
        weights = [matrix[head].detach() for matrix in memory.weights]
        for start, end in pairwise([*range(0, len(x), CHUNK), len(x)]):
            point = [matrix.clone().requires_grad_() for matrix in weights]
            for i in range(start, end):
                place = torch.tensor([[i - start]])
                query, key, value = projected[i, :, head]
                query, key = (rotate(one.view(1, 1, 1, -1), place, memory.theta).flatten() for one in (query, key))
                loss = (model_of(point, memory, head, key) - value).square().sum() / 2
                gradients = torch.autograd.grad(loss, point)
                weights = [old - rates[i, head] * new for old, new in zip(weights, gradients, strict=True)]
                reads[i, head] = model_of(weights, memory, head, query)
    return reads.flatten(1).detach()


@pytest.mark.parametrize(("architecture", "base_rate"), [("ttt-linear", 1.0), ("ttt-mlp", 0.1)])
def test_is_gradient_descent_on_the_reconstruction(architecture: str, base_rate: float) -> None:
    memory = memory_of(architecture)
    x = torch.randn(2, 3 * CHUNK + 1, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([published(memory, row, base_rate) for row in x])
    with torch.no_grad():
        reads, _ = memory.step(x, None)
    torch.testing.assert_close(reads.flatten(2), expected, rtol=1e-10, atol=1e-10)
    assert (reads - reads[:, :1]).abs().max() > 0.1
