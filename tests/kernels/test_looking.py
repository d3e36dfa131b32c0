"""One token that looks at a cache reads what a softmax over all that it sees reads, and is then there itself.

Without a GPU the kernels run in Triton's interpreter. Both are given the same rounded numbers, and torch computes with
them in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.attention import looking
from lockstep.kernels.record import backend
from lockstep.models.decoding import Decoder
from lockstep.models.registry import build
from lockstep.models.rotary import rotate, speeds
from lockstep.models.state import stack
from tests.kernels.memories import DEVICE

pytest.importorskip("triton")

from lockstep.kernels.arrivals import counters
from lockstep.kernels.attention import looking_operator as operator

ON_A_GPU = torch.cuda.is_available()
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
THETA = 100.0


class Size(NamedTuple):
    """Of a cache, and of who looks at it; `slots` are those of one row of tokens."""

    slots: int
    at: tuple[int, ...] = (0, 3)
    """Where samples stand."""
    heads: int = 2
    kv_heads: int = 2
    width: int = 16
    pairs: int = 8
    persistent: int = 0
    rows: int = 1
    segmented: bool = False


SIZES = {
    "the first token": Size(1, (0,)),
    "less than a tile": Size(5),
    "a tile": Size(64, (63, 0)),
    "some tiles": Size(200, (70, 199), width=32),
    "groups": Size(300, (299, 130), heads=6),
    "one for all": Size(130, (100,), heads=4, kv_heads=1, pairs=0),
    "a window": Size(70, (69, 70, 1000), pairs=4),
    "far on": Size(70, (105_614, 105_616, 1_048_576, 12_345_678), pairs=8),
    "persistent tokens": Size(66, (2, 70), persistent=3, pairs=5),
    "a segment": Size(40, (39, 40, 95), segmented=True, persistent=1),
    "two rows of a segment": Size(70, (0, 69, 140), rows=2, segmented=True, persistent=4, pairs=6),
    "more parts than slots of a tile": Size(4500, (4400,), kv_heads=1),
}
ON_GPUS = {
    "a short context": Size(1088, (1024,), 8, 8, 64, 32),
    "a long one": Size(65_601, (65_537,), 8, 2, 64, 32),
    "windows": Size(256, (1, 255, 1000), 8, 8, 64, 32, persistent=4),
    "many windows": Size(256, tuple(range(1, 1025, 16)), 8, 8, 64, 32, persistent=4),
    "a million tokens back": Size(256, (1_048_576,), 8, 8, 64, 16, persistent=16),
    "a batch": Size(1028, tuple(range(1, 1025, 16)), 8, 8, 64, 32),
    "wide": Size(777, (5, 776, 400), 4, 4, 128, 64),
    "long segments": Size(1024, (1023, 1024), 8, 8, 64, 16, persistent=16, rows=2, segmented=True),
}
CASES = SIZES | (ON_GPUS if ON_A_GPU else {})


class Given(NamedTuple):
    """What the kernels are given."""

    qkv: Tensor
    said: Tensor | None
    cache: looking.Cache
    rates: Tensor | None
    heads: int
    persistent: int
    segmented: bool


def draw(size: Size, dtype: torch.dtype, *, steep: float = 1.0) -> Given:
    generator = torch.Generator().manual_seed(size.slots)
    batch = len(size.at)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator).to(DEVICE, dtype)

    shape = size.kv_heads, size.persistent + size.rows * size.slots, size.width
    position = torch.tensor(size.at, device=DEVICE)
    rates = speeds(size.pairs, THETA, torch.float32, torch.device(DEVICE)) if size.pairs else None
    return Given(
        normal(1, (size.heads + 2 * size.kv_heads) * size.width) * steep,
        normal(1, 2 * size.kv_heads * size.width) if size.rows == 2 else None,
        looking.Cache(normal(*shape), normal(*shape), position),
        rates,
        size.heads,
        size.persistent,
        size.segmented,
    )


def by_torch(given: Given, size: Size) -> tuple[Tensor, looking.Cache]:
    """In float64, but for the angles, which are rounded as everywhere; sample by sample and row by row."""
    reads, keys, values = [], given.cache.keys.clone(), given.cache.values.clone()
    for sample, at in enumerate(size.at):
        inside = at % size.slots
        place = torch.tensor([[inside if size.segmented else at]], device=DEVICE)

        def turned(x: Tensor, place: Tensor = place) -> Tensor:
            x = x.unflatten(-1, (-1, size.width))[None, :, None]
            return rotate(x, place, THETA, 2 * size.pairs)[0, :, 0] if size.pairs else x[0, :, 0]

        split = (size.heads * size.width, size.kv_heads * size.width, size.kv_heads * size.width)
        query, key, value = given.qkv[sample, 0].split(split)
        new = [(key, value)] if given.said is None else [given.said[sample, 0].chunk(2), (key, value)]
        for row, (one, other) in enumerate(new):
            slot = size.persistent + row * size.slots + inside
            keys[sample, :, slot] = turned(one)
            values[sample, :, slot] = other.unflatten(-1, (-1, size.width))
        filled = size.slots if at >= size.slots and not size.segmented else inside + 1
        ahead = torch.arange(size.slots, device=DEVICE) < filled
        seen = torch.cat([torch.ones(size.persistent, dtype=torch.bool, device=DEVICE), *[ahead] * size.rows])
        group = size.heads // size.kv_heads
        all_keys, all_values = (x[sample].double().repeat_interleave(group, dim=0) for x in (keys, values))
        scores = (turned(query.float()).double()[:, None] @ all_keys.mT * size.width**-0.5)[:, 0]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        reads.append((weights[:, None] @ all_values).flatten())
    return torch.stack(reads)[:, None], looking.Cache(keys, values, given.cache.position + 1)


def require_close(size: Size, dtype: torch.dtype, bound: float, **options: Any) -> None:
    given = draw(size, dtype, **options)
    wanted, after = by_torch(given, size)
    before = [x.clone() for x in given.cache]
    found, cache = looking.run(*given)
    assert float((found.double() - wanted).norm() / wanted.norm()) < bound
    assert torch.equal(cache.position, after.position)
    for one, other, old in zip(cache[:2], after[:2], before, strict=False):
        assert float((one.double() - other.double()).abs().amax()) < bound * float(other.abs().amax())
        changed = (one != old).flatten(3).any(3).sum((1, 2))
        assert torch.equal(changed, torch.full_like(changed, size.kv_heads * size.rows)), "nothing else is written"


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_and_put(name: str, dtype: torch.dtype) -> None:
    require_close(CASES[name], dtype, BOUNDS[dtype])


@pytest.mark.parametrize("programs", [1, 4, 12, 1000])
@pytest.mark.parametrize("rows", [1, 2])
def test_however_it_is_shared(rows: int, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among few programs, some of which have nothing but slots that nobody has filled."""
    monkeypatch.setattr(looking, "PROGRAMS", programs)
    require_close(Size(333, (332, 100, 64), rows=rows, persistent=3), torch.float32, BOUNDS[torch.float32])


def test_one_call_after_another() -> None:
    """Of different shapes: each finds the counters as the first did."""
    for name in ("some tiles", "a window", "groups", "one for all", "groups", "a window"):
        require_close(SIZES[name], torch.float32, BOUNDS[torch.float32])
    assert not counters("look_", torch.empty(0, device=DEVICE).device, 1).any()


@pytest.mark.parametrize(
    ("batch", "slots"),
    [(1, 1), (1, 64), (1, 260), (1, 512), (1, 65_536), (20, 260), (64, 260), (64, 1024), (64, 65_536)],
)
def test_parts_have_it_all(batch: int, slots: int) -> None:
    count, size = looking.sharing(batch, 8, slots)
    tiles = -(-slots // looking.SLOTS)
    assert (count - 1) * size < tiles <= count * size
    assert count == tiles or batch * 8 * count <= looking.PROGRAMS + batch * 8
    assert (count == 1) == (slots <= looking.SLOTS or batch == 64)


def test_steep_scores() -> None:
    require_close(Size(200, (150,)), torch.float32, 1e-4, steep=300.0)


def test_tokens_and_cache_of_different_precision() -> None:
    """As under autocast: keys and values are kept as the cache keeps them."""
    size = Size(70, (69, 30))
    given = draw(size, torch.bfloat16)
    exact = given._replace(cache=looking.Cache(given.cache.keys.float(), given.cache.values.float(), given.cache[2]))
    wanted, _ = by_torch(exact, size)
    found, cache = looking.run(*exact)
    assert (found.dtype, cache.keys.dtype) == (torch.bfloat16, torch.float32)
    assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize("name", ["less than a tile", "two rows of a segment"])
def test_it_is_an_operator(name: str) -> None:
    given = draw(SIZES[name], torch.float32)
    said = None if given.said is None else given.said[:, 0].contiguous()
    torch.library.opcheck(operator.look_, (given.qkv[:, 0].contiguous(), said, *given.cache, *given[3:]))


@pytest.mark.parametrize("decoded", [False, True], ids=["anew", "over"])
@pytest.mark.parametrize("name", ["transformer++", "gpt2", "titans-mac", "titans-mag", "titans-mal"])
@torch.inference_mode()
def test_models_decode_alike(name: str, decoded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With persistent tokens, windows and segments, from different places, beyond their ends: as by torch."""
    fields = {"chunk": 8, "segment": 8, "window": 7} if name.startswith("titans") else {}
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=1, heads=2, **fields).to(DEVICE).eval()
    tokens = torch.randint(17, (2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    logits = []
    for taken in (True, False):
        monkeypatch.setattr(looking, "takes", lambda qkv, _, taken=taken: taken and qkv.shape[1] == 1)
        state = stack([model.step(tokens[:1, :length], model.initial_state(1, capacity=40))[1] for length in (5, 2)])
        decoder, said = Decoder(model, state), []
        for place in range(5, 25):
            one, state = model.step(tokens[:, place, None], state)
            said.append(decoder.step(tokens[:, place, None]) if decoded else one[:, -1])
        logits.append(torch.stack(said))
    assert "look" in backend()
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def test_who_is_taken() -> None:
    """One token of each sequence, on a GPU, and no derivative."""
    qkv = torch.zeros(1, 1, 192, device=DEVICE)
    assert not looking.takes(qkv, 64)
    with torch.no_grad():
        assert looking.takes(qkv, 64) == ON_A_GPU
        assert not looking.takes(qkv.expand(-1, 2, -1), 64)
        assert not looking.takes(qkv, 48)
