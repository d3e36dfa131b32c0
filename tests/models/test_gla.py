"""Gated linear attention: chunks are tokens, and the layer is the published one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.laws.subject import randomise
from lockstep.models.mixers.gated_linear_attention import EPSILON, GatedLinearAttention
from lockstep.models.recurrences.channel_decayed import channel_decayed, division
from lockstep.models.registry import build
from tests.memory.cases import Named, assert_close, gradients

CHUNK = 8
KEY_DIM, VALUE_DIM, HEADS = 5, 3, 2
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2)
KEEPS = ("random", "little", "hardly anything", "nothing", "everything", "now and then")

Recurrence = Callable[..., tuple[Tensor, Tensor]]


class Case(NamedTuple):
    """All that the recurrence is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor
    state: Tensor

    def between(self, start: int, stop: int, state: Tensor) -> Case:
        """Some of its tokens, after another state."""
        queries, keys, values, log_keep = (x[:, :, start:stop] for x in self[:4])
        return Case(queries, keys, values, log_keep, state)

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers, rounded."""
        return Case(*(x.detach().to(dtype).requires_grad_() for x in self))


def draw(length: int, keep: str = "random", batch: int = 2, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, HEADS, *shape, generator=generator, dtype=torch.float64)

    case = Case(
        normal(length, KEY_DIM),
        normal(length, KEY_DIM),
        normal(length, VALUE_DIM),
        drawn_keep(normal(length, KEY_DIM), keep),
        normal(KEY_DIM, VALUE_DIM),
    )
    return case.to(torch.float64)


def drawn_keep(normal: Tensor, keep: str) -> Tensor:
    """Logarithms: of shares around a half, e^-10, e^-50, of 0 and 1, and of anything with zeros among it."""
    plain = -normal.abs()
    sometimes = plain.masked_fill(normal > 1, -1e4).masked_fill(normal < -1.5, -torch.inf)
    return {
        "random": plain,
        "little": 10 * plain,
        "hardly anything": plain - 50,
        "nothing": torch.full_like(plain, -1e4),
        "everything": torch.zeros_like(plain),
        "now and then": sometimes.masked_fill(normal.abs() < 0.3, 0.0),
    }[keep]


def token_by_token(case: Case) -> tuple[Tensor, Tensor]:
    """The definition."""
    state, reads = case.state, []
    for t in range(case.keys.shape[2]):
        written = torch.einsum("bhk,bhv->bhkv", case.keys[:, :, t], case.values[:, :, t])
        state = case.log_keep[:, :, t, :, None].exp() * state + written
        reads.append(torch.einsum("bhk,bhkv->bhv", case.queries[:, :, t], state))
    return torch.stack(reads, dim=2), state


def in_chunks(case: Case, chunk: int = CHUNK) -> Named:
    return named(*channel_decayed(*case, chunk=chunk))


def named(reads: Tensor, state: Tensor) -> Named:
    return {"reads": reads, "state": state}


def assert_same(actual: Named, expected: Named, case: Case) -> None:
    """In all that comes out, and in its gradients with respect to all that goes in."""
    assert_close(actual, expected)
    assert_close(gradients(actual, case._asdict()), gradients(expected, case._asdict()))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("keep", KEEPS)
def test_chunks_are_tokens(keep: str, length: int) -> None:
    case = draw(length, keep)
    assert_same(in_chunks(case), named(*token_by_token(case)), case)


@pytest.mark.parametrize("keep", KEEPS)
def test_any_split_is_one_call(keep: str) -> None:
    length = 2 * CHUNK + 3
    case = draw(length, keep)
    whole = in_chunks(case)
    slopes = gradients(whole, case._asdict())
    for cut in range(1, length):
        first, state = channel_decayed(*case.between(0, cut, case.state), chunk=CHUNK)
        second, state = channel_decayed(*case.between(cut, length, state), chunk=CHUNK)
        parts = named(torch.cat((first, second), dim=2), state)
        assert_close(parts, whole)
        assert_close(gradients(parts, case._asdict()), slopes)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_no_result_depends_on_the_chunk(chunk: int) -> None:
    case = draw(19, "now and then")
    assert_same(in_chunks(case, chunk), in_chunks(case), case)


def test_chunks_are_powers_of_two() -> None:
    assert [division(time, 64) for time in (1, 5, 64, 65, 2048)] == [(1, 1), (1, 8), (1, 64), (2, 64), (32, 64)]
    assert [division(time, 7) for time in (3, 5, 7, 8)] == [(1, 4), (2, 4), (2, 4), (2, 4)]


@pytest.mark.parametrize("keep", KEEPS)
def test_float32_is_near(keep: str) -> None:
    """Also after tokens that kept nothing, whose logarithms must not swallow those of the others."""
    case = draw(4 * CHUNK, keep)
    single = case.to(torch.float32)
    near = in_chunks(single, 4 * CHUNK)
    assert_close({name: x.double() for name, x in near.items()}, named(*token_by_token(case)), 5e-6)
    slopes = gradients(near, single._asdict())
    assert all(slope.isfinite().all() for slope in slopes.values())


def test_low_precision_goes_in_and_float32_comes_out() -> None:
    """Under autocast too."""
    low = draw(2 * CHUNK).to(torch.bfloat16)
    expected = in_chunks(low.to(torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        found = in_chunks(low)
        assert_close(found, expected, 0.0)
        assert all(slope.isfinite().all() for slope in gradients(found, low._asdict()).values())


def test_the_state_given_is_left_as_it_was() -> None:
    for length in (1, CHUNK, 2 * CHUNK):
        case = draw(length)
        before = case.state.detach().clone()
        in_chunks(case)
        assert torch.equal(case.state, before)


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch) -> Recurrence:
    """The other implementation, kept from rounding what it is given to float32."""
    with warnings.catch_warnings():
        # It warns where there is no GPU.
        warnings.simplefilter("ignore")
        found = pytest.importorskip("fla.ops.gla.naive", reason="the other implementation is not installed")
    monkeypatch.setattr(Tensor, "float", lambda x: x)
    recurrence: Recurrence = found.naive_recurrent_gla
    return recurrence


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
def test_same_reads(naive: Recurrence, dtype: torch.dtype, tolerance: float) -> None:
    """The other scales its queries, and has time before heads."""
    case = draw(3 * CHUNK + 2).to(dtype)
    case = case._replace(state=torch.zeros_like(case.state))
    reads, state = naive(*(x.transpose(1, 2) for x in case[:4]), output_final_state=True)
    scaled = case._replace(queries=case.queries * KEY_DIM**-0.5)
    assert_close(in_chunks(scaled), named(reads.transpose(1, 2), state.to(dtype)), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
def test_is_the_published_layer(naive: Recurrence, dtype: torch.dtype, tolerance: float) -> None:
    """Keys half as wide as values, gates of low rank over a temperature, a norm per head, a gate, no convolution."""
    one = GatedLinearAttention(24, 3, chunk=CHUNK)
    randomise(one, seed=0)
    one.to(dtype)
    x = torch.randn(2, 3 * CHUNK + 2, 24, generator=torch.Generator().manual_seed(0), dtype=dtype)
    queries, keys, values = (part.unflatten(-1, (3, -1)) for part in one.qkv(x).split((12, 12, 24), dim=-1))
    log_keep = F.logsigmoid(one.keep(one.low(x))) / 16
    reads, _ = naive(queries, keys, values, log_keep.unflatten(-1, (3, -1)))
    normal = reads * (reads.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * one.norm.weight
    expected = one.output(normal.flatten(2) * F.silu(one.gate(x)))
    assert_close({"said": one(x)}, {"said": expected}, tolerance)


def test_gates_begin_near_one() -> None:
    """The bias begins at zero: a token keeps a half to the sixteenth power."""
    one = build("gla", vocab_size=9, dim=32, depth=1, heads=2).get_submodule("blocks.0.mixer")
    assert isinstance(one, GatedLinearAttention)
    keep = one.log_keep(torch.zeros(1, 1, 32)).exp()
    assert torch.allclose(keep, torch.full_like(keep, 0.5 ** (1 / 16)))


def test_an_odd_head_has_keys_too() -> None:
    for dim, heads in ((9, 3), (3, 3), (10, 2)):
        logits = build("gla", vocab_size=9, dim=dim, depth=1, heads=heads)(torch.zeros(1, 5, dtype=torch.int64))
        assert logits.shape == (1, 5, 9)
