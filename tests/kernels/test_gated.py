"""What our kernels make of Mamba-2's reads, values and gate is what torch makes of them: numbers and every gradient.

Without a GPU the kernels run in Triton's interpreter, on short texts. Both are given the same rounded numbers, and
torch computes with them in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.rows import gated
from lockstep.laws.subject import randomise
from lockstep.models.mixers.mamba2 import EPSILON, Mamba2
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE, errors
from tests.kernels.test_memory_operator import NUMBERS, SHAPES, far, learned
from tests.memory.cases import Named

pytest.importorskip("triton")

from lockstep.kernels.rows import gated_operator as operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-5, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
PRECISIONS = [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)]


class Size(NamedTuple):
    """Of a text, and of heads `width` wide."""

    time: int = 37
    heads: int = 4
    width: int = 16
    groups: int = 1
    batch: int = 2

    @property
    def inner(self) -> int:
        return self.heads * self.width


SIZES = {
    "a text": Size(),
    "groups": Size(groups=2),
    "a group of each head": Size(time=5, heads=3, groups=3),
    "numbers for no whole tile": Size(heads=3, width=20),
    "groups for no whole tile": Size(time=7, heads=6, width=20, groups=2),
    "one head": Size(time=33, heads=1, width=65, batch=1),
    "heads of one number": Size(time=3, heads=9, width=1),
    "one token": Size(time=1, batch=1),
    "as many as a program has": Size(time=32, batch=1),
    "one more": Size(time=33, batch=1),
    "several warps": Size(time=3, heads=9, width=64, batch=1),
}
ON_GPUS = {
    "a long text": Size(time=4096, heads=16, width=64),
    "an odd one": Size(time=1999, heads=12, width=64, batch=3),
    "groups": Size(time=777, heads=32, width=64, groups=8),
    "rows that begin anywhere": Size(time=333, heads=1, width=1001),
    "the widest": Size(time=513, heads=64, width=64),
}
"""As models have them."""


class Case(NamedTuple):
    reads: Tensor  # [batch, time, inner], and so on
    values: Tensor
    gate: Tensor
    skip: Tensor  # [heads]
    gain: Tensor  # [inner]

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return Case(*(x.detach().to(dtype, copy=True).requires_grad_() for x in self))


def draw(size: Size, dtype: torch.dtype = torch.float32, seed: int = 0) -> Case:
    """Numbers of this precision, in float32; tokens that say nothing are among them, and gates wide open and shut."""
    generator, shape = torch.Generator().manual_seed(seed), (size.batch, size.time, size.inner)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).float().to(DEVICE)

    reads, values, gate = (normal(*shape) for _ in range(3))
    reads[:, 2::7] = values[:, 2::7] = 0
    gate[..., 0], gate[..., -1] = 100, -100
    return Case(reads, values, gate, normal(size.heads), normal(size.inner))


def by_torch(case: Case, size: Size) -> Named:
    """As a mixer of torch does it that has this skip and this gain."""
    exact = case.to(torch.float64)
    layer = Mamba2(8, inner=size.inner, head_dim=size.width, state_dim=4, groups=size.groups, conv=4, chunk=16)
    layer = layer.to(DEVICE, torch.float64)
    del layer.skip, layer.gain
    layer.skip, layer.gain = exact.skip, exact.gain  # type: ignore[assignment] # no parameters: gradients are asked for
    reads, values = (x.unflatten(-1, (size.heads, -1)).transpose(1, 2) for x in exact[:2])
    y = layer.gated(reads, values, exact.gate)
    assert backend() == "torch"
    return everything(exact, y)


def by_kernel(case: Case, size: Size, dtype: torch.dtype) -> Named:
    tracked = case.to(torch.float32)
    y = operator.gated(*(x.to(dtype) for x in tracked[:3]), tracked.skip, tracked.gain, size.groups, EPSILON)
    assert "(gated)" in backend()
    assert y.dtype is dtype
    return everything(tracked, y)


def everything(case: Case, y: Tensor) -> Named:
    """What comes out, and the gradients of what came in, in double precision; the adjoint is the same for any."""
    adjoint = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).bfloat16().to(y)
    gradients = torch.autograd.grad(y, list(case), adjoint)
    named = {f"gradient of {name}": x for name, x in zip(case._fields, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"y": y, **named}.items()}


def require_close(size: Size, dtype: torch.dtype, bound: float) -> None:
    case = draw(size, dtype)
    wanted = by_torch(case, size)
    found = errors(by_kernel(case, size, dtype), wanted)
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


def test_it_repeats_itself() -> None:
    size = Size(time=67)
    one, other = (by_kernel(draw(size, torch.bfloat16), size, torch.bfloat16) for _ in range(2))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(
    ("batch", "time", "programs"), [(16, 4096, 2048), (1, 33, 2), (3, 11, 2), (1, 1, 1), (1, 0, 1)]
)
def test_programs(batch: int, time: int, programs: int) -> None:
    """As many as there are tokens for, and one at least."""
    tokens, channels = torch.empty(batch, time, 64, device="meta"), torch.empty(64, device="meta")
    assert operator.Gated(tokens, tokens, tokens, channels, channels, 2, EPSILON).grid == (programs, 2)


def test_it_takes_what_lies_apart() -> None:
    """Slices of something wider, and heads before tokens."""
    size = Size(time=9)
    case = draw(size)
    apart = [torch.cat((x, x), dim=-1)[..., : size.inner] for x in case[:3]]
    apart[0] = apart[0].mT.contiguous().mT
    own = (size.groups, EPSILON)
    assert torch.equal(operator.gated(*apart, *case[3:], *own), operator.gated(*case, *own))


def test_nothing_else_is_kept() -> None:
    """For the way back, but what came in."""
    size = Size(time=9)
    case = draw(size).to(torch.float32)
    kept: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
        operator.gated(*case, size.groups, EPSILON)
    assert [x.data_ptr() for x in kept] == [x.data_ptr() for x in case]


@pytest.mark.parametrize("groups", [1, 2])
def test_it_is_an_operator(groups: int) -> None:
    """Torch's own examination, both ways."""
    size = Size(time=9, groups=groups)
    case = draw(size)
    given = [x.detach().requires_grad_() for x in case]
    torch.library.opcheck(operator.gated, (*given, groups, EPSILON), test_utils=(*SHAPES, NUMBERS))
    backwards = (*case, torch.randn_like(case.gate), groups, EPSILON)
    torch.library.opcheck(operator.gated_backward, backwards, test_utils=(*SHAPES, NUMBERS))


def test_who_is_taken() -> None:
    """Tokens of bfloat16 on a GPU, of groups that are not too wide; all else is left to torch."""
    tokens = torch.zeros(1, 5, 8192, device=DEVICE, dtype=torch.bfloat16)
    assert gated.takes(tokens, tokens, tokens, 2) == ON_A_GPU
    assert not gated.takes(tokens, tokens, tokens, 1)
    assert not gated.takes(tokens.float(), tokens, tokens, 2)
    assert not gated.takes(tokens, tokens.float(), tokens, 2)
    assert not gated.takes(tokens, tokens, tokens.float(), 2)
    assert not gated.takes(tokens[:, :0], tokens[:, :0], tokens[:, :0], 2)


class TestModels:
    """Mamba-2 whose gates are forced through the kernels."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gated, "takes", lambda *_: True)

    @pytest.mark.parametrize(("lowered", "bound"), [(False, EXACTLY), (True, ROUNDED)], ids=["float32", "autocast"])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_a_mixer_learns_alike(
        self, groups: int, lowered: bool, bound: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it says, and the gradients of all that it has; under autocast torch rounds more often than we do."""
        mixer = Mamba2(24, inner=64, head_dim=16, state_dim=8, groups=groups, conv=4, chunk=16).to(DEVICE)
        randomise(mixer, seed=0)
        generator = torch.Generator().manual_seed(1)
        x, adjoint = (torch.randn(2, 37, 24, generator=generator).to(DEVICE) for _ in range(2))

        def found() -> Named:
            given = x.clone().requires_grad_()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=lowered):
                y = mixer(given).float()
            parameters = dict(mixer.named_parameters())
            gradients = torch.autograd.grad(y, [given, *parameters.values()], adjoint)
            return {"y": y.detach(), **dict(zip(["x", *parameters], gradients, strict=True))}

        ours = found()
        assert "(gated)" in backend()
        monkeypatch.setattr(gated, "takes", lambda *_: False)
        wrong = {name: error for name, error in errors(ours, found()).items() if not error < bound}
        assert wrong == {}

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    # And recommends a lower precision where it finds products of 32 bits.
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
    # And asks what is no leaf for its gradient.
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
    def test_one_graph_learns_alike(self) -> None:
        """Compiled or not."""
        sizes = {"dim": 32, "depth": 1, "d_state": 16, "head_dim": 16, "chunk": 16}
        model = build("mamba2", vocab_size=17, **sizes).to(DEVICE).train()
        randomise(model, seed=0)
        eager = learned(model, model)
        assert "(gated)" in backend()
        torch._dynamo.reset()
        # Operations are taken apart as inductor does it: of what some give, torch guesses wrong how it lies.
        instead = "aot_eager_decomp_partition"
        compiled = learned(model, torch.compile(model, backend="inductor" if ON_A_GPU else instead))
        for name, wanted in eager.items():
            assert far(compiled[name], wanted) < 1e-5, name
