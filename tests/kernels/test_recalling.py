"""What a standing memory says by the kernel is what it says by torch: reads and every gradient, whoever asks.

Without a GPU the kernels run in Triton's interpreter, on small memories. Both are given the same rounded numbers, and
torch computes with them in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec, Outer, recollect, streaming
from lockstep.memory.streaming import recollect_by_kernel
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE, errors
from tests.kernels.test_memory_operator import NUMBERS, SHAPES, far, learned
from tests.memory.cases import Fields, Named

pytest.importorskip("triton")

from lockstep.kernels.memory import recalling as operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()

POINTS: dict[str, Fields] = {
    "titans": {"norm": True, "residual": True},
    "norm,silu": {"norm": True, "activation": "silu"},
    "residual,relu": {"residual": True, "activation": "relu"},
    "plain": {},
}
"""Points of the grid: each choice in one of them at least."""
every_point = pytest.mark.parametrize("name", POINTS)

EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with queries of float32 and of bfloat16."""


class Size(NamedTuple):
    """Of a memory, `width` and `hidden` units wide, and of what it is asked."""

    width: int
    hidden: int
    time: int
    batch: int = 2
    heads: int = 2


SMALL = Size(16, 32, 32)
ODD = [Size(16, 128, 80, batch=1), Size(32, 16, 48, heads=3), Size(16, 16, 1024, batch=1, heads=1)]
"""Several blocks of hidden units; tiles of every size, and more of them than a program adds up."""
LARGE = Size(64, 128, 1024)
"""For GPUs."""
on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="long texts need a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it")

Recall = Callable[[Tensor, tuple[Tensor, ...], MemorySpec, Outer], Tensor]


class Question(NamedTuple):
    """A memory and what it is asked."""

    queries: Tensor  # [batch, heads, time, width], in memory as a model has it: heads next to each other
    first: Tensor  # [batch, heads, width, hidden]
    second: Tensor
    gain: Tensor  # [heads, width]
    shift: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> Question:
        return Question(*map(function, self))

    def put(self, recall: Recall, spec: MemorySpec) -> Tensor:
        return recall(self.queries, (self.first, self.second), spec, Outer(self.gain, self.shift))


def draw(size: Size, dtype: torch.dtype = torch.float32) -> Question:
    """Queries of this precision, and matrices rounded to it, which are operands of products; all else is float32."""
    generator = torch.Generator().manual_seed(size.time)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(DEVICE)

    leading = size.batch, size.heads
    queries = normal(size.batch, size.time, size.heads, size.width, scale=1.2 * size.width**-0.5)
    first = normal(*leading, size.width, size.hidden)
    second = normal(*leading, size.hidden, size.width, scale=size.hidden**-0.5)
    gain, shift = (normal(size.heads, size.width, scale=0.3) for _ in range(2))
    first, second = (matrix.to(dtype).float() for matrix in (first, second))
    return Question(queries.to(dtype).transpose(1, 2), first, second, 1 + gain, shift)


def everything(question: Question, recall: Recall, spec: MemorySpec) -> Named:
    """Reads, and the gradients of all that has a part in them, in double precision."""
    question = question.each(lambda x: x.detach().requires_grad_())
    reads = question.put(recall, spec)
    adjoint = torch.randn(reads.shape, generator=torch.Generator().manual_seed(5)).bfloat16().to(reads)
    given = {name: x for name, x in question._asdict().items() if spec.norm or name not in ("gain", "shift")}
    gradients = torch.autograd.grad(reads, list(given.values()), adjoint)
    named = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": reads, **named}.items()}


def require_close(question: Question, spec: MemorySpec, bound: float) -> None:
    wanted = everything(question.each(Tensor.double), recollect, spec)
    assert backend() == "torch"
    found = errors(everything(question, recollect_by_kernel, spec), wanted)
    assert {name: error for name, error in found.items() if not error < bound} == {}
    assert "(recall)" in backend()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_point
def test_small_memories(name: str, dtype: torch.dtype) -> None:
    require_close(draw(SMALL, dtype), MemorySpec(**POINTS[name]), EXACTLY if dtype is torch.float32 else ROUNDED)


@pytest.mark.parametrize("size", ODD, ids=str)
def test_other_shapes(size: Size) -> None:
    require_close(draw(size), MemorySpec(**POINTS["titans"]), EXACTLY)


def test_a_memory_for_all_samples() -> None:
    question = draw(SMALL)
    question = question._replace(first=question.first[0], second=question.second[0])
    require_close(question, MemorySpec(**POINTS["titans"]), EXACTLY)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_point
def test_long_texts(name: str, dtype: torch.dtype) -> None:
    require_close(draw(LARGE, dtype), MemorySpec(**POINTS[name]), EXACTLY if dtype is torch.float32 else ROUNDED)


@pytest.mark.parametrize("place", [slice(16, 48), slice(1, 33)], ids=str)
@pytest.mark.parametrize("heads_first", [False, True], ids=["tokens-first", "heads-first"])
def test_pieces_of_a_text(heads_first: bool, place: slice) -> None:
    """Wherever its tokens lie, a piece gives what it gives as a text of its own, to the last bit."""
    question, spec = draw(SMALL._replace(time=64)), MemorySpec(**POINTS["titans"])
    queries = question.queries.contiguous() if heads_first else question.queries
    piece = question._replace(queries=queries[:, :, place])
    alone = question._replace(queries=queries[:, :, place].transpose(1, 2).contiguous().transpose(1, 2))
    found, wanted = (everything(one, recollect_by_kernel, spec) for one in (piece, alone))
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_pieces_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are given a piece of a longer text where it lies, both ways."""
    question, spec = draw(SMALL._replace(time=64)), MemorySpec(**POINTS["titans"])
    text = question.queries.contiguous().requires_grad_()
    piece = text[:, :, 16:48]
    taken: list[tuple[int, tuple[int, ...]]] = []
    sheets = operator.Asked.sheets

    def noted(asked: Any, *tensors: Tensor) -> Any:
        taken.extend((x.data_ptr(), x.stride()) for x in tensors)
        return sheets(asked, *tensors)

    monkeypatch.setattr(operator.Asked, "sheets", noted)
    question._replace(queries=piece).put(recollect_by_kernel, spec).sum().backward()
    # Once by each of the three kernels.
    assert taken.count((piece.data_ptr(), piece.stride())) == 3


def test_adjoints_of_queries_lie_in_one_piece() -> None:
    question, spec = draw(SMALL), MemorySpec(**POINTS["titans"])
    asked = question.queries.detach().requires_grad_()
    (bar,) = torch.autograd.grad(question._replace(queries=asked).put(recollect_by_kernel, spec).sum(), asked)
    assert bar.is_contiguous()


def test_addresses_that_descriptors_do_not_reach() -> None:
    """Copied are rows at odd places and what is spread out; tokens of a piece stay where they are."""
    text = torch.randn(2, 64, 32)
    piece = text[:, 1:33]
    assert operator.reachable(piece) is piece
    for other in (torch.randn(2, 8, 33)[:, :, 1:], torch.randn(1, 1, 1).expand(2, 8, 32), text.mT):
        copied = operator.reachable(other)
        assert copied.is_contiguous()
        assert torch.equal(copied, other)


def test_reads_lie_as_a_model_takes_them() -> None:
    """Heads of a token are joined without a copy."""
    reads = draw(SMALL).put(recollect_by_kernel, MemorySpec(**POINTS["titans"]))
    assert reads.transpose(1, 2).is_contiguous()


def test_samples_and_heads_keep_to_themselves() -> None:
    """Each alone gives what it gives in company, to the last bit."""
    question, spec = draw(SMALL), MemorySpec(**POINTS["titans"])
    reads = question.put(recollect_by_kernel, spec)
    for sample in range(SMALL.batch):
        for head in range(SMALL.heads):
            here = slice(sample, sample + 1), slice(head, head + 1)
            alone = Question(*(x[here] for x in question[:3]), *(x[here[1]] for x in question[3:]))
            assert torch.equal(alone.put(recollect_by_kernel, spec), reads[here])


def test_it_repeats_itself() -> None:
    question, spec = draw(LARGE if ON_A_GPU else SMALL, torch.bfloat16), MemorySpec(**POINTS["titans"])
    one, other = (everything(question, recollect_by_kernel, spec) for _ in range(2))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("name", ["titans", "plain"])
def test_it_is_an_operator(name: str) -> None:
    """Torch's own examination, both ways."""
    size, spec = SMALL._replace(batch=1), MemorySpec(**POINTS[name])
    question = draw(size)
    queries = question.queries
    first, second = question.first.flatten(0, 1), question.second.flatten(0, 1)
    lent = question[3:] if spec.norm else (None, None)
    setting: tuple[Any, ...] = (spec.residual, spec.activation)
    given = [x if x is None else x.detach().requires_grad_() for x in (queries, first, second, *lent)]
    torch.library.opcheck(operator.recall, (*given, *setting), test_utils=(*SHAPES, NUMBERS))
    matrices = operator.as_operands(first, second, queries.dtype)
    bar = torch.randn(size.batch, size.time, size.heads * size.width, device=DEVICE)
    torch.library.opcheck(
        operator.recall_backward, (queries, matrices, lent[0], bar, *setting), test_utils=(*SHAPES, NUMBERS)
    )


class TestChoice:
    """Where `pays` says yes."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming, "pays", lambda *_: True)

    @pytest.mark.parametrize(("time", "chosen"), [(16, True), (48, True), (0, False), (1, False), (40, False)])
    def test_tiles_that_are_full(self, time: int, chosen: bool) -> None:
        question, spec = draw(SMALL._replace(time=48)), MemorySpec(**POINTS["titans"])
        piece = question._replace(queries=question.queries[:, :, :time])
        found = piece.put(recollect, spec)
        assert ("recall" in backend()) == chosen
        torch.testing.assert_close(found, question.put(recollect, spec)[:, :, :time], rtol=1e-4, atol=1e-5)

    def test_a_norm_without_parameters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A norm that the model lends nothing neither scales nor shifts."""
        question, spec = draw(SMALL), MemorySpec(**POINTS["titans"])
        held = question.first, question.second
        found = recollect(question.queries, held, spec, Outer())
        assert "recall" in backend()
        monkeypatch.setattr(streaming, "pays", lambda *_: False)
        wanted = recollect(question.queries, held, spec, Outer())
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    # And recommends a lower precision where it finds products of 32 bits.
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
    # And asks what is no leaf for its gradient.
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
    def test_one_graph_learns_alike(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory as context, compiled or not, and as by torch."""
        model = build("titans-mac", vocab_size=17, dim=32, depth=1, heads=2, chunk=16, segment=16).to(DEVICE).train()
        randomise(model, seed=0)
        eager = learned(model, model)
        assert "(memory, recall)" in backend()
        torch._dynamo.reset()
        compiled = learned(model, torch.compile(model, backend="inductor" if ON_A_GPU else "aot_eager"))
        monkeypatch.setattr(streaming, "pays", lambda *_: False)
        by_torch = learned(model, model)
        for name, wanted in by_torch.items():
            assert far(compiled[name], eager[name]) < 1e-5, name
            assert far(eager[name], wanted) < 1e-4, name
