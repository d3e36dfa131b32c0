"""A token that our kernel takes from its projections on, rows and gates and all, is one by torch; and so is its tail.

Without a GPU the kernel runs in Triton's interpreter. Both are given the same rounded numbers, and torch computes with
them in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lockstep.kernels.attention import looking
from lockstep.kernels.memory import token as memory_token
from lockstep.kernels.record import backend, recorded_in
from lockstep.kernels.rows import token as rows
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec
from lockstep.memory.ownership import given_up
from lockstep.models.decoding import Decoder, own
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, Observation
from lockstep.models.registry import build
from lockstep.models.state import State, map_state, named_tensors, stack
from lockstep.training import compilation
from tests.kernels.memories import DEVICE
from tests.kernels.test_memory_operator import NUMBERS, SHAPES
from tests.memory.cases import Fields
from tests.training.test_compilation import telling

pytest.importorskip("triton")

from lockstep.kernels.memory import token_brought, token_operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
PRECISIONS = [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)]
FEW = 12
"""Programs of a device that are still run one after the other."""
DESCENT: Fields = {"rule": "gradient-descent"}
HUBER: Fields = {"bias": "huber"}
KINDS: dict[str, tuple[Fields, bool]] = {
    "keep, rate, momentum": ({"norm": True, "residual": True, "decay_to": "initial"}, True),
    "rate, momentum": ({}, False),
    "keep, rate": (DESCENT, True),
    "rate": (DESCENT, False),
    "keep, rate, momentum, threshold": ({**HUBER, "norm": True}, True),
    "rate, threshold": ({**DESCENT, **HUBER}, False),
    "lq": ({**DESCENT, "retention": "lq", "norm": True, "decay_to": "initial"}, True),
    "kl": ({**DESCENT, "retention": "kl", "norm": True, "decay_to": "initial"}, True),
}
"""Gates that are there: a memory's fields, and whether it forgets."""
USUAL = "keep, rate, momentum"


class Size(NamedTuple):
    """Of a memory with heads `width` wide."""

    taps: int = 4
    width: int = 16
    heads: int = 2
    batch: int = 3


SIZES = [Size(), Size(taps=2), Size(taps=3, heads=3, batch=1), Size(heads=1, width=64, batch=1), Size(2, 32, 3, 1)]
ON_GPUS = [Size(width=64, heads=8, batch=1), Size(width=64, heads=16, batch=8), Size(8, 64, 3, 2)]
"""As models have them."""
ALL_SIZES = SIZES + (ON_GPUS if ON_A_GPU else [])


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every single token by our kernels, of whom it may be."""
    monkeypatch.setattr(rows, "takes", lambda projected, *_: projected.shape[1] == 1)
    monkeypatch.setattr(token_operator, "PROGRAMS", token_operator.PROGRAMS if ON_A_GPU else FEW)


@torch.no_grad()
def drawn(size: Size, dtype: torch.dtype = torch.float32, kind: str = USUAL) -> NeuralMemory:
    """A layer with parameters of this precision, and gates that begin as a model's do, each at its own place."""
    fields, decay = KINDS[kind]
    spec = MemorySpec(**{"chunk": 4, "expansion": 2, **fields})
    layer = NeuralMemory(size.heads * size.width, size.heads, spec, conv=size.taps, decay=decay)
    randomise(layer, seed=0)
    layer.initialise()
    layer.gates.bias.add_(0.3 * torch.randn(layer.gates.bias.shape, generator=torch.Generator().manual_seed(1)))
    return layer.to(DEVICE, dtype)


@torch.no_grad()
def read_norm(size: Size, dtype: torch.dtype) -> nn.RMSNorm:
    """With weights of both signs, and an epsilon that tells."""
    norm = nn.RMSNorm(size.width, eps=1e-2)
    norm.weight.copy_(torch.randn(size.width, generator=torch.Generator().manual_seed(2)))
    return norm.to(DEVICE, dtype)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@torch.no_grad()
def begun(layer: NeuralMemory, batch: int) -> NeuralState:
    """Some tokens into texts, the first of them further than the others, in tensors of its own."""
    text = normal(batch, 7, layer.dim, seed=5, dtype=layer.qkv.weight.dtype)
    states = [layer.step(text[sample : sample + 1, : 6 if sample else 7], None)[1] for sample in range(batch)]
    owned: NeuralState = map_state(own, stack(states))
    return owned


def doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.clone()


@contextmanager
def ran() -> Iterator[set[str]]:
    """Names of our kernels that do inside, known behind it."""
    found: set[str] = set()
    with recorded_in(set()):
        yield found
        # "torch; triton (one, another)"
        found |= set(filter(None, backend().partition("(")[2].rstrip(")").split(", ")))


@torch.no_grad()
def require_close(size: Size, dtype: torch.dtype, bound: float, kind: str = USUAL, normed: bool = False) -> None:
    """Over more tokens than a tail and a chunk have: what is read, and all of the state."""
    layer = drawn(size, dtype, kind)
    exact, norm = copy.deepcopy(layer).double(), read_norm(size, dtype) if normed else None
    exact_norm = None if norm is None else copy.deepcopy(norm).double()
    state = begun(layer, size.batch)
    theirs: NeuralState = map_state(doubled, state)
    for t in range(size.taps + 4):
        x = normal(size.batch, 1, layer.dim, seed=100 + t, dtype=dtype)
        projected = layer.qkv(x).double()  # which is rounded: both go on from the same
        exact.qkv.forward = lambda _, projected=projected: projected  # type: ignore[method-assign, misc]
        wanted, theirs = exact.step(x.double(), theirs, norm=exact_norm)
        with given_up(), ran() as kernels:
            found, after = layer.step(x, state, norm=norm)
        assert kernels == {"memory token"}
        assert after.tail is state.tail
        assert found.dtype is dtype
        state = after
        ours = {"reads": found, **dict(named_tensors(state))}
        for name, other in {"reads": wanted, **dict(named_tensors(theirs))}.items():
            error = float((ours[name].double() - other).norm() / other.double().norm().clamp_min(1e-6))
            assert error < bound, f"token {t}: {name} is {error:.2g} off"


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", ALL_SIZES, ids=str)
def test_sizes(size: Size, dtype: torch.dtype, bound: float) -> None:
    require_close(size, dtype, bound)


@pytest.mark.parametrize("kind", KINDS)
def test_gates_that_are_there(kind: str) -> None:
    require_close(Size(), torch.float32, EXACTLY, kind)


@pytest.mark.parametrize("programs", [1, FEW], ids="{} programs".format)
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
def test_a_norm_of_what_is_read(
    dtype: torch.dtype, bound: float, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_operator, "PROGRAMS", programs)
    require_close(Size(heads=3), dtype, bound, normed=True)


@torch.no_grad()
def test_what_is_normalised_is_as_precise_as_the_norm() -> None:
    """As it is without our kernel, where a model in 32 bits has its products in 16."""
    size = Size(heads=3)
    layer, norm = drawn(size, torch.bfloat16), read_norm(size, torch.float32)
    state, x = begun(layer, size.batch), normal(size.batch, 1, layer.dim, seed=1, dtype=torch.bfloat16)
    wanted, _ = layer.step(x, state, norm=norm)
    with given_up(), ran() as kernels:
        found, _ = layer.step(x, state, norm=norm)
    assert kernels == {"memory token"}
    assert found.dtype is wanted.dtype is torch.float32
    assert (found - wanted).norm() < 3 * ROUNDED * wanted.norm()


def test_one_program_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_operator, "PROGRAMS", 1)
    require_close(Size(), torch.float32, EXACTLY)


def test_inputs_that_are_multiplied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_brought, "AT_ONCE", 16)
    require_close(Size(heads=3), torch.float32, EXACTLY)


@torch.no_grad()
def test_gates_of_any_input_are_bounded() -> None:
    """Closed or wide open, nothing overflows on the way."""
    for bias in (-200.0, 200.0):
        layer = drawn(Size(), kind="keep, rate, momentum, threshold")
        layer.gates.bias.fill_(bias)
        layer.largest_rate = 1e-3
        state, x = begun(layer, 3), normal(3, 1, layer.dim, seed=0)
        wanted, theirs = layer.step(x, state)
        with given_up():
            found, ours = layer.step(x, state)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        for one, other in zip(ours.memory.weights, theirs.memory.weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [Size(), *[Size(width=64, heads=16, batch=64)] * ON_A_GPU], ids=str)
@torch.no_grad()
def test_many_rows_are_given_what_they_bring(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_token, "FEW", min(memory_token.FEW, size.heads * size.batch - 1))
    layer = drawn(size)
    x = normal(size.batch, 1, layer.dim, seed=6)
    wanted, _ = layer.step(x, begun(layer, size.batch))
    with given_up(), ran() as kernels:
        found, _ = layer.step(x, begun(layer, size.batch))
    assert kernels == ({"token rows", "memory token"} if ON_A_GPU else {"token rows"})
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def given(size: Size) -> tuple[Any, ...]:
    """What the operator is given."""
    layer = drawn(size)
    state, x = begun(layer, size.batch), normal(size.batch, 1, layer.dim, seed=1)
    layer.requires_grad_(False)
    projected = layer.bringing(layer.qkv(x), x, state.tail, read_norm(size, torch.float32).requires_grad_(False))
    held = [list(pair) for pair in state.memory[:3]]
    around, setting = memory_token.around(state.memory, layer.spec, layer.outer), memory_token.setting_of(layer.spec)
    return *projected, *around, *held, state.memory.position, *setting


def test_nothing_but_tail_and_state_is_written_over() -> None:
    """Of samples whose neighbours in memory are others'."""
    arguments = list(given(Size()))
    room = normal(5, 3, 96, seed=2)
    arguments[2] = room[1:4]
    before, around = [copy.deepcopy(one) for one in arguments], room.clone()
    token_operator.memory_token_of_(*arguments)
    for place, (one, other) in enumerate(zip(arguments, before, strict=True)):
        if isinstance(one, Tensor):
            assert torch.equal(one, other) == (place not in (2, 19)), place
    assert torch.equal(room[[0, 4]], around[[0, 4]])


def test_tails_that_lie_otherwise_are_named() -> None:
    arguments = list(given(Size()))
    arguments[2] = arguments[2].mT.contiguous().mT
    with pytest.raises(ValueError, match="a tail that is written over must be in one piece"):
        token_operator.memory_token_of_(*arguments)


def test_it_is_an_operator() -> None:
    """Torch's own examination."""
    torch.library.opcheck(token_operator.memory_token_of_, given(Size(batch=1)), test_utils=(*SHAPES, NUMBERS))


@torch.no_grad()
def test_who_is_observed_has_rows() -> None:
    layer, seen = drawn(Size()), list[Observation]()
    state, x = begun(layer, 3), normal(3, 1, 32, seed=6)
    layer.observer = seen.append
    wanted, _ = layer.step(x, state)
    with given_up():
        found, after = layer.step(x, state)
    assert after.tail is state.tail
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for one, other in zip(*((*each[:3], *(g for g in each.gates if g is not None)) for each in seen), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_what_is_frozen_is_left_as_it_is() -> None:
    layer = drawn(Size())
    state, layer.ablation = begun(layer, 3), "frozen"
    before = [matrix.clone() for matrix in state.memory.weights]
    with given_up(), ran() as kernels:
        _, after = layer.step(normal(3, 1, 32, seed=6), state)
    assert "memory token" not in kernels or ON_A_GPU, "rows of a frozen memory are given to it, where it may run"
    assert all(torch.equal(x, y) for x, y in zip(before, after.memory.weights, strict=True))


@torch.no_grad()
def test_a_compiler_takes_it_in_one_graph() -> None:
    layer, x = drawn(Size()), normal(3, 1, 32, seed=6)
    wanted, last = layer.step(x, begun(layer, 3))
    state = begun(layer, 3)
    torch._dynamo.reset()
    with given_up(), ran() as kernels:
        found, _ = torch.compile(layer.step, fullgraph=True, backend="aot_eager")(x, state, 6)
    assert kernels == {"memory token"}
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.tail, last.tail)


FIELDS: dict[str, dict[str, Any]] = {
    "linear": {"memory_depth": 1},
    "titans-mac": {"segment": 16},
    "titans-mag": {"window": 8},
    "titans-mal": {"window": 8},
}


def small(name: str) -> tuple[LanguageModel, Tensor, State]:
    """A model, two texts of 36 tokens, and the state after 29 of them."""
    architecture = "titans-lmm" if name == "linear" else name
    sizes = {"vocab_size": 17, "max_length": 64, "dim": 32, "depth": 1, "heads": 2, "chunk": 16}
    model = build(architecture, **sizes, **FIELDS.get(name, {})).to(DEVICE).eval()
    randomise(model, seed=0)
    tokens = torch.randint(17, (2, 36), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    _, state = model.step(tokens[:, :29], model.initial_state(2, capacity=36))
    return model, tokens, state


@pytest.mark.parametrize(
    "name", ["titans-lmm", "titans-mac", "titans-mal", "yaad", "moneta", "memora", "ttt-mlp", "linear"]
)
@torch.inference_mode()
def test_models_decode_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by torch. TTT's rows are made otherwise, and of a linear memory's token ours makes the rows alone."""
    model, tokens, state = small(name)

    def said(ours: bool) -> tuple[Tensor, set[str]]:
        monkeypatch.setattr(rows, "takes", lambda projected, *_: ours and projected.shape[1] == 1)
        monkeypatch.setattr(memory_token, "takes", lambda queries, *kind: ours and memory_token.knows(*kind))
        with ran() as kernels:
            decoder = Decoder(model, state)
            return torch.stack([decoder.step(tokens[:, place, None]) for place in range(29, 36)]), kernels

    (wanted, others), (found, kernels) = said(ours=False), said(ours=True)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    wanted_ones = {"linear": {"token rows"}, "titans-mac": {"memory token", "recall token"}}.get(name, {"memory token"})
    assert kernels - others - ({"token rows"} if name == "titans-mac" else set()) == wanted_ones


@pytest.mark.parametrize("name", ["titans-lmm", "titans-mac", "titans-mag", "titans-mal", "yaad", "memora"])
@torch.inference_mode()
def test_what_is_compiled_around_it_begins_early(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that our kernels are given is made of what was loaded."""
    found: list[bool] = []
    monkeypatch.delenv("LOCKSTEP_PDL", raising=False)
    monkeypatch.setattr(compilation, "in_turn_unless_all_load", telling(found))
    monkeypatch.setattr(memory_token, "takes", lambda queries, *kind: queries.shape[2] == 1)
    monkeypatch.setattr(looking, "takes", lambda projected, *_: projected.shape[1] == 1)
    model, tokens, state = small(name)
    wanted = Decoder(model, state).step(tokens[:, 29:30])
    torch._dynamo.reset()
    compilation.compile_steps(model)
    with ran() as kernels:
        said = Decoder(model, state).step(tokens[:, 29:30])
    assert "memory token" in kernels
    torch.testing.assert_close(said, wanted, rtol=1e-3, atol=1e-4)
    assert set(found) == {True}
