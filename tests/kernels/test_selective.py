"""Our kernels of the selective scan say what the torch form says in float64: reads, states and gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences import selective as kernels
from lockstep.models.recurrences.selective import selective_scan
from tests.kernels.recurrences import (
    BOUNDS,
    EXACTLY,
    ON_A_GPU,
    Recurrence,
    in_each_precision,
    normals,
    on_a_gpu,
    on_device,
)
from tests.models.test_selective import RATES, drawn_rate

pytest.importorskip("triton")

from lockstep.kernels.recurrences import selective_flow as flow
from lockstep.kernels.recurrences import selective_operator as operator

CHUNK = 32
"""Of the torch form."""
SCAN = Recurrence("selective", partial(selective_scan, chunk=CHUNK), kernels.run, adjoints=torch.float32)
"""Which multiplies nothing in 16 bits."""


class Size(NamedTuple):
    """What a scan is over; there are no more than `segments` of time."""

    time: int = 21
    d_state: int = 16
    channels: int = 32
    batch: int = 1
    segments: int = 2


SIZES = {
    "one token": Size(time=1),
    "one segment": Size(time=16, segments=1),
    "a segment for every span": Size(time=19, segments=100),
    "half a span": Size(time=4),
    "samples": Size(time=11, batch=3),
    "blocks of channels": Size(time=9, channels=96, batch=2),
    "few states": Size(time=12, d_state=8, channels=64),
    "more states": Size(time=12, d_state=32, channels=16),
    "many states": Size(time=12, d_state=64, channels=16),
}
ON_GPUS = {
    "mamba": Size(2048, 16, 1024, batch=4, segments=64),
    "one long sequence": Size(16_387, 16, 1536, segments=64),
    "many samples": Size(300, 16, 2048, batch=16, segments=64),
    "many states": Size(500, 64, 256, batch=2, segments=64),
}
"""As models have them."""


class Case(NamedTuple):
    """All that the scan is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    rate: Tensor
    decay: Tensor
    state: Tensor


def draw(size: Size, low: torch.dtype, rate: str = "random", decay: str = "random") -> Case:
    """Queries, keys and values of `low`, and the rest of float32."""
    normal = normals()
    of_states, of_channels = (size.batch, size.time, size.d_state), (size.batch, size.time, size.channels)
    decays = {"random": 1.0, "near zero": 1e-4, "zero": 0.0}
    case = Case(
        normal(*of_states).to(low),
        normal(*of_states).to(low),
        normal(*of_channels).to(low),
        drawn_rate(normal(*of_channels), rate),
        normal(size.d_state, size.channels).exp() * decays[decay],
        normal(size.batch, size.d_state, size.channels),
    )
    return on_device(case)


def split(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time into segments, though few programs would do."""
    programs = size.batch * (size.channels * size.d_state // kernels.TILE) * size.segments
    monkeypatch.setattr(flow, "PROGRAMS", programs)
    monkeypatch.setattr(flow, "SHORTEST", flow.SPAN)


@pytest.mark.parametrize("rate", RATES)
@in_each_precision
def test_rates(rate: str, low: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that keep nothing, and those that write nothing."""
    split(Size(), monkeypatch)
    SCAN.require_close(draw(Size(), low, rate), BOUNDS[low])


@pytest.mark.parametrize("decay", ["near zero", "zero"])
@pytest.mark.parametrize("rate", ["random", "large"])
def test_slow_decays(rate: str, decay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split(Size(), monkeypatch)
    SCAN.require_close(draw(Size(), torch.float32, rate, decay), EXACTLY)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    split(size, monkeypatch)
    SCAN.require_close(draw(size, torch.float32), EXACTLY)


@on_a_gpu
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@in_each_precision
def test_sizes_of_models(size: Size, low: torch.dtype) -> None:
    for rate in ("small", "random", "now and then"):
        SCAN.require_close(draw(size, low, rate), BOUNDS[low])


@pytest.mark.parametrize(("span", "held"), [(4, 2), (8, 8), (16, 4)])
def test_no_result_depends_on_what_is_kept(span: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "SPAN", span)
    monkeypatch.setattr(flow, "HELD", held)
    size = Size(time=35)
    split(size, monkeypatch)
    SCAN.require_close(draw(size, torch.float32), EXACTLY)


def test_time_is_divided_among_many_programs() -> None:
    """No segment is empty, none is shorter than a state is worth, and few rows have many."""
    for batch, time, channels in ((1, 65_536, 1024), (16, 4096, 1024), (1, 1000, 1536), (3, 1, 32), (1, 65, 2048)):
        shapes = ((batch, time, 16),) * 2 + ((batch, time, channels),) * 2 + ((16, channels),)
        run = flow.Segments(flow.Tokens(*(torch.empty(shape, device="meta") for shape in shapes)))
        assert (run.segments - 1) * run.tokens < time <= run.segments * run.tokens
        assert run.tokens % flow.SPAN == 0
        programs = run.segments * run.batch * run.blocks
        assert programs > flow.PROGRAMS / 2 or run.tokens <= 2 * flow.SHORTEST


# Which is what the interpreter's numpy then says.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_rates_beyond_all_measure_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their product with the decay is infinite in float32."""
    split(Size(), monkeypatch)
    case = draw(Size(), torch.float32)
    case = case._replace(rate=case.rate * 1e30, decay=case.decay * 1e30, values=case.values * 1e-30)
    found, wanted = SCAN.by_kernels(case), SCAN.by_torch(case)
    assert float((found["reads"] - wanted["reads"]).norm() / wanted["reads"].norm()) < EXACTLY
    assert all(x.isfinite().all() for x in found.values())


def test_views_are_taken() -> None:
    """Keys and queries are parts of one projection."""
    case = draw(Size(), torch.float32)
    both = torch.cat((case.keys, case.queries), dim=-1)
    keys, queries = both.split(16, dim=-1)
    reads, _ = kernels.run(queries, keys, *case[2:])
    assert torch.equal(reads, kernels.run(*case)[0])


def test_what_is_given_is_left_as_it_was() -> None:
    SCAN.require_given_left_alone(draw(Size(), torch.float32))


def test_who_is_taken() -> None:
    """Many tokens of 16 or 32 bits on a GPU; all else is left to torch."""
    case = draw(Size(), torch.float32)
    _, keys, values, _, _, state = case
    assert kernels.takes(keys, values, state) == ON_A_GPU
    if not ON_A_GPU:
        return
    assert kernels.takes(keys.bfloat16(), values.bfloat16(), state)
    assert not kernels.takes(keys[:, :1], values[:, :1], state)
    assert not kernels.takes(keys.half(), values.half(), state)
    assert not kernels.takes(keys, values, state.double())
    assert not kernels.takes(keys[..., :12], values, state[:, :12])
    assert not kernels.takes(keys, values[..., :20], state[..., :20])
    selective_scan(*case, chunk=CHUNK)
    assert "(selective)" in backend()


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    given = tuple(x.requires_grad_() for x in draw(Size(), torch.float32))
    torch.library.opcheck(operator.selective, given, atol=1e-4, rtol=1e-4)
