"""The kernels for Hopper: who takes which chunks, and when, is nothing that a result may show."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from lockstep.kernels.memory import hopper
from lockstep.memory import MemorySpec
from tests.kernels.memories import DEVICE, Size, as_a_model_draws, each_tensor, everything, harsh, in_precision
from tests.memory.cases import Case, Fields, Named

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
SIZE = Size(hopper.WIDTH, hopper.HIDDEN, hopper.CHUNK, batch=3, heads=2)
CHUNKS = 5
ALL = SIZE.batch * SIZE.heads * CHUNKS
WHOLE: Fields = {"norm": True, "residual": True, "decay_to": "initial"}
SPECS: dict[str, Fields] = {
    "titans": WHOLE,
    "descent": {"rule": "gradient-descent"},
    "huber": {"bias": "huber", "huber_form": "norm", "activation": "silu", "residual": True},
}

pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU, and LOCKSTEP_TEST_GPU=1 to use it")


def drawn(fields: Fields, anchor_of_samples: bool = False) -> Case:
    spec, length = MemorySpec(**fields, chunk=SIZE.chunk), CHUNKS * SIZE.chunk
    case = (
        harsh(spec, SIZE, length, anchor_of_samples=True) if anchor_of_samples else as_a_model_draws(spec, SIZE, length)
    )
    return each_tensor(lambda x: x.to(DEVICE), in_precision(case, torch.bfloat16))


def require_same(found: Named, wanted: Named) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in found if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS)
def test_how_many_programs_share_the_chunks_does_not_matter(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone, some with more than others, and more than there are chunks: rooms are used again, or never."""
    case, found = drawn(fields), []
    for count in (ALL, 1, 7, ALL + 5):
        monkeypatch.setattr(hopper, "programs", lambda _, count=count: (count,))
        found.append(everything(case, "kernel"))
    for other in found[1:]:
        require_same(other, found[0])


@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS)
def test_nothing_depends_on_when(fields: Fields) -> None:
    """What is computed again is the same: nobody reads a room before it is filled, or after it is filled anew."""
    case = drawn(fields)
    wanted = everything(case, "kernel")
    for _ in range(20):
        require_same(everything(case, "kernel"), wanted)


def test_an_anchor_of_each_sample_is_fetched_when_rows_change(monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn(WHOLE, anchor_of_samples=True)
    wanted = everything(case, "kernel")
    monkeypatch.setattr(hopper, "programs", lambda _: (4,))
    require_same(everything(case, "kernel"), wanted)
