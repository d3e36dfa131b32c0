"""Retention as its authors write it in parallel, and as the fla library computes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.laws.subject import randomise
from lockstep.models.mixers import prepared
from lockstep.models.mixers.retention import EPSILON, Retention
from lockstep.models.rotary import rotate

DIM, HEADS = 32, 4
LENGTHS = [1, 8, 27]


def mixer(dtype: torch.dtype) -> Retention:
    one = Retention(DIM, HEADS, chunk=8, rope_theta=10_000.0, max_length=64)
    randomise(one, seed=0)
    return one.to(dtype)


def inputs(length: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def layer(one: Retention, x: Tensor, retention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """The mixer around a retention of queries, keys and values [batch, heads, time, dim], keys not yet scaled."""
    queries, keys, values, gate = F.linear(x, one.input.weight).split((DIM, DIM, 2 * DIM, 2 * DIM), dim=-1)
    queries, keys, values = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (queries, keys, values))
    positions = torch.arange(x.shape[1])[None]
    queries, keys = (rotate(part, positions, one.rope_theta) for part in (queries, keys))
    reads = retention(queries, keys, values)
    normal = reads * (reads.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
    y: Tensor = one.output(normal.transpose(1, 2).flatten(2) * F.silu(gate))
    return y


def in_parallel(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(Q Kᵀ * D) V with D_nm = γ^(n - m), γ = 1 - 2^(-5 - h)."""
    time, key_dim = keys.shape[2:]
    gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    apart = torch.arange(time)[:, None] - torch.arange(time)
    decay = (gamma[:, None, None] ** apart.clamp(min=0)).tril().to(keys.dtype)
    reads: Tensor = (queries @ keys.mT / key_dim**0.5 * decay) @ values
    return reads


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().amax() / right.abs().amax())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_is_the_parallel_form(length: int, dtype: torch.dtype, tolerance: float) -> None:
    one, x = mixer(dtype), inputs(length, dtype)
    assert distance(one(x), layer(one, x, in_parallel)) < tolerance


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_same_as_fla(length: int) -> None:
    """Which computes in float32, whatever it is given."""
    naive = pytest.importorskip("fla.ops.retention.naive", reason="the other implementation is not installed")
    one, x = mixer(torch.float32), inputs(length, torch.float32)
    assert distance(one(x), layer(one, x, naive.naive_retention)) < 1e-5


def test_few_heads_have_the_first_decays() -> None:
    few = Retention(DIM, 2, chunk=8, rope_theta=10_000.0, max_length=64)
    keep = few.log_keep(torch.zeros(1, dtype=torch.float64)).exp()
    assert torch.allclose(keep, torch.tensor([1 - 1 / 32, 1 - 1 / 64], dtype=torch.float64), rtol=1e-15)


def test_values_are_twice_as_wide_as_keys() -> None:
    one = mixer(torch.float32)
    assert one.initial_state(3).memory.shape == (3, HEADS, DIM // HEADS, 2 * DIM // HEADS)
    assert not [name for name, _ in one.named_parameters() if "weight" not in name]


# torch's compiler does so itself where it traces a derivative that is written out.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled_texts_look_their_angles_up_where_a_table_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that goes on, or is longer than the table, has them computed; what comes out is the same."""
    one = Retention(DIM, HEADS, chunk=8, rope_theta=10_000.0, max_length=16).double()
    randomise(one, seed=0)
    torch._dynamo.reset()
    monkeypatch.setattr(prepared, "SHELF", prepared.Shelf())
    run = torch.compile(one.step, dynamic=False, backend="eager")
    state, x = None, inputs(33, torch.float64)
    with torch.no_grad():
        whole, _ = one.step(x, None)
        for length, ready in ((17, ["log_keeps_0"]), (16, ["log_keeps_0", "first_turns_1"])):
            torch.testing.assert_close(run(x[:, :length], None)[0], whole[:, :length])
            assert list(prepared.SHELF._names.values()) == ready
        for piece, wanted in zip(x.split((16, 1, 16), dim=1), whole.split((16, 1, 16), dim=1), strict=True):
            found, state = run(piece, state)
            torch.testing.assert_close(found, wanted)
