"""Rows that our kernels make of a memory's projections are those that torch makes: numbers and every gradient.

Without a GPU the kernels run in Triton's interpreter, on short texts. Both are given the same rounded numbers, and
torch computes with them in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.rows import choice
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec
from lockstep.models.mixers import delta_net, mamba2
from lockstep.models.mixers.convolution import tail_after
from lockstep.models.mixers.delta_net import GatedDeltaNet
from lockstep.models.mixers.mamba2 import Mamba2
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE, errors
from tests.kernels.test_memory_operator import NUMBERS, SHAPES, far, learned
from tests.memory.cases import Named

pytest.importorskip("triton")

from lockstep.kernels.rows import operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with projections of float32 and of bfloat16."""
PRECISIONS = [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)]


class Size(NamedTuple):
    """Of a text, and of a memory with heads `width` wide."""

    time: int = 37
    width: int = 16
    taps: int = 4
    heads: int = 2
    batch: int = 2
    parts: int = 3
    after: bool = True
    """Whether something came before."""


SIZES = {
    "a text": Size(after=False),
    "going on": Size(),
    "queries alone": Size(parts=1),
    "queries of a text": Size(parts=1, after=False),
    "one token": Size(time=1),
    "fewer than a tail": Size(time=2),
    "as many as a tail": Size(time=3),
    "two taps": Size(time=13, taps=2),
    "eight taps": Size(time=11, taps=8),
    "walks shorter than a tail": Size(time=61, taps=8, width=32),
    "one head": Size(time=20, heads=1, batch=1),
    "narrow heads": Size(time=9, width=4, heads=3),
    "programs side by side": Size(time=275, width=64, heads=1, batch=1),
    "wide heads": Size(time=131, width=128, heads=1, batch=1, parts=1),
}
ON_GPUS = {
    "a long text": Size(time=4096, width=64, heads=8, after=False),
    "an odd one": Size(time=1999, width=64, heads=3),
    "wide ones": Size(time=1024, width=128, heads=4, parts=1),
    "most taps": Size(time=777, width=128, taps=8),
}
"""As models have them."""


class Case(NamedTuple):
    """What rows are made of, channels last."""

    projected: Tensor  # [batch, time, parts × heads × width]
    weight: Tensor  # [taps, 1, channels], as a convolution has it
    tail: Tensor  # [batch, taps - 1, channels]

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return Case(*(x.detach().to(dtype, copy=True).requires_grad_() for x in self))


def draw(size: Size, dtype: torch.dtype = torch.float32, seed: int = 0) -> Case:
    """Numbers of this precision, in float32; a token that says nothing is among them."""
    generator, channels = torch.Generator().manual_seed(seed), size.parts * size.heads * size.width

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).float().to(DEVICE)

    projected, tail = normal(size.batch, size.time, channels), normal(size.batch, size.taps - 1, channels)
    projected[:, size.time // 2] = 0
    return Case(projected, normal(size.taps, 1, channels), tail if size.after else torch.zeros_like(tail))


def by_torch(case: Case, size: Size) -> Named:
    """As a memory does it whose convolution has these weights."""
    exact = case.to(torch.float64)
    layer = NeuralMemory(size.heads * size.width, size.heads, MemorySpec(), conv=size.taps).to(DEVICE)
    assert layer.conv is not None
    del layer.conv.weight
    layer.conv.weight = exact.weight  # type: ignore[assignment] # no parameter, so that its gradient can be asked for
    position = torch.zeros(size.batch, device=DEVICE)
    *made, after = (
        layer.query_rows(exact.projected, exact.tail)
        if size.parts == 1
        else layer.rows(exact.projected, exact.tail, position)
    )
    assert isinstance(after, Tensor)
    assert backend() == "torch"
    return everything(exact, [*(x.flatten(0, 1) for x in made), after])


def by_kernel(case: Case, size: Size, dtype: torch.dtype) -> Named:
    tracked = case.to(torch.float32)
    projected = tracked.projected.to(dtype)
    made, after = operator.rows(projected, tracked.weight[:, 0], tracked.tail, *setting(size))
    assert "(rows)" in backend()
    assert all(x.dtype is dtype and x.is_contiguous() for x in made)
    return everything(tracked, [*made, after])


def setting(size: Size) -> tuple[None, list[int], list[float], float, bool]:
    """No bias, heads and lengths of the parts, how rows lie, as a memory asks: queries and keys are unit vectors."""
    return None, [size.heads] * size.parts, [1.0, 1.0, 0.0][: size.parts], 1e-6, False


def everything(case: Case, made: list[Tensor]) -> Named:
    """Rows, the tail after them, and the gradients of what both are made of, in double precision.

    Adjoints are the same for any.
    """
    generator = torch.Generator().manual_seed(5)
    adjoints = [torch.randn(x.shape, generator=generator).bfloat16().to(x) for x in made]
    gradients = torch.autograd.grad(made, list(case), adjoints)
    named = {f"gradient of {name}": x for name, x in zip(case._fields, gradients, strict=True)}
    rows = {f"part {part}": x for part, x in enumerate(made)}
    return {name: x.detach().double() for name, x in {**rows, **named}.items()}


def require_close(size: Size, dtype: torch.dtype, bound: float) -> None:
    case = draw(size, dtype)
    wanted = by_torch(case, size)
    found = errors(by_kernel(case, size, dtype), wanted)
    assert {name: error for name, error in found.items() if not error < bound} == {}


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_rows(size: Size, dtype: torch.dtype, bound: float) -> None:
    require_close(size, dtype, bound)


@pytest.mark.parametrize("name", ["a text", "walks shorter than a tail", "programs side by side", "wide heads"])
def test_walks_of_many_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long texts of many samples have them: here of short ones, in few programs."""
    monkeypatch.setattr(operator, "PROGRAMS", 1)
    require_close(SIZES[name], torch.float32, EXACTLY)


SPANS = {
    "a long text": (Size(time=4096, width=64, heads=8, batch=16), 64, 1024),
    "more samples": (Size(time=4096, width=64, heads=8, batch=64), 64, 4096),
    "a segment": (Size(time=1024, width=64, heads=8, batch=16), 16, 1024),
    "a segment and some": (Size(time=1030, width=64, heads=8, batch=16), 16, 1152),
    "one sample": (Size(time=32768, width=64, heads=8, batch=1), 32, 1024),
    "too short for so many": (Size(time=1024, width=64, heads=8, batch=1), 4, 256),
    "samples for all": (Size(time=37, width=64, heads=8, batch=128), 8, 1024),
    "one token": (Size(time=1, width=64, heads=8, batch=16), 4, 128),
}
"""With the tokens of a walker, and the programs of a launch."""


@pytest.mark.parametrize(("size", "span", "programs"), SPANS.values(), ids=SPANS)
def test_walks_leave_enough_programs(size: Size, span: int, programs: int) -> None:
    channels = size.parts * size.heads * size.width
    shapes = (size.batch, size.time, channels), (size.taps, channels), (size.batch, size.taps - 1, channels)
    projected, weight, tail = (torch.empty(shape, device="meta") for shape in shapes)
    given = operator.Projections(projected, weight, tail, *setting(size))
    assert (given.span, given.grid(0)) == (span, (programs,))


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
def test_sizes_of_models(size: Size, dtype: torch.dtype, bound: float) -> None:
    require_close(size, dtype, bound)


def test_pieces_make_the_whole() -> None:
    """A text in two, the second after the first's last tokens, gives the rows of the whole, to the last bit."""
    size, cut = Size(time=41), 18
    projected, weight, tail = draw(size)

    def made(x: Tensor, before: Tensor) -> list[Tensor]:
        rows, after = operator.rows(x, weight[:, 0], before, *setting(size))
        return [*rows, after]

    *first, between = made(projected[:, :cut], tail)
    *second, last = made(projected[:, cut:], between)
    *wholes, end = made(projected, tail)
    for whole, *pieces in zip(wholes, first, second, strict=True):
        assert torch.equal(whole, torch.cat(pieces, dim=1))
    assert torch.equal(last, end)


def test_it_repeats_itself() -> None:
    size = Size(time=275, width=64, heads=1, batch=1)
    one, other = (by_kernel(draw(size, torch.bfloat16), size, torch.bfloat16) for _ in range(2))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("parts", [1, 3])
def test_a_part_that_nobody_needs(parts: int) -> None:
    """Adjoints that there are none of are zeros."""
    size = Size(time=9, parts=parts)
    case = draw(size).to(torch.float32)
    made, _ = operator.rows(case.projected, case.weight[:, 0], case.tail, *setting(size))
    alone, *others = torch.autograd.grad(made[0].square().sum() + made[0].sum(), list(case))[0].chunk(parts, dim=-1)
    assert alone.abs().amax() > 0
    assert all(x.abs().amax() == 0 for x in others)


@pytest.mark.parametrize("time", [1, 2, 3, 9])
def test_a_tail_alone(time: int) -> None:
    """Its adjoint goes to the tokens that are in it, of the text or of the tail before, and to nobody else."""
    size = Size(time=time)
    case = draw(size).to(torch.float32)
    _, after = operator.rows(case.projected, case.weight[:, 0], case.tail, *setting(size))
    bar = torch.randn_like(after)
    found = torch.autograd.grad(after, list(case), bar)
    wanted = torch.autograd.grad(tail_after(case.projected, case.tail), [case.projected, case.tail], bar)
    torch.testing.assert_close((found[0], found[2]), wanted, rtol=0, atol=0)
    assert found[1].abs().amax() == 0


def test_nothing_else_is_kept() -> None:
    """For the way back, but what rows are made of."""
    size = Size(time=9)
    projected, weight, tail = (x.detach().requires_grad_() for x in draw(size))
    given = projected, weight[:, 0], tail
    kept: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        operator.rows(*given, *setting(size))
    assert [x.data_ptr() for x in kept] == [x.data_ptr() for x in given]


@pytest.mark.parametrize("parts", [1, 3])
def test_it_is_an_operator(parts: int) -> None:
    """Torch's own examination, both ways."""
    size = Size(time=9, parts=parts, heads=1)
    projected, weight, tail = draw(size)
    given = [x.detach().requires_grad_() for x in (projected, weight[:, 0], tail)]
    torch.library.opcheck(operator.rows, (*given, *setting(size)), test_utils=(*SHAPES, NUMBERS))
    given = [x.detach() for x in given]
    made, after = operator.rows(*given, *setting(size))
    bars = [torch.randn_like(x) for x in made]
    for after_bar in (None, torch.randn_like(after)):
        torch.library.opcheck(
            operator.rows_backward, (*given, None, bars, after_bar, *setting(size)[1:]), test_utils=(*SHAPES, NUMBERS)
        )


class TestDeltaRule:
    """Rows of the delta rule: parts of different sizes, queries of another length, heads of a token side by side."""

    @pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
    @pytest.mark.parametrize(("key_dim", "value_dim", "conv"), [(16, 16, 4), (16, 32, 2), (32, 64, 4)])
    def test_rows(self, key_dim: int, value_dim: int, conv: int, dtype: torch.dtype, bound: float) -> None:
        heads, batch, time = 3, 2, 70
        mixer = GatedDeltaNet(48, heads, key_dim, value_dim, conv=conv, chunk=64).to(DEVICE)
        channels = sum(mixer.widths)
        generator = torch.Generator().manual_seed(0)
        qkv, tail = (
            torch.randn(batch, count, channels, generator=generator).to(DEVICE, dtype) for count in (time, conv - 1)
        )
        bars = [torch.randn(batch, heads, time, width, generator=generator) for width in (key_dim, key_dim, value_dim)]

        def found(precision: torch.dtype, way: str) -> list[Tensor]:
            own = mixer.to(precision)
            assert own.conv is not None
            given = [x.to(precision, copy=True).requires_grad_() for x in (qkv, tail)]
            *rows, after = getattr(own, way)(*given)
            assert torch.equal(after, given[0][:, time - conv + 1 :])
            loss = sum((row.double() * bar.to(DEVICE)).sum() for row, bar in zip(rows, bars, strict=True))
            loss = loss + after.double().square().sum()
            return [*(row.detach() for row in rows), *torch.autograd.grad(loss, [*given, own.conv.weight])]

        wanted, ours = found(torch.float64, "rows"), found(dtype, "made_at_once")
        assert "(rows)" in backend()
        for one, other in zip(ours, wanted, strict=True):
            assert one.shape == other.shape
            assert float((one.double() - other).norm() / other.norm()) < bound

    def test_who_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whole chunks under autocast on a GPU, where values are made of heads as wide as keys."""
        monkeypatch.setattr(delta_net, "lowered", lambda _: True)
        monkeypatch.setattr(choice, "takes", lambda *_: True)

        def taken(time: int = 64, value_dim: int = 32, conv: int = 4) -> bool:
            mixer = GatedDeltaNet(32, 2, 16, value_dim, conv=conv, chunk=64)
            return mixer.by_kernel(torch.zeros(1, time, sum(mixer.widths)))

        assert taken()
        assert not taken(time=65)
        assert not taken(value_dim=24)
        assert not taken(conv=1)


class TestMamba2:
    """Values, keys and queries of Mamba-2: with a bias, nothing normalised, from a slice of a wider projection."""

    @pytest.mark.parametrize(("dtype", "bound"), PRECISIONS, ids=str)
    def test_rows(self, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
        mixer = Mamba2(16, inner=64, head_dim=16, state_dim=32, groups=1, conv=4, chunk=64).to(DEVICE)
        channels, generator = sum(mixer.widths), torch.Generator().manual_seed(0)
        wide, tail = (torch.randn(2, count, channels + 9, generator=generator).to(DEVICE, dtype) for count in (64, 3))
        bars = [torch.randn(2, 64, width, generator=generator).to(DEVICE) for width in mixer.widths]

        def found(precision: torch.dtype, *, ours: bool) -> list[Tensor]:
            monkeypatch.setattr(mamba2, "lowered", lambda _: ours)
            monkeypatch.setattr(choice, "takes", lambda *_: ours)
            own = mixer.to(precision)
            given = [x.to(precision, copy=True).requires_grad_() for x in (wide, tail[..., :channels])]
            parts, after = own.convolved(given[0][..., 4 : channels + 4], given[1])
            assert torch.equal(after, given[0][:, -3:, 4 : channels + 4])
            loss = torch.stack([(part.double() * bar).sum() for part, bar in zip(parts, bars, strict=True)]).sum()
            loss = loss + after.double().square().sum()
            wanted = [*given, *own.conv.parameters()]
            return [*(part.detach() for part in parts), *torch.autograd.grad(loss, wanted)]

        wanted, made = found(torch.float64, ours=False), found(dtype, ours=True)
        assert "(rows)" in backend()
        for one, other in zip(made, wanted, strict=True):
            assert one.shape == other.shape
            assert float((one.double() - other).norm() / other.norm()) < bound


def test_who_is_taken() -> None:
    """Projections of bfloat16 on a GPU; all else is left to torch."""
    projected = torch.zeros(1, 5, 192, device=DEVICE, dtype=torch.bfloat16)
    assert choice.takes(projected, 64, 4) == ON_A_GPU
    assert not choice.takes(projected.float(), 64, 4)
    assert not choice.takes(projected[:, :0], 64, 4)


@pytest.mark.parametrize(("width", "taps"), [(48, 4), (256, 4), (64, 1), (64, 9)])
def test_what_does_not_fit(width: int, taps: int) -> None:
    assert choice.fits(128, 8)
    assert choice.fits(16, 2)
    assert not choice.fits(width, taps)


class TestModels:
    """A model whose rows are forced through the kernels."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "takes", lambda *_: True)

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    # And recommends a lower precision where it finds products of 32 bits.
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
    # And asks what is no leaf for its gradient.
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
    def test_one_graph_learns_alike(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory as context, which is also asked alone: compiled or not, and as by torch."""
        model = build("titans-mac", vocab_size=17, dim=32, depth=1, heads=2, chunk=16, segment=16).to(DEVICE).train()
        randomise(model, seed=0)
        eager = learned(model, model)
        assert "(rows)" in backend()
        torch._dynamo.reset()
        compiled = learned(model, torch.compile(model, backend="inductor" if ON_A_GPU else "aot_eager"))
        monkeypatch.setattr(choice, "takes", lambda *_: False)
        by_torch = learned(model, model)
        for name, wanted in by_torch.items():
            assert far(compiled[name], eager[name]) < 1e-5, name
            assert far(eager[name], wanted) < 1e-4, name

    def test_texts_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In steps of some tokens and of one, and the tail is what it is by torch."""
        layer, x = NeuralMemory(32, 2, MemorySpec(chunk=16)).to(DEVICE), torch.randn(2, 19, 32, device=DEVICE)
        pieces, state = [], None
        for piece in x.split((16, 1, 2), dim=1):
            reads, state = layer.step(piece, state)
            pieces.append(reads)
        assert "rows" in backend()
        monkeypatch.setattr(choice, "takes", lambda *_: False)
        wanted, last = layer.step(x, None)
        torch.testing.assert_close(torch.cat(pieces, dim=1), wanted, rtol=1e-4, atol=1e-5)
        assert state is not None
        torch.testing.assert_close(state.tail, last.tail)
