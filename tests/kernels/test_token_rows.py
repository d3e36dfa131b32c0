"""The rows that our kernel makes of one token are those that torch makes of it, and the tail is the one after it.

Without a GPU the kernel runs in Triton's interpreter. Both are given the same rounded numbers, and torch computes with
them in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences import token as recurrence_token
from lockstep.kernels.rows import token
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec
from lockstep.memory.ownership import given_up
from lockstep.models.decoding import Decoder
from lockstep.models.mixers.delta_net import GatedDeltaNet
from lockstep.models.mixers.mamba2 import Mamba2
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE
from tests.kernels.test_memory_operator import NUMBERS, SHAPES

pytest.importorskip("triton")

from lockstep.kernels.rows import token_operator as operator

EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
PRECISIONS = [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)]
LENGTHS = [1.0, 1.0, 0.0]


class Size(NamedTuple):
    """Of a memory with heads `width` wide."""

    taps: int = 4
    width: int = 16
    heads: int = 2
    batch: int = 3


SIZES = [Size(), Size(taps=2), Size(taps=3, heads=3, batch=1), Size(heads=1, width=64, batch=1), Size(2, 32, 3, 1)]
ON_GPUS = [Size(width=64, heads=8, batch=1), Size(width=64, heads=16, batch=64), Size(8, 128, 3, 2)]
"""As models have them."""
ALL_SIZES = SIZES + (ON_GPUS if torch.cuda.is_available() else [])


@torch.no_grad()
def drawn(size: Size, dtype: torch.dtype = torch.float32) -> NeuralMemory:
    """A layer with parameters of this precision."""
    layer = NeuralMemory(size.heads * size.width, size.heads, MemorySpec(), conv=size.taps)
    randomise(layer, seed=0)
    return layer.to(DEVICE, dtype)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def farthest(found: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """The largest relative error, pair by pair."""
    pairs = zip(found, wanted, strict=True)
    return max(float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs)


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", ALL_SIZES, ids=str)
@torch.no_grad()
def test_rows(size: Size, dtype: torch.dtype, bound: float) -> None:
    """Over more tokens than a tail has."""
    layer = drawn(size, dtype)
    exact = copy.deepcopy(layer).double()
    dim, nowhere = layer.dim, torch.zeros(size.batch, device=DEVICE)
    tail = normal(size.batch, size.taps - 1, 3 * dim, seed=1, dtype=dtype)
    for t in range(size.taps + 1):
        qkv = normal(size.batch, 1, 3 * dim, seed=2 + t, dtype=dtype)
        *wanted, after = exact.rows(qkv.double(), tail.double(), nowhere)
        found = layer.made_in_place(qkv, tail, LENGTHS)
        assert all(row.dtype is dtype and row.is_contiguous() for row in found)
        assert farthest(found, wanted) < bound
        assert torch.equal(tail.double(), torch.as_tensor(after))
    assert "(token rows)" in backend()


@torch.no_grad()
def test_an_empty_row_stays_empty() -> None:
    layer = drawn(Size())
    made = layer.made_in_place(torch.zeros(1, 1, 96, device=DEVICE), torch.zeros(1, 3, 96, device=DEVICE), LENGTHS)
    assert not torch.cat(made).any()


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@torch.no_grad()
def test_queries_alone(dtype: torch.dtype, bound: float, forced: None) -> None:
    """As a standing memory is asked: the tail is theirs."""
    layer = drawn(Size(), dtype)
    exact = copy.deepcopy(layer).double()
    tail = normal(3, 3, layer.dim, seed=1, dtype=dtype)
    for t in range(5):
        projected = normal(3, 1, layer.dim, seed=2 + t, dtype=dtype)
        wanted, after = exact.query_rows(projected.double(), tail.double())
        with given_up():
            found, same = layer.query_rows(projected, tail)
        assert same is tail
        assert found.is_contiguous()
        assert found.dtype is dtype
        assert farthest([found], [wanted]) < bound
        assert torch.equal(tail.double(), torch.as_tensor(after))


@torch.no_grad()
def test_a_tail_of_another_precision() -> None:
    layer, tail = drawn(Size()), normal(3, 3, 96, seed=1).bfloat16().float()
    exact, nowhere = copy.deepcopy(layer).double(), torch.zeros(3, device=DEVICE)
    qkv = normal(3, 1, 96, seed=2, dtype=torch.bfloat16)
    *wanted, after = exact.rows(qkv.double(), tail.double(), nowhere)
    found = layer.made_in_place(qkv, tail, LENGTHS)
    assert found[0].dtype is torch.bfloat16
    assert farthest(found, wanted) < ROUNDED
    assert torch.equal(tail.double(), torch.as_tensor(after))


def given(size: Size) -> tuple[Any, ...]:
    """What the operator is given."""
    layer = drawn(size)
    assert layer.conv is not None
    channels = 3 * layer.dim
    rows = normal(size.batch, channels, seed=1), layer.conv.weight[:, 0].detach()
    return *rows, normal(size.batch, size.taps - 1, channels, seed=2), None, [size.heads] * 3, LENGTHS, 1e-6, None


def test_nothing_but_the_tail_is_written_over() -> None:
    """Of samples whose neighbours in memory are others'."""
    arguments = list(given(Size()))
    room = normal(5, 3, 96, seed=2)
    arguments[2] = room[1:4]
    before, around = [copy.deepcopy(one) for one in arguments], room.clone()
    operator.token_rows_(*arguments)
    for place, (one, other) in enumerate(zip(arguments, before, strict=True)):
        if isinstance(one, Tensor):
            assert torch.equal(one, other) == (place != 2)
    assert torch.equal(room[0], around[0])
    assert torch.equal(room[4], around[4])


def test_it_repeats_itself() -> None:
    assert torch.equal(*(operator.token_rows_(*given(Size())) for _ in range(2)))


def test_tails_that_lie_otherwise_are_named() -> None:
    arguments = list(given(Size()))
    arguments[2] = arguments[2].mT.contiguous().mT
    with pytest.raises(ValueError, match="a tail that is written over must be in one piece"):
        operator.token_rows_(*arguments)


def test_it_is_an_operator() -> None:
    """Torch's own examination."""
    torch.library.opcheck(operator.token_rows_, given(Size(batch=1)), test_utils=(*SHAPES, NUMBERS))


def test_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, for one token, where no derivative is wanted, of a state that is given up."""

    def asked(device: str = "cuda", time: int = 1, dtype: torch.dtype = torch.bfloat16, **sizes: int) -> bool:
        projected: Any = SimpleNamespace(device=torch.device(device), shape=(3, time, 96), dtype=dtype)
        return token.takes(projected, sizes.get("width", 16), sizes.get("taps", 4))

    with torch.no_grad():
        assert asked()
        assert asked(dtype=torch.float32)
        assert not asked(dtype=torch.float64)
        assert not asked(device="cpu")
        assert not asked(time=2)
        assert not asked(width=24)
        assert not asked(taps=1)
    assert not asked()
    monkeypatch.setattr(token, "takes", lambda *_: True)
    one = torch.zeros(1, 1, 96)
    assert not drawn(Size()).in_place(one)
    with given_up():
        assert drawn(Size()).in_place(one)
        assert not NeuralMemory(32, 2, MemorySpec(), conv=0).in_place(one)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one token through the kernel, of whom it may be."""
    monkeypatch.setattr(token, "takes", lambda projected, *_: projected.shape[1] == 1)


class TestRivals:
    """Rows of the delta rule and of Mamba-2: parts of different sizes, other lengths, a bias."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(("key_dim", "value_dim", "conv"), [(16, 16, 4), (16, 32, 2), (32, 64, 4)])
    @torch.no_grad()
    def test_delta_rule(self, key_dim: int, value_dim: int, conv: int, dtype: torch.dtype) -> None:
        """In 32 bits, as by torch, whatever the projections are of: they are written into a state."""
        mixer = GatedDeltaNet(48, 3, key_dim, value_dim, conv=conv, chunk=64).to(DEVICE, dtype)
        exact, channels = copy.deepcopy(mixer).double(), sum(mixer.widths)
        tail = normal(2, conv - 1, channels, seed=1, dtype=dtype)
        for t in range(conv + 1):
            qkv = normal(2, 1, channels, seed=2 + t, dtype=dtype)
            *wanted, after = exact.rows(qkv.double(), tail.double())
            *found, same = mixer.made_in_place(qkv, tail)
            assert same is tail
            assert [x.shape for x in found] == [x.shape for x in wanted]
            assert farthest(found, wanted) < EXACTLY
            assert torch.equal(tail.double(), torch.as_tensor(after))

    @pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
    @torch.no_grad()
    def test_mamba2(self, dtype: torch.dtype, bound: float, forced: None) -> None:
        mixer = Mamba2(16, inner=64, head_dim=16, state_dim=32, groups=1, conv=4, chunk=64)
        randomise(mixer, seed=0)
        mixer = mixer.to(DEVICE, dtype)
        exact, channels = copy.deepcopy(mixer).double(), sum(mixer.widths)
        tail = normal(2, 3, channels, seed=1, dtype=dtype)
        for t in range(5):
            mixed = normal(2, 1, channels + 9, seed=2 + t, dtype=dtype)[..., 4 : channels + 4]
            wanted, after = exact.convolved(mixed.double(), tail.double())
            with given_up():
                found, same = mixer.convolved(mixed, tail)
            assert same is tail
            assert [x.shape for x in found] == [x.shape for x in wanted]
            assert farthest(found, wanted) < bound
            assert torch.equal(tail.double(), after)
        assert "token rows" in backend()

    @pytest.mark.parametrize("name", ["deltanet", "gated-deltanet", "mamba2"])
    @torch.inference_mode()
    def test_models_decode_alike(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """With kernels for rows and for the recurrence, with one of them, and with none."""
        fields = {"d_state": 16, "head_dim": 16} if name == "mamba2" else {"heads": 2}
        model = build(name, vocab_size=17, dim=32, depth=2, **fields).to(DEVICE).eval()
        randomise(model, seed=0)
        tokens = torch.randint(17, (2, 12), generator=torch.Generator().manual_seed(0)).to(DEVICE)
        _, state = model.step(tokens[:, :5], None)

        def said(rows: bool, recurrence: bool) -> Tensor:
            monkeypatch.setattr(token, "takes", lambda projected, *_: rows and projected.shape[1] == 1)
            monkeypatch.setattr(recurrence_token, "takes", lambda keys, _: recurrence and keys.shape[2] == 1)
            decoder = Decoder(model, state)
            return torch.stack([decoder.step(tokens[:, place, None]) for place in range(5, 12)])

        wanted = said(rows=False, recurrence=False)
        assert backend() == "torch"
        for rows, recurrence in ((True, False), (False, True), (True, True)):
            torch.testing.assert_close(said(rows, recurrence), wanted, rtol=1e-3, atol=1e-4)
        assert "recurrence token, token rows" in backend()
