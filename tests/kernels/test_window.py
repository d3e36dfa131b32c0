"""Our kernels of attention in a window say what a softmax over all that is seen says: reads and every gradient.

Without a GPU they run in Triton's interpreter, on narrow heads. Both are given the same rounded numbers, and torch
computes with them in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.attention import window as kernels
from lockstep.kernels.record import backend
from lockstep.laws.subject import randomise
from lockstep.models.mixers.attention import Attention
from lockstep.models.registry import build
from lockstep.models.rotary import rotate, table
from tests.kernels.memories import DEVICE
from tests.memory.cases import Named

pytest.importorskip("triton")

from lockstep.kernels.attention import operator

ON_A_GPU = torch.cuda.is_available()
THETA = 1e4
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""


class Size(NamedTuple):
    """Of a text, of what is seen of it, and of its heads."""

    window: int
    persistent: int = 0
    time: int = 150
    heads: int = 2
    kv_heads: int = 2
    width: int = 16
    batch: int = 2
    turning: int = 8
    """Numbers of each head."""
    second: bool = False
    """Whether there is a second row of keys."""


SIZES = {
    "itself and what all see": Size(1, 3, time=70),
    "less than a tile": Size(16, 3),
    "an odd window": Size(50, 3),
    "a tile": Size(64, 3),
    "a tile and one": Size(65),
    "two tiles": Size(128, 4, time=330, batch=1),
    "tiles and a part": Size(200, 3, time=333, batch=1),
    "the text alone": Size(50),
    "tiles of the text alone": Size(200, time=333, batch=1),
    "as many as may be": Size(50, kernels.MOST),
    "groups": Size(50, 3, heads=6, batch=1),
    "one for all": Size(64, 3, heads=4, kv_heads=1, batch=1),
    "whole tiles of text": Size(64, 3, time=128),
    "a short text": Size(64, 3, time=10),
    "one token": Size(1, 1, time=1),
    "all that turns": Size(50, 3, turning=16),
    "nothing that turns": Size(50, 3, turning=0),
    "one pair": Size(50, 3, turning=2, batch=1),
    "a second row": Size(150, 3, second=True),
    "a second row in a window": Size(50, second=True, heads=4, batch=1),
    "a second row, and all turns": Size(70, 3, time=100, heads=4, batch=1, turning=16, second=True),
    "a second row, and few pairs turn": Size(70, time=100, kv_heads=1, batch=1, turning=4, second=True),
    "a second row, and nothing turns": Size(70, 3, time=100, batch=1, turning=0, second=True),
    "wider heads": Size(50, 3, width=64, batch=1),
    "wider heads, and half of them turns": Size(70, 3, time=100, width=64, batch=1, turning=32, second=True),
}
ON_GPUS = {
    "titans": Size(256, 4, time=2048, heads=8, kv_heads=8, width=64),
    "odd": Size(200, 3, time=1111, heads=4, width=64),
    "wide": Size(512, 16, time=2048, heads=4, width=128),
    "narrow": Size(50, 4, time=777, heads=8, kv_heads=1, width=32),
    "a segment": Size(1024, 4, time=1024, heads=8, kv_heads=8, width=64, second=True, turning=32),
}
"""As models have them, and beside that."""
on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="long texts need a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it")


class Case(NamedTuple):
    """All that attention is given, but for the window and the turns."""

    qkv: Tensor  # [batch, time, (heads + 2 × kv_heads) × width]
    said: Tensor  # [batch, time, 2 × kv_heads × width], or no token at all
    own_keys: Tensor  # [kv_heads, persistent, width]
    own_values: Tensor

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return Case(*(x.to(dtype, copy=True).requires_grad_() for x in self))


Attend = Callable[[Case, Size], Tensor]


def draw(size: Size, dtype: torch.dtype = torch.float32) -> Case:
    generator = torch.Generator().manual_seed(size.time)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    channels = (size.heads + 2 * size.kv_heads) * size.width
    said = normal(size.batch, size.time if size.second else 0, 2 * size.kv_heads * size.width)
    own = (normal(size.kv_heads, size.persistent, size.width) for _ in range(2))
    return Case(normal(size.batch, size.time, channels), said, *own)


def by_kernels(case: Case, size: Size) -> Tensor:
    said = case.said if size.second else None
    turns = table(size.time + 3, size.turning // 2, THETA, case.qkv.device) if size.turning else None
    return kernels.run(case.qkv, said, (case.own_keys, case.own_values), turns, size.window)


def by_torch(case: Case, size: Size) -> Tensor:
    """All scores, and a mask."""
    place = torch.arange(size.time, device=case.qkv.device)

    def headed(x: Tensor) -> Tensor:
        apart: Tensor = x.unflatten(2, (-1, size.width))
        return apart.transpose(1, 2)

    def turned(x: Tensor) -> Tensor:
        return rotate(x, place[None], THETA, size.turning)

    kinds = (size.heads, size.kv_heads, size.kv_heads)
    queries, *row = headed(case.qkv).split(kinds, dim=1)
    rows = [tuple(row), headed(case.said).chunk(2, dim=1)][: 1 + size.second]
    own_keys, own_values = (x.expand(size.batch, -1, -1, -1) for x in case[2:])
    keys = torch.cat((own_keys, *(turned(row[0]) for row in rows)), dim=2)
    values = torch.cat((own_values, *(row[1] for row in rows)), dim=2)
    keys, values = (x.repeat_interleave(size.heads // size.kv_heads, dim=1) for x in (keys, values))
    distance = place[:, None] - place
    everybody = torch.ones(size.time, size.persistent, dtype=torch.bool, device=keys.device)
    seen = torch.cat((everybody, *[(distance >= 0) & (distance < size.window)] * len(rows)), dim=1)
    scores = (turned(queries) @ keys.mT * size.width**-0.5).masked_fill(~seen, -torch.inf)
    reads: Tensor = scores.softmax(-1) @ values
    return reads.transpose(1, 2).flatten(2)


def everything(case: Case, attend: Attend, size: Size) -> Named:
    """Reads and all gradients, in double precision."""
    reads = attend(case, size)
    adjoint = torch.randn(reads.shape, generator=torch.Generator().manual_seed(5)).bfloat16().to(reads)
    gradients = torch.autograd.grad(reads, case, adjoint, materialize_grads=True)
    named = {f"gradient of {name}": x for name, x in zip(Case._fields, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": reads, **named}.items()}


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm()) if wanted.numel() else 0.0


def require_alike(size: Size, dtype: torch.dtype) -> None:
    case = draw(size, dtype)
    found = everything(case.to(dtype), by_kernels, size)
    wanted = everything(case.to(torch.float64), by_torch, size)
    for name, x in wanted.items():
        assert found[name].shape == x.shape, name
        assert far(found[name], x) < (EXACTLY if dtype is torch.float32 else ROUNDED), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_reads_and_gradients(name: str, dtype: torch.dtype) -> None:
    require_alike(SIZES[name], dtype)


@on_a_gpu
@pytest.mark.parametrize("name", ON_GPUS)
def test_reads_and_gradients_of_long_texts(name: str) -> None:
    require_alike(ON_GPUS[name], torch.bfloat16)


def test_who_sees_but_itself_reads_its_own_value() -> None:
    """A softmax of one: the reads are the values, and nothing depends on scores."""
    size = Size(1, time=70)
    case = draw(size).to(torch.float32)
    found = everything(case, by_kernels, size)
    still = size.kv_heads * size.width
    torch.testing.assert_close(found["reads"], case.qkv.detach().double()[..., -still:], rtol=1e-5, atol=1e-6)
    assert float(found["gradient of qkv"][..., :-still].abs().max()) < 1e-4


@pytest.mark.parametrize("scale", [0.0, 30.0])
def test_flat_and_steep_scores(scale: float) -> None:
    """All alike; and so far apart that powers of the others vanish."""
    size = SIZES["an odd window"]
    case = draw(size)
    queries = size.heads * size.width
    case = case._replace(qkv=torch.cat((case.qkv[..., :queries] * scale, case.qkv[..., queries:]), dim=-1))
    found = everything(case.to(torch.float32), by_kernels, size)
    wanted = everything(case.to(torch.float64), by_torch, size)
    apart = {"reads": slice(None), "gradient of qkv": slice(queries)}
    for name, part in apart.items():
        assert far(found[name][..., part], wanted[name][..., part]) < EXACTLY, name


@pytest.mark.parametrize("name", ["a second row", "groups"])
def test_tokens_may_lie_anywhere(name: str) -> None:
    """In pieces of longer texts; copied, where rows begin in the middle of 16 bytes or columns are apart."""
    size = SIZES[name]
    case = draw(size)
    wanted = by_torch(case, size)
    longer = case._replace(qkv=F.pad(case.qkv, (0, 0, 5, 2))[:, 5:-2], said=F.pad(case.said, (8, 8))[..., 8:-8])
    for one in (
        longer,
        case._replace(qkv=F.pad(case.qkv, (1, 2))[..., 1:-2]),
        case._replace(qkv=case.qkv.mT.contiguous().mT),
    ):
        torch.testing.assert_close(by_kernels(one, size), wanted, rtol=1e-4, atol=1e-5)


class TestModels:
    """Attention that is sent through the kernels."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "takes", lambda *_: True)
        monkeypatch.setattr(Attention, "skips", lambda *_: True)

    @pytest.mark.parametrize("persistent", [0, 3])
    @pytest.mark.parametrize(("window", "time"), [(16, 70), (64, 70), (100, 70)])
    def test_as_in_blocks(self, persistent: int, window: int, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        mixer = Attention(64, 4, kv_heads=2, window=window, persistent=persistent, rope_theta=1e4, rotary_dim=8)
        mixer, x = mixer.to(DEVICE), torch.randn(2, time, 64).to(DEVICE)
        outputs = []
        for skips in (True, False):
            monkeypatch.setattr(Attention, "skips", lambda *_, skips=skips: skips)
            y = mixer(x)
            outputs.append((y.detach(), *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))))
        assert ("window" in backend()) == (persistent > 0 or window < time)
        for found, wanted in zip(*outputs, strict=True):
            assert float((found - wanted).norm() / wanted.norm()) < EXACTLY

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    def test_one_graph(self) -> None:
        torch.manual_seed(0)
        mixer, x = Attention(32, 2, window=16, persistent=2).to(DEVICE), torch.randn(1, 70, 32).to(DEVICE)
        torch._dynamo.reset()
        compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
        outputs = [(y, *torch.autograd.grad(y.sum(), list(mixer.parameters()))) for y in (mixer(x), compiled(x))]
        for eager, found in zip(*outputs, strict=True):
            torch.testing.assert_close(found, eager)


TILES = {
    "fewer keys": (operator.Tiles(64, 32),) * 3,
    "fewer queries on the way back": (operator.Tiles(64, 64), operator.Tiles(32, 64), operator.Tiles(32, 32)),
    "more queries than keys": (operator.Tiles(64, 16), operator.Tiles(64, 32), operator.Tiles(16, 64)),
}


@pytest.mark.skipif(ON_A_GPU, reason="tiles that Triton 3.6 gets wrong in 16 bits")
@pytest.mark.parametrize("name", ["an odd window", "a second row in a window"])
@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_tiles_of_other_sizes(tiles: tuple[Any, Any, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, size in zip(("READING", "THROUGH_QUERIES", "THROUGH_KEYS"), tiles, strict=True):
        monkeypatch.setattr(operator, place, size)
    require_alike(SIZES[name], torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("titans-mac", {"segment": 16}),
        ("titans-mac", {"segment": 16, "use_memory": False}),
        ("titans-mag", {"window": 7}),
        ("titans-mal", {"window": 7}),
    ],
)
def test_models_learn_alike(name: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With persistent tokens, several segments and one that stays open: as by torch."""
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=1, heads=2, chunk=16, persistent=3, **fields)
    randomise(model.to(DEVICE).train(), seed=0)
    tokens = torch.randint(17, (2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    learned: list[dict[str, Tensor]] = []
    for taken in (True, False):
        monkeypatch.setattr(kernels, "takes", lambda *_, taken=taken: taken)
        monkeypatch.setattr(Attention, "skips", lambda *_, taken=taken: taken)
        model.zero_grad()
        logits = model(tokens)
        logits.square().mean().backward()
        gradients = {path: one.grad.clone() for path, one in model.named_parameters() if one.grad is not None}
        learned.append({"logits": logits.detach(), **gradients})
    assert "window" in backend()
    assert learned[0].keys() == learned[1].keys()
    for path, wanted in learned[1].items():
        assert far(learned[0][path], wanted) < EXACTLY, path


def test_who_is_taken() -> None:
    """Heads of bfloat16 on a GPU; all else is left to others."""
    qkv = torch.zeros(1, 70, 384, dtype=torch.bfloat16, device=DEVICE)
    assert kernels.takes(qkv, 64, 4, 32) == kernels.takes(qkv, 64, 4, 0) == ON_A_GPU
    assert not kernels.takes(qkv.float(), 64, 4, 32)
    assert not kernels.takes(qkv, 48, 4, 8)
    assert not kernels.takes(qkv, 64, 4, 24)
    assert not kernels.takes(qkv, 64, kernels.MOST + 1, 32)


@pytest.mark.parametrize("name", ["the text alone", "a second row in a window"])
def test_what_a_compiler_is_told(name: str) -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed; both ways."""
    size = SIZES[name]._replace(time=70, batch=1)
    case = draw(size).to(torch.float32)
    turns = table(size.time, size.turning // 2, THETA, case.qkv.device)
    given = (case.qkv, case.said if size.second else None, case.own_keys, case.own_values, turns)
    torch.library.opcheck(operator.window, (*given, size.window), atol=1e-4, rtol=1e-4)
    apart = [None if x is None else x.detach() for x in given]
    reads, totals = operator.window(*apart, size.window)
    torch.library.opcheck(operator.window_backward, (*apart, reads, totals, torch.randn_like(reads), size.window))
