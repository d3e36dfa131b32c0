"""What our kernels make of what attention and memory say is what torch makes of it: numbers and every gradient.

Without a GPU the kernels run in Triton's interpreter, on short texts. Both are given the same rounded numbers, and
torch computes with them in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.rows import joined
from lockstep.laws.subject import randomise
from lockstep.models.mixers.memory_gate import EPSILON, MemoryGate
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE, errors
from tests.kernels.test_memory_operator import NUMBERS, SHAPES, far, learned
from tests.memory.cases import Named

pytest.importorskip("triton")

from lockstep.kernels.rows import joined_operator as operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-5, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
PRECISIONS = [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)]
PARAMETERS = ("attention_weight", "attention_bias", "read_weight", "read_bias")


class Size(NamedTuple):
    """Of a text in pieces, and of heads `width` wide."""

    times: tuple[int, ...] = (37,)
    heads: int = 3
    width: int = 16
    batch: int = 2


SIZES = {
    "a text": Size(),
    "pieces": Size((16, 16, 5)),
    "one token": Size((1,), batch=1),
    "as many as a program has": Size((64,), heads=1, batch=1),
    "one more": Size((65, 2), heads=1),
    "wide heads": Size((3, 70), heads=2, width=128, batch=1),
}
ON_GPUS = {
    "a long text": Size((4096,), heads=8, width=64),
    "segments": Size((1024,) * 4, heads=8, width=64, batch=3),
    "odd ones": Size((1024, 1024, 333), heads=5, width=64),
    "wide heads": Size((777,), heads=4, width=128),
}
"""As models have them."""


class Case(NamedTuple):
    attended: list[Tensor]  # [batch, time, dim]
    reads: list[Tensor]  # [batch, time, heads, width], each head's tokens side by side
    learned: list[Tensor]  # [dim]

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for; all lies as it did."""
        return Case(*([x.detach().to(dtype, copy=True).requires_grad_() for x in part] for part in self))

    @property
    def all(self) -> list[Tensor]:
        return [*self.attended, *self.reads, *self.learned]


def draw(size: Size, dtype: torch.dtype = torch.float32, seed: int = 0) -> Case:
    """Numbers of this precision, in float32; tokens of which nothing is said are among them."""
    generator, dim = torch.Generator().manual_seed(seed), size.heads * size.width

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).float().to(DEVICE)

    attended = [normal(size.batch, time, dim) for time in size.times]
    reads = [normal(size.batch, size.heads, time, size.width).transpose(1, 2) for time in size.times]
    for x in (*attended, *reads):
        x[:, 2::7] = 0
    return Case(attended, reads, [normal(dim) for _ in PARAMETERS])


def by_torch(case: Case, size: Size) -> Named:
    """As a gate does it that has these weights and biases."""
    exact = case.to(torch.float64)
    gate = MemoryGate(size.heads * size.width, size.heads).to(DEVICE)
    for name, parameter in zip(PARAMETERS, exact.learned, strict=True):
        delattr(gate, name)
        setattr(gate, name, parameter)
    y = gate(exact.attended, exact.reads)
    assert backend() == "torch"
    return everything(exact, y)


def by_kernel(case: Case, dtype: torch.dtype) -> Named:
    tracked = case.to(torch.float32)
    tokens = [[x.to(dtype) for x in part] for part in tracked[:2]]
    y = operator.joined(*tokens, *tracked.learned, EPSILON)
    assert "(joined)" in backend()
    assert y.dtype is dtype
    return everything(tracked, y)


def everything(case: Case, y: Tensor) -> Named:
    """What comes out, and the gradients of what came in, in double precision; the adjoint is the same for any."""
    adjoint = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).bfloat16().to(y)
    gradients = torch.autograd.grad(y, case.all, adjoint)
    named = {f"gradient {number}": x for number, x in enumerate(gradients)}
    return {name: x.detach().double() for name, x in {"y": y, **named}.items()}


def require_close(size: Size, dtype: torch.dtype, bound: float) -> None:
    case = draw(size, dtype)
    wanted = by_torch(case, size)
    found = errors(by_kernel(case, dtype), wanted)
    assert {name: error for name, error in found.items() if not error < bound} == {}


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_numbers(size: Size, dtype: torch.dtype, bound: float) -> None:
    require_close(size, dtype, bound)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
def test_sizes_of_models(size: Size, dtype: torch.dtype, bound: float) -> None:
    require_close(size, dtype, bound)


def test_attention_may_be_of_32_bits() -> None:
    """As under autocast, where reads are of 16, and so may weights and biases be."""
    size = Size((37,))
    case = draw(size, torch.bfloat16)
    wanted = by_torch(case, size)["y"]
    reads = [x.bfloat16() for x in case.reads]
    for low in (torch.float32, torch.bfloat16):
        y = operator.joined(case.attended, reads, *(x.to(low) for x in case.learned), EPSILON)
        assert y.dtype is torch.bfloat16
        assert float((y.double() - wanted).norm() / wanted.norm()) < ROUNDED


def test_pieces_make_the_whole() -> None:
    """To the last bit, and so do what they give back."""
    whole = draw(Size((37,)))
    attended, reads = ([piece for x in part for piece in x.split((16, 16, 5), dim=1)] for part in whole[:2])
    cut = Case(attended, reads, whole.learned)
    one, other = by_kernel(whole, torch.bfloat16), by_kernel(cut, torch.bfloat16)
    assert torch.equal(one["y"], other["y"])
    for number in range(2):
        pieces = [other[f"gradient {3 * number + piece}"] for piece in range(3)]
        assert torch.equal(one[f"gradient {number}"], torch.cat(pieces, dim=1))


def test_adjoints_lie_as_reads_do() -> None:
    """Head by head or token by token: whoever made the reads takes them without a copy."""
    case = draw(Size((9,)))
    for reads in (case.reads[0], case.reads[0].contiguous(), case.reads[0].mT.contiguous().mT):
        y_bar = torch.randn(2, 9, 48, device=DEVICE)
        _, (bar,), _ = operator.joined_backward(case.attended, [reads], *case.learned, y_bar, EPSILON)
        assert bar.stride() == operator.in_order(reads).stride()
        assert torch.equal(operator.joined(case.attended, [reads], *case.learned, EPSILON), joined_of(case))


def joined_of(case: Case) -> Tensor:
    y: Tensor = operator.joined(*case[:2], *case.learned, EPSILON)
    return y


def test_nothing_else_is_kept() -> None:
    """For the way back, but what came in."""
    case = draw(Size((9, 4))).to(torch.float32)
    kept: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        joined_of(case)
    assert [x.data_ptr() for x in kept] == [x.data_ptr() for x in case.all]


def test_it_is_an_operator() -> None:
    """Torch's own examination, both ways."""
    case = draw(Size((9, 4)))
    given = case.to(torch.float32)
    torch.library.opcheck(operator.joined, (*given[:2], *given.learned, EPSILON), test_utils=(*SHAPES, NUMBERS))
    backwards = (*case[:2], *case.learned, torch.randn(2, 13, 48, device=DEVICE), EPSILON)
    torch.library.opcheck(operator.joined_backward, backwards, test_utils=(*SHAPES, NUMBERS))


def test_who_is_taken() -> None:
    """Texts of bfloat16 on a GPU; all else is left to torch."""
    attended = torch.zeros(1, 5, 128, device=DEVICE, dtype=torch.bfloat16)
    reads = attended.unflatten(-1, (2, 64))
    assert joined.takes([attended], [reads]) == ON_A_GPU
    assert joined.takes([attended.float()], [reads]) == ON_A_GPU
    assert not joined.takes([attended], [None])
    assert not joined.takes([attended], [reads.float()])
    assert not joined.takes([attended.double()], [reads])
    assert joined.takes([attended[:, :1]], [reads[:, :1]]) == ON_A_GPU
    assert not joined.takes([attended], [attended.unflatten(-1, (16, 8))])


class TestModels:
    """Models whose gates are forced through the kernels."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(joined, "takes", lambda *_: True)

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    # And recommends a lower precision where it finds products of 32 bits.
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
    # And asks what is no leaf for its gradient.
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
    @pytest.mark.parametrize("name", ["titans-mac", "titans-mag"])
    def test_one_graph_learns_alike(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiled or not, and as by torch."""
        fields = {"chunk": 8, "segment": 8, "window": 5, "memory_depth": 1}
        model = build(name, vocab_size=17, dim=32, depth=1, heads=2, **fields).to(DEVICE).train()
        randomise(model, seed=0)
        eager = learned(model, model)
        assert "(joined)" in backend()
        torch._dynamo.reset()
        compiled = learned(model, torch.compile(model, backend="inductor" if ON_A_GPU else "aot_eager"))
        monkeypatch.setattr(joined, "takes", lambda *_: False)
        by_torch = learned(model, model)
        for parameter, wanted in by_torch.items():
            assert far(compiled[parameter], eager[parameter]) < 1e-5, parameter
            assert far(eager[parameter], wanted) < 1e-4, parameter
