"""The form "kernel" is the definition: reads, the last memory and every gradient, within what its precision allows.

Without a GPU the kernels run in Triton's interpreter, on small memories. Both forms are given the same rounded numbers,
and the definition computes with them in float64; on long texts the chunked form does, which agrees with it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.memory import Form, MemorySpec, begin, stream
from lockstep.memory.kernel import unshifted, unsuited
from tests.kernels.memories import (
    DEVICE,
    Size,
    as_a_model_draws,
    away_from_turns,
    each_tensor,
    errors,
    everything,
    harsh,
    in_precision,
)
from tests.kernels.rounding import ProductsOfBfloat16
from tests.memory.cases import Case, Fields, Named, assert_close, held

pytest.importorskip("triton")
# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
SMALL = Size(16, 32, 16, batch=1)
LARGE = [Size(64, 128, 64), Size(64, 256, 64)]
"""For GPUs; two programs share a row of 256 hidden units."""
EXTREME = [Size(32, 64, 32), Size(64, 512, 64)]
"""For GPUs: others that models may have."""
ODD = [(Size(16, 128, 32), 70), (Size(32, 32, 16, heads=3), 32), (Size(16, 16, 16, batch=1, heads=1), 275)]
"""Other shapes and how many tokens: several blocks of hidden units, more chunks than a program adds up."""

DESCENT: Fields = {"rule": "gradient-descent"}
WHOLE: Fields = {"norm": True, "residual": True, "decay_to": "initial"}
SMOOTH: dict[str, Fields] = {
    "titans": WHOLE,
    "plain,silu,l3": {"activation": "silu", "bias": "lp", "p": 3},
    "descent,norm": {**DESCENT, "norm": True, "decay_to": "initial"},
    "descent,plain,huber": {**DESCENT, "bias": "huber", "huber_form": "norm"},
    "residual,huber,silu": {"residual": True, "bias": "huber", "activation": "silu"},
    "moneta": {**WHOLE, **DESCENT, "bias": "lp", "p": 3, "retention": "lq"},
    "plain,q3": {**DESCENT, "retention": "lq", "q": 3, "activation": "silu"},
    "memora": {**WHOLE, **DESCENT, "retention": "kl", "simplex": 16},
    "descent,norm,kl": {**DESCENT, "norm": True, "retention": "kl", "activation": "silu"},
}
"""Points of the grid: with those below, each choice in one of them at least."""
CORNERED: dict[str, Fields] = {
    "descent,plain,relu": {**DESCENT, "decay_to": "initial", "activation": "relu"},
    "residual,coordinate": {"residual": True, "decay_to": "initial", "bias": "huber", "huber_form": "coordinate"},
}
"""Second derivatives jump: a number on the other side of a corner is an error that no precision bounds."""
STEEP: dict[str, Fields] = {
    "whole,l1.5": {**WHOLE, **DESCENT, "bias": "lp", "p": 1.5, "activation": "silu"},
    "yaad": {**WHOLE, **DESCENT, "bias": "huber", "huber_form": "switch"},
}
"""Where an error changes its sign the loss turns within a thousandth: 16 bits do not tell on which side."""
POINTS = {**SMOOTH, **CORNERED, **STEEP}
every_point = pytest.mark.parametrize("name", POINTS)
each_way = pytest.mark.parametrize("name", ["titans", "moneta", "memora"])
"""Those that walk along a row by kernels of their own."""

EXACTLY, AT_CORNERS = 1e-4, 2e-3
"""Relative errors of norms with tokens of float32."""
ROUNDED, DIFFERENCES_ROUNDED, BESIDE = 1e-2, 2e-2, 1.5
"""The same with bfloat16: of all tensors but the gradients of gates and of the anchor, which are differences of larger
numbers; of those; and of all, on average, beside torch with such products."""


def spec_of(name: str, size: Size) -> MemorySpec:
    return MemorySpec(**POINTS[name], chunk=size.chunk)


def length_of(size: Size) -> int:
    """Some chunks, and tokens over, which torch takes."""
    return 1000 if size in LARGE else 37


def exact(case: Case) -> Named:
    definition: Form = "sequential" if case.keys.shape[2] < 100 else "chunked"
    return everything(each_tensor(Tensor.double, case), definition)


def on_the_device(case: Case) -> Case:
    return each_tensor(lambda x: x.to(DEVICE), case)


def require_exact(case: Case, bound: float = EXACTLY) -> None:
    found = errors(everything(case, "kernel"), exact(case))
    assert {name: error for name, error in found.items() if not error < bound} == {}
    assert "(memory)" in backend()


@pytest.mark.parametrize(("name", "length"), [*((name, 37) for name in POINTS), ("titans", 32)])
def test_harsh_memories_in_float32(name: str, length: int) -> None:
    """With exact zeros in the gates; some tokens over, which torch takes, or none."""
    case = on_the_device(harsh(spec_of(name, SMALL), SMALL, length, seed=length))
    require_exact(case, EXACTLY if name in SMOOTH else AT_CORNERS)


@pytest.mark.parametrize(("size", "length"), ODD, ids=str)
@each_way
def test_other_shapes(name: str, size: Size, length: int) -> None:
    require_exact(on_the_device(as_a_model_draws(spec_of(name, size), size, length)))


@each_way
def test_an_anchor_of_each_sample(name: str) -> None:
    require_exact(on_the_device(harsh(spec_of(name, SMALL), SMALL._replace(batch=2), 32, anchor_of_samples=True)))


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0, 5.5])
def test_other_norms_hold(q: float) -> None:
    """By a root below two, by two, which leaves weights as they are, and where a power meets no whole number."""
    spec = MemorySpec(**{**POINTS["moneta"], "q": q}, chunk=SMALL.chunk)
    require_exact(on_the_device(harsh(spec, SMALL, 37)))


def test_an_anchor_of_fewer_bits() -> None:
    """Its rows lose their shift in 32 bits."""
    case = on_the_device(harsh(spec_of("memora", SMALL), SMALL, 32))
    assert case.outer.initial is not None
    low = case._replace(outer=case.outer._replace(initial=tuple(x.bfloat16() for x in case.outer.initial)))
    high = case._replace(outer=case.outer._replace(initial=tuple(x.bfloat16().float() for x in case.outer.initial)))
    assert torch.equal(low.run("kernel")[0], high.run("kernel")[0])


def test_a_memory_that_begins_empty() -> None:
    """Of which lq's norm has no slope."""
    case = harsh(spec_of("plain,q3", SMALL), SMALL, 32)
    first, second = case.memory.weights
    case = case._replace(memory=case.memory._replace(weights=(first, torch.zeros_like(second))))
    found, wanted = everything(on_the_device(case), "kernel"), everything(each_tensor(Tensor.double, case), "chunked")
    assert_close(found, {name: x.to(found[name].device) for name, x in wanted.items()}, tolerance=1e-3)


@pytest.mark.skipif(not ON_A_GPU, reason="long texts need a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it")
@pytest.mark.parametrize("size", LARGE, ids=str)
@every_point
def test_long_texts_in_float32(name: str, size: Size) -> None:
    case = as_a_model_draws(spec_of(name, size), size, length_of(size))
    if size == LARGE[1] and case.spec.retention != "l2":
        pytest.skip(str(unsuited(case.queries, case.memory.weights, case.spec)))
    if case.spec.huber_form == "switch":
        case = away_from_turns(case)
    require_exact(on_the_device(case), EXACTLY if name in SMOOTH else AT_CORNERS)


def test_what_turns_cost_torch() -> None:
    """In float32, on long texts: more than any bound here. Away from them, nothing."""
    size = LARGE[0]
    case = as_a_model_draws(spec_of("yaad", size), size, length_of(size))
    apart = away_from_turns(case)
    found, found_apart = (errors(everything(one, "chunked"), exact(one)) for one in (case, apart))
    assert max(found.values()) > AT_CORNERS
    assert max(found_apart.values()) < EXACTLY / 10


@pytest.mark.parametrize("size", [SMALL._replace(batch=2), *([*LARGE, *EXTREME] if ON_A_GPU else ())], ids=str)
@every_point
def test_memories_in_bfloat16(name: str, size: Size) -> None:
    """As a model draws them; beside torch, where corners leave nothing else to compare with."""
    drawn = as_a_model_draws(spec_of(name, size), size, length_of(size))
    case = on_the_device(in_precision(drawn, torch.bfloat16))
    wanted = exact(case)
    found = errors(everything(case, "kernel"), wanted)
    with ProductsOfBfloat16() as products:
        beside = errors(everything(case, "chunked"), wanted)
    assert products.seen
    compared = [tensor for tensor in found if name not in STEEP or not tensor.startswith("gradient")]
    ratios = [math.log(found[tensor] / beside[tensor]) for tensor in compared]
    assert math.exp(sum(ratios) / len(ratios)) < BESIDE
    if name in SMOOTH:
        assert {tensor: error for tensor, error in found.items() if not error < allowed(tensor, beside[tensor])} == {}


def allowed(tensor: str, beside: float) -> float:
    """Of an error in bfloat16. Where Huber's second derivative jumps, torch itself is beyond any bound."""
    bound = DIFFERENCES_ROUNDED if tensor.startswith("gradient of gates.") else ROUNDED
    return max(bound, BESIDE * beside)


def test_what_bfloat16_costs_torch() -> None:
    """Far more than float32, and not so much that the comparison above would allow anything."""
    case = in_precision(as_a_model_draws(spec_of("titans", SMALL), SMALL, 37), torch.bfloat16)
    wanted = exact(case)
    plain = errors(everything(case, "chunked"), wanted)
    with ProductsOfBfloat16():
        rounded = errors(everything(case, "chunked"), wanted)
    gates = [name for name in plain if "gates." in name]
    assert all(plain[name] < 1e-5 < 1e-3 < rounded[name] < DIFFERENCES_ROUNDED for name in gates)


def test_fewer_tokens_than_a_chunk() -> None:
    """Nothing is left to the kernels."""
    case = on_the_device(harsh(spec_of("titans", SMALL), SMALL, 7))
    found, wanted = case.run("kernel"), case.run("chunked")
    assert torch.equal(found[0], wanted[0])
    assert_close(held(found[1]), held(wanted[1]), tolerance=0)
    assert backend() == "torch"


@pytest.mark.parametrize("cut", [16, 21, 48])
@each_way
def test_a_text_that_is_cut(name: str, cut: int) -> None:
    """Pieces that begin inside of a chunk are finished by torch, and the kernels go on at the next."""
    case = on_the_device(harsh(spec_of(name, SMALL), SMALL, 70))
    wanted, last = case.run("sequential")
    state, reads = begin(case.memory), []
    for piece in (case.between(0, cut), case.between(cut, 70)):
        said, state = stream(*piece[1:5], state, case.spec, case.outer, by_kernel=True)
        reads.append(said)
    assert_close({"reads": torch.cat(reads, dim=2)}, {"reads": wanted}, tolerance=1e-4)
    after = last._replace(weights=unshifted(state.weights, case.spec), velocity=state.velocity)
    last = last._replace(weights=unshifted(last.weights, case.spec))
    assert_close(held(after), held(last), tolerance=1e-4)
    assert "(memory)" in backend()
