"""Linear attention as its authors write it, and as a point of the memory grid."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.laws.subject import randomise
from lockstep.memory import Gates, Memory, MemorySpec, memorize
from lockstep.models.mixers.linear_attention import EPSILON, LinearAttention, features

DIM, HEADS, HEAD_DIM = 12, 3, 4
LENGTHS = [1, 5, 18]


def mixer() -> LinearAttention:
    one = LinearAttention(DIM, HEADS, chunk=5).double()
    randomise(one, seed=0)
    return one


def inputs(length: int) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def rows(one: LinearAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of queries and keys, and values, [batch, heads, time, head_dim]."""
    queries, keys, values = (
        part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in F.linear(x, one.qkv.weight).chunk(3, dim=-1)
    )
    return F.elu(queries) + 1, F.elu(keys) + 1, values


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().amax() / right.abs().amax())


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_is_attention_with_another_kernel(length: int) -> None:
    """Weights are products of features, their sum over the past one."""
    one, x = mixer(), inputs(length)
    queries, keys, values = rows(one, x)
    weights = (queries @ keys.mT).tril()
    mean = weights @ values / (weights.sum(dim=-1, keepdim=True) + EPSILON)
    assert distance(one(x), one.output(mean.transpose(1, 2).flatten(2))) < 1e-12


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_is_a_point_of_the_memory_grid(length: int) -> None:
    """A linear memory with a bias of inner products that keeps everything, written at rate one.

    It says the numerator and, where all values are one, the normaliser; and it holds the same at the end.
    """
    one, x = mixer(), inputs(length)
    queries, keys, values = rows(one, x)
    spec = MemorySpec(structure="linear", bias="dot", rule="gradient-descent", retention="l2", chunk=1)
    everything = torch.ones_like(queries[..., 0])

    def remembered(values: Tensor) -> tuple[Tensor, Tensor]:
        empty = Memory((values.new_zeros(2, HEADS, HEAD_DIM, values.shape[-1]),))
        reads, memory = memorize(queries, keys, values, Gates(keep=everything, rate=everything), empty, spec)
        return reads, memory.weights[0]

    numerator, weights = remembered(values)
    normaliser, sums = remembered(torch.ones_like(values[..., :1]))
    mean = numerator / (normaliser + EPSILON)
    y, state = one.step(x, None)
    assert distance(y, one.output(mean.transpose(1, 2).flatten(2))) < 1e-12
    assert distance(state, torch.cat((weights, sums), dim=-1)) < 1e-12


def test_features_are_positive() -> None:
    """And those of zero are one."""
    x = torch.linspace(-10, 10, 41)
    assert (features(x) > 0).all()
    assert features(torch.zeros(1)).item() == 1


@torch.no_grad()
def test_nothing_is_divided_by_zero() -> None:
    """Features so small that they vanish leave nothing to read."""
    one = mixer().float()
    one.qkv.weight.fill_(-1e3)
    assert one(inputs(7).abs().float()).isfinite().all()
