"""One query over a cache says what a softmax over all that it sees says, however the cache is shared among programs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.attention import looking
from lockstep.kernels.record import backend
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE

pytest.importorskip("triton")

from lockstep.kernels.attention import looking_operator as operator

ON_A_GPU = torch.cuda.is_available()
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


class Size(NamedTuple):
    """Of a cache, and of who looks at it."""

    slots: int
    heads: int = 2
    kv_heads: int = 2
    width: int = 16
    batch: int = 2


SIZES = {
    "one slot": Size(1),
    "less than a tile": Size(5),
    "a tile": Size(64),
    "some tiles": Size(200, width=32),
    "groups": Size(300, heads=6),
    "one for all": Size(130, heads=4, kv_heads=1),
}
ON_GPUS = {
    "a short context": Size(1024, heads=8, kv_heads=8, width=64, batch=1),
    "a long one": Size(65_537, heads=8, kv_heads=2, width=64, batch=1),
    "a batch": Size(1028, heads=8, kv_heads=8, width=64, batch=64),
    "wide": Size(777, heads=4, kv_heads=4, width=128, batch=3),
}
CASES = SIZES | (ON_GPUS if ON_A_GPU else {})


def draw(size: Size, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size.slots)

    def normal(heads: int, time: int) -> Tensor:
        return torch.randn(size.batch, heads, time, size.width, generator=generator).to(DEVICE, dtype)

    seen = torch.rand(size.batch, 1, 1, size.slots, generator=generator) < 0.6
    seen[..., size.slots // 2 :] &= torch.arange(size.batch)[:, None, None, None] > 0
    seen[..., 0] = True
    tokens = normal(size.heads, 1), normal(size.kv_heads, size.slots), normal(size.kv_heads, size.slots)
    return *tokens, seen.to(DEVICE)


def by_torch(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
    scores = (queries.double() @ keys.mT * queries.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    reads: Tensor = scores.softmax(-1) @ values
    return reads


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, dtype: torch.dtype) -> None:
    """Also where a whole part of the cache is not seen."""
    given = draw(CASES[name], dtype)
    assert far(looking.run(*given), by_torch(*given)) < BOUNDS[dtype]


@pytest.mark.parametrize("programs", [1, 4, 1000])
def test_however_it_is_shared(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "PROGRAMS", programs)
    given = draw(Size(333), torch.float32)
    assert far(looking.run(*given), by_torch(*given)) < BOUNDS[torch.float32]


@pytest.mark.parametrize(("batch", "slots"), [(1, 1), (1, 64), (1, 65_536), (64, 1024), (64, 65_536)])
def test_parts_have_it_all(batch: int, slots: int) -> None:
    count, size = looking.parts(batch, 8, slots)
    tiles = -(-slots // looking.SLOTS)
    assert (count - 1) * size < tiles <= count * size
    assert count == tiles or batch * 8 * count <= looking.PROGRAMS + batch * 8


def test_steep_scores() -> None:
    queries, *cache = draw(Size(200), torch.float32)
    assert far(looking.run(queries * 300, *cache), by_torch(queries * 300, *cache)) < 1e-4


def test_it_is_an_operator() -> None:
    queries, keys, values, seen = draw(Size(70), torch.float32)
    torch.library.opcheck(operator.look, (queries[:, :, 0], keys, values, seen[:, 0, 0].contiguous()))


@pytest.mark.parametrize("name", ["transformer++", "titans-mac", "titans-mag"])
@torch.no_grad()
def test_models_decode_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With persistent tokens, windows and segments: as by torch."""
    fields = {} if name == "transformer++" else {"chunk": 16, "segment": 16, "window": 7}
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=1, heads=2, **fields).to(DEVICE).eval()
    tokens = torch.randint(17, (2, 24), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    logits = []
    for taken in (True, False):
        monkeypatch.setattr(looking, "takes", lambda queries, taken=taken: taken and queries.shape[2] == 1)
        state = model.step(tokens[:, :19], model.initial_state(2, capacity=40))[1]
        said = []
        for place in range(19, 24):
            one, state = model.step(tokens[:, place, None], state)
            said.append(one)
        logits.append(torch.cat(said, dim=1))
    assert "look" in backend()
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def test_who_is_taken() -> None:
    """One token of each sequence, on a GPU, and no derivative."""
    query = torch.zeros(1, 2, 1, 64, device=DEVICE)
    assert not looking.takes(query)
    with torch.no_grad():
        assert looking.takes(query) == ON_A_GPU
        assert not looking.takes(query.expand(-1, -1, 2, -1))
        assert not looking.takes(query[..., :48])
