"""One token by the kernels is one token by torch: what is read, and all of the state, whoever shares a row.

Without a GPU the kernels run in Triton's interpreter, on small memories. Both are given the same rounded numbers, and
torch computes with them in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.kernels.attention import looking
from lockstep.kernels.memory import token
from lockstep.kernels.record import backend
from lockstep.kernels.rows import token as rows
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec, MemoryState, Outer, begin, recollect, stream
from lockstep.models.decoding import Decoder
from lockstep.models.registry import build
from lockstep.models.state import named_tensors, stack
from tests.kernels.memories import DEVICE, Size, away_from_turns, each_tensor, harsh
from tests.kernels.test_memory_operator import NUMBERS, SHAPES
from tests.memory.cases import Case, Fields

pytest.importorskip("triton")

from lockstep.kernels.arrivals import SILENT, counters, silence
from lockstep.kernels.memory import token_operator as operator
from lockstep.kernels.memory.token_recall import recall_token_

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()

DESCENT: Fields = {"rule": "gradient-descent"}
SQUARE: Fields = {"norm": True, "residual": True}
POINTS: dict[str, Fields] = {
    "titans": {**SQUARE, "decay_to": "initial"},
    "plain": {},
    "descent,silu": {**DESCENT, "residual": True, "activation": "silu", "decay_to": "initial"},
    "norm,relu": {**DESCENT, "norm": True, "activation": "relu"},
    "lp 3": {**SQUARE, "bias": "lp", "p": 3},
    "lp 1.5": {**DESCENT, "bias": "lp", "p": 1.5, "residual": True},
    "huber norm": {"bias": "huber", "huber_form": "norm", "norm": True},
    "huber coordinate": {**SQUARE, "bias": "huber", "huber_form": "coordinate", "decay_to": "initial"},
    "huber switch": {**SQUARE, **DESCENT, "bias": "huber", "huber_form": "switch"},
    "moneta": {**SQUARE, **DESCENT, "bias": "lp", "p": 3, "retention": "lq", "decay_to": "initial"},
    "memora": {**SQUARE, **DESCENT, "retention": "kl", "decay_to": "initial"},
    "lq 1.5": {**DESCENT, "retention": "lq", "q": 1.5},
    "kl, sums of 3": {**DESCENT, "retention": "kl", "simplex": 3.0, "residual": True},
}
"""Points of the grid: each choice in one of them at least."""
BOUNDED = [name for name in POINTS if name != "lq 1.5"]
"""Without norm, the numbers of that point grow beyond 32 bits where a memory is large."""
SMALL = Size(16, 32, 4, batch=3, heads=1)
"""Rows that are odd in number."""
SHAPED = [Size(16, 16, 1, batch=1), Size(32, 64, 3, batch=1, heads=3), Size(64, 16, 2), Size(16, 512, 4, batch=1)]
FEW = 12
"""Programs of a device that are still run one after the other."""
LARGE = [Size(64, 128, 4, batch=1, heads=8), Size(64, 128, 4, batch=64, heads=8), Size(64, 256, 4), Size(128, 128, 4)]
"""For GPUs."""
on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="many rows need a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it")
everywhere = pytest.mark.parametrize("over", [False, True], ids=["anew", "over"])

EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
Run = Callable[..., tuple[Tensor, MemoryState]]


def own_tensors(state: MemoryState) -> MemoryState:
    """A copy that may be written over."""
    point, weights, velocity = (tuple(matrix.clone() for matrix in pair) for pair in state[:3])
    return MemoryState(point, weights, velocity, state.position.clone())


def named(reads: Tensor, state: MemoryState) -> dict[str, Tensor]:
    pairs = {"point": state.point, "weights": state.weights, "velocity": state.velocity}
    matrices = {f"{name}.{i}": matrix for name, pair in pairs.items() for i, matrix in enumerate(pair)}
    return {"reads": reads, "position": state.position, **matrices}


def one_by_one(run: Run, case: Case, state: MemoryState) -> list[dict[str, Tensor]]:
    """What comes out after each token of a case, copied."""
    found = []
    for t in range(case.keys.shape[2]):
        piece = case.between(t, t + 1)
        reads, state = run(*piece[1:5], state, case.spec, case.outer)
        found.append(
            {name: x.clone() for name, x in named(reads, state).items()} | {"position": state.position.clone()}
        )
    return found


def same(x: Tensor, y: Tensor) -> bool:
    """To the last bit; a GPU's compiler, for which both ways are kernels of their own, may contract them otherwise."""
    return bool((x - y).norm() <= 1e-6 * y.norm()) if ON_A_GPU and x.is_floating_point() else torch.equal(x, y)


def drawn(fields: Fields, size: Size, length: int, **options: Any) -> Case:
    case = harsh(MemorySpec(**fields), size, length, **options)
    return each_tensor(lambda x: x.to(DEVICE), case)


def in_16_bits(case: Case) -> Case:
    """Tokens alone: a memory and its gates are of 32."""
    queries, keys, values = (x.bfloat16() for x in (case.queries, case.keys, case.values))
    return case._replace(queries=queries, keys=keys, values=values)


def require_close(case: Case, over: bool, bound: float, positions: list[int] | None = None) -> None:
    exact = each_tensor(Tensor.double, case)
    batch = case.keys.shape[0]
    stand = torch.tensor(positions or [0] * batch, device=DEVICE)
    start = begin(case.memory, stand)
    found = one_by_one(token.run_over if over else token.run, case, own_tensors(start) if over else start)
    assert "(memory token)" in backend()
    wanted = one_by_one(stream, exact, begin(exact.memory, stand))
    for t, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(ours.pop("position"), theirs.pop("position"))
        assert ours.keys() == theirs.keys()
        assert ours["reads"].dtype == case.queries.dtype
        far = {name: float((ours[name] - x).norm() / x.norm().clamp_min(1e-6)) for name, x in theirs.items()}
        assert {name: error for name, error in far.items() if not error < bound} == {}, f"token {t}"


@pytest.fixture(params=[1, FEW], ids=["few-programs", "many-programs"])
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "PROGRAMS", request.param)


@everywhere
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("name", POINTS)
def test_tokens_across_chunks(name: str, over: bool) -> None:
    require_close(drawn(POINTS[name], SMALL, 6), over, EXACTLY)


@everywhere
@pytest.mark.usefixtures("programs")
def test_samples_at_different_positions(over: bool) -> None:
    require_close(drawn(POINTS["titans"], SMALL._replace(heads=2), 5), over, EXACTLY, [0, 3, 6])


@everywhere
@pytest.mark.usefixtures("programs")
def test_one_call_after_another(over: bool) -> None:
    """Of different shapes: each finds counters and silent places as the first did."""
    for heads, positions in ((2, [3, 0, 2]), (1, [1, 7, 3]), (3, [3, 3, 4]), (2, [3, 0, 2])):
        require_close(drawn(POINTS["titans"], SMALL._replace(heads=heads), 2), over, EXACTLY, positions)
    where = torch.empty(0, device=DEVICE).device
    name = "memory_token_" if over else "memory_token"
    assert not counters(name, where, 1).any()
    assert (silence(name, where, 1) == SILENT.value).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter's
@pytest.mark.parametrize("bits", [SILENT.value, SILENT.value | 1 << 22, -1])
def test_what_is_not_a_number_is_said_too(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens hears it, even where a token brings what silence is."""
    monkeypatch.setattr(operator, "PROGRAMS", FEW)
    case = drawn(POINTS["titans"], SMALL, 1)
    case.queries.view(torch.int32).fill_(bits)
    found = one_by_one(token.run_over, case, own_tensors(begin(case.memory)))
    assert found[0]["reads"].isnan().all()


@everywhere
@pytest.mark.parametrize("size", SHAPED, ids=str)
def test_other_shapes(size: Size, over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "PROGRAMS", FEW)
    require_close(drawn(POINTS["titans"], size, 4), over, EXACTLY)


@everywhere
def test_tokens_of_16_bits(over: bool) -> None:
    require_close(in_16_bits(drawn(POINTS["titans"], SMALL, 6)), over, ROUNDED)


@pytest.mark.usefixtures("programs")
def test_anchors_of_samples() -> None:
    require_close(drawn(POINTS["titans"], SMALL._replace(heads=2), 3, anchor_of_samples=True), False, EXACTLY)


def test_a_norm_without_parameters() -> None:
    """It neither scales nor shifts."""
    case = drawn({"norm": True}, SMALL, 3)
    require_close(case._replace(outer=Outer()), False, EXACTLY)


@on_a_gpu
@everywhere
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", LARGE, ids=str)
@pytest.mark.parametrize("name", BOUNDED)
def test_large_memories(name: str, size: Size, low: bool, over: bool) -> None:
    case = drawn(POINTS[name], size, 2 * size.chunk + 1)
    if case.spec.huber_form == "switch":
        case = away_from_turns(case)
    require_close(in_16_bits(case) if low else case, over, ROUNDED if low else EXACTLY)


@on_a_gpu
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_whoever_listens_hears_it_all(batch: int) -> None:
    """Thousands of calls, by many programs to a row and by few: each finds the same."""
    case = drawn(POINTS["titans"], LARGE[0]._replace(batch=batch), 1)
    state = begin(case.memory)
    reads = torch.stack([token.run(*case[1:5], state, case.spec, case.outer)[0] for _ in range(2000)])
    assert reads.isfinite().all()
    assert (reads == reads[0]).all()


@pytest.mark.usefixtures("programs")
def test_both_ways_are_one() -> None:
    """And what was given to the first is left as it was."""
    case = drawn(POINTS["titans"], SMALL, 5)
    start = begin(case.memory)
    before = own_tensors(start)
    anew, over = one_by_one(token.run, case, start), one_by_one(token.run_over, case, own_tensors(start))
    for one, other in zip(anew, over, strict=True):
        assert [name for name, x in one.items() if not same(x, other[name])] == []
    kept = zip(named(case.queries, start).values(), named(case.queries, before).values(), strict=True)
    assert all(torch.equal(x, y) for x, y in kept)


def test_it_repeats_itself() -> None:
    case = drawn(POINTS["titans"], LARGE[0] if ON_A_GPU else SMALL, 5)
    one, other = (one_by_one(token.run, case, begin(case.memory)) for _ in range(2))
    assert all(torch.equal(x, other[t][name]) for t, found in enumerate(one) for name, x in found.items())


def test_states_that_lie_otherwise() -> None:
    """As the kernels of whole chunks leave them: the second matrix turned. Those are not written over."""
    case = drawn(POINTS["titans"], SMALL, 1)
    start = begin(case.memory)

    def turned(pair: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return pair[0], pair[1].mT.contiguous().mT

    other = MemoryState(turned(start.point), turned(start.weights), turned(start.velocity), start.position)
    (found,), (wanted,) = (one_by_one(token.run, case, state) for state in (other, start))
    assert [name for name, x in wanted.items() if not torch.equal(x, found[name])] == []
    for state in (other, start):  # the point of the latter is its weights
        assert not token.separate(state)
        with pytest.raises(ValueError, match="in tensors of their own, each in one piece"):
            token.run_over(*case[1:5], state, case.spec, case.outer)


def test_anchors_that_are_missing_are_named() -> None:
    case = drawn(POINTS["titans"], SMALL, 1)
    with pytest.raises(ValueError, match="decay to the initial weights needs them"):
        token.run(*case[1:5], begin(case.memory), case.spec, case.outer._replace(initial=None))


def test_programs_that_share_a_row() -> None:
    """Few rows are spread over a device; many are not, beyond what registers hold."""
    assert [operator.programs(rows, 64, 128) for rows in (1, 8, 16, 40, 512)] == [16, 16, 8, 2, 2]
    assert [operator.programs(rows, 64, 256) for rows in (8, 512)] == [16, 4]
    assert operator.programs(512, 16, 32) == 1


def test_warps_of_a_program() -> None:
    """Few, unless their registers do not hold all: of a text as Titans have it, of several, of many; of large ones."""

    def of(rows: int, width: int, hidden: int) -> int:
        return operator.warps(operator.held(operator.programs(rows, width, hidden), width, hidden), "l2")

    assert [of(rows, 64, 128) for rows in (8, 16, 32, 512)] == [4, 4, 8, 8]
    assert [of(8, 64, 64), of(8, 64, 256), of(8, 128, 128), of(512, 16, 32)] == [4, 8, 8, 4]
    assert [operator.warps(16_384, retention) for retention in ("l2", "lq", "kl")] == [4, 8, 8]


@pytest.mark.parametrize("name", ["titans", "norm,relu", "memora"])
def test_they_are_operators(name: str) -> None:
    """Torch's own examination of both."""
    case = drawn(POINTS[name], SMALL._replace(batch=1), 1)
    for function in (operator.memory_token, operator.memory_token_):
        state = own_tensors(begin(case.memory))
        before, behind = token.operands(*case[1:5], state, case.spec, case.outer)
        held = [list(pair) for pair in state[:3]]
        torch.library.opcheck(function, (*before, *held, state.position, *behind), test_utils=(*SHAPES, NUMBERS))


UNKNOWN: dict[str, tuple[Fields, Size]] = {
    "clip": ({"clip": 1.0}, SMALL),
    "read": ({"read": "before"}, SMALL),
    "bias": ({"bias": "dot"}, SMALL),
    "layers": ({"structure": "linear"}, SMALL),
    "width": ({}, SMALL._replace(width=24)),
    "hidden": ({}, SMALL._replace(hidden=48)),
    "size": ({}, SMALL._replace(width=64, hidden=512)),
}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_is_not_known(unknown: str) -> None:
    fields, size = UNKNOWN[unknown]
    case = harsh(MemorySpec(**fields), size, 1)
    assert not token.knows(case.memory.weights, case.spec)


@pytest.mark.parametrize("name", [*POINTS])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_what_a_standing_memory_says(name: str, dtype: torch.dtype, bound: float) -> None:
    case = harsh(MemorySpec(**POINTS[name]), SMALL, 1)
    queries = case.queries.to(DEVICE, dtype)
    weights = tuple(matrix.to(DEVICE) for matrix in case.memory.weights)
    outer = each_tensor(lambda x: x.to(DEVICE), case).outer
    exact = each_tensor(lambda x: x.to(DEVICE).double(), case).outer
    found = token.recall(queries, weights, case.spec, outer).double()
    wanted = recollect(queries.double(), tuple(matrix.double() for matrix in weights), case.spec, exact)
    assert float((found - wanted).norm() / wanted.norm()) < bound


@pytest.mark.parametrize("name", ["titans", "memora"])
def test_a_segment_begins_with_what_is_held(name: str) -> None:
    """There alone. Queries are what torch makes of their projections in float64, and the tail is the projections'."""
    size = Size(16, 32, 4, batch=4, heads=2)
    case = drawn(POINTS[name], size, 1)
    generator = torch.Generator().manual_seed(0)
    weight, tail = torch.randn(4, 3 * 32, generator=generator), torch.randn(4, 3, 32, generator=generator)
    weight, tail, projected = weight.to(DEVICE)[:, :32], tail.to(DEVICE), case.keys[:, :, 0]
    held = tuple(matrix.to(DEVICE) for matrix in harsh(case.spec, size, 1, seed=1).memory.weights)
    standing = tuple(matrix.clone() for matrix in case.memory.weights)
    position, before = torch.tensor([8, 9, 0, 7], device=DEVICE), tail.clone()
    reads = token.recall_over((projected, weight, tail, 1e-6), standing, held, (position, 8), case.spec, case.outer)
    for one, old, new in zip(standing, case.memory.weights, held, strict=True):
        assert torch.equal(one[[0, 2]], new[[0, 2]])
        assert torch.equal(one[[1, 3]], old[[1, 3]])
    text = torch.cat([before, projected.reshape(4, 1, 32)], dim=1)
    assert torch.equal(tail, text[:, 1:])
    convolved = F.silu((text.double() * weight.double()).sum(dim=1)).view(4, 2, 1, 16)
    queries = convolved * torch.rsqrt(convolved.square().sum(dim=-1, keepdim=True) + 1e-6)
    exact = each_tensor(Tensor.double, case).outer
    wanted = recollect(queries, tuple(matrix.double() for matrix in standing), case.spec, exact)
    torch.testing.assert_close(reads.double(), wanted, rtol=1e-4, atol=1e-5)


def test_asking_over_what_stands_is_an_operator() -> None:
    """Torch's own examination; what is written over must be in one piece."""
    case = drawn(POINTS["titans"], SMALL, 1)
    tail, weight = torch.randn(3, 3, 16, device=DEVICE), torch.randn(4, 16, device=DEVICE)
    standing, held = ([matrix.clone() for matrix in case.memory.weights] for _ in range(2))
    position = torch.tensor([8, 9, 0], device=DEVICE)
    behind = position, 8, *token.lent(case.spec, case.outer), *token.asked(case.spec)
    asking = case.queries[:, :, 0], weight, tail, 1e-6
    torch.library.opcheck(recall_token_, (*asking, standing, held, *behind), test_utils=(*SHAPES, NUMBERS))
    with pytest.raises(ValueError, match="must be in one piece"):
        recall_token_(*asking, [matrix.mT for matrix in standing], held, *behind)


def test_when_it_is_chosen() -> None:
    """On a GPU, for one token, where no derivative is wanted."""
    case = harsh(MemorySpec(**POINTS["titans"]), SMALL, 1)
    state = begin(case.memory)

    def asked(device: str = "cuda", time: int = 1, dtype: torch.dtype = torch.bfloat16) -> bool:
        queries: Any = SimpleNamespace(device=torch.device(device), shape=(3, 1, time, 16), dtype=dtype)
        return token.takes(queries, state.weights, case.spec)

    with torch.no_grad():
        assert asked()
        assert asked(dtype=torch.float32)
        assert not asked(dtype=torch.float64)
        assert not asked(device="cpu")
        assert not asked(time=2)
        assert not token.takes(case.queries, each_tensor(Tensor.double, case).memory.weights, case.spec)
    assert not asked()


def kernels_of(backend: str) -> list[str]:
    """Of what `record` tells: "triton (one, another)"."""
    return backend.partition("(")[2].rstrip(")").split(", ")


@pytest.mark.parametrize("name", ["titans-lmm", "titans-mac", "titans-mal", "yaad", "moneta", "memora"])
@torch.inference_mode()
def test_models_decode_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a decoder, which writes over its state, and by `step`, which does not: as by torch.

    Samples reach the ends of their chunks and segments at different tokens.
    """
    fields = {"segment": 16, "window": 7} if name in ("titans-mac", "titans-mal") else {}
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=2, heads=2, chunk=16, **fields).to(DEVICE).eval()
    randomise(model, seed=0)
    tokens = torch.randint(17, (2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    lengths = torch.tensor([28, 21])
    state = stack([model.step(tokens[:1, :length], model.initial_state(1, capacity=40))[1] for length in lengths])
    logits: dict[str, list[Tensor]] = {"torch": [], "step": [], "decoder": []}
    for way, said in logits.items():
        taken = way != "torch"
        monkeypatch.setattr(token, "takes", lambda queries, *_, taken=taken: taken and queries.shape[2] == 1)
        for others in (rows, looking):  # of which the former runs where a state is given up
            monkeypatch.setattr(others, "takes", lambda x, *_, taken=taken: taken and x.shape[1] == 1)
        decoder, going = Decoder(model, state), state
        for place in range(28, 40):
            if way == "decoder":
                said.append(decoder.step(tokens[:, place, None]))
            else:
                read, going = model.step(tokens[:, place, None], going)
                said.append(read[:, -1])
        after = decoder.state if way == "decoder" else going
        places = [x.cpu() for _, x in named_tensors(after) if x.dtype is torch.int64]
        assert len(places) > 2, "one of the model, and of each layer"
        assert all(torch.equal(place, lengths + 12) for place in places)
    used = {"memory token"} | ({"look"} if "titans-ma" in name else set())
    assert used | ({"recall token"} if name == "titans-mac" else set()) == set(kernels_of(backend()))
    for way in ("step", "decoder"):
        torch.testing.assert_close(torch.stack(logits[way]), torch.stack(logits["torch"]), rtol=1e-3, atol=1e-4)
