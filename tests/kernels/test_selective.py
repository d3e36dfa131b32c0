"""Our kernels of the selective scan say what the torch form says in float64: reads, states and gradients.

Without a GPU they run in Triton's interpreter, on few channels. Both forms are given the same rounded numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences import selective as kernels
from lockstep.models.recurrences.selective import selective_scan
from tests.kernels.memories import DEVICE
from tests.memory.cases import Named
from tests.models.test_selective import RATES, drawn_rate

flow = pytest.importorskip("lockstep.kernels.recurrences.selective_flow")
operator = pytest.importorskip("lockstep.kernels.recurrences.selective_operator")

ROOT = Path(__file__).resolve().parents[2]
ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
CHUNK = 32
"""Of the torch form."""


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

    def each(self, dtype: torch.dtype, rest: torch.dtype) -> Case:
        """Queries, keys and values of one type and the rest of another, with gradients asked for."""
        dtypes = (dtype,) * 3 + (rest,) * 3
        return Case(*(x.to(kind, copy=True).requires_grad_() for x, kind in zip(self, dtypes, strict=True)))


def draw(size: Size, low: torch.dtype, rate: str = "random", decay: str = "random", seed: int = 0) -> Case:
    """Tokens that are numbers of `low`, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    of_states, of_channels = (size.batch, size.time, size.d_state), (size.batch, size.time, size.channels)
    decays = {"random": 1.0, "near zero": 1e-4, "zero": 0.0}
    case = Case(
        normal(*of_states).to(low).float(),
        normal(*of_states).to(low).float(),
        normal(*of_channels).to(low).float(),
        drawn_rate(normal(*of_channels), rate),
        normal(size.d_state, size.channels).exp() * decays[decay],
        normal(size.batch, size.d_state, size.channels),
    )
    return Case(*(x.to(DEVICE) for x in case))


def everything(case: Case, found: tuple[Tensor, Tensor]) -> Named:
    """What came out and the gradients of all that went in, in double precision; adjoints are the same for any."""
    draw = torch.Generator().manual_seed(5)
    adjoints = [torch.randn(x.shape, generator=draw).to(x) for x in found]
    gradients = torch.autograd.grad(found, list(case), adjoints)
    named = {f"gradient of {name}": x for name, x in zip(case._fields, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": found[0], "state": found[1], **named}.items()}


def by_torch(case: Case) -> Named:
    exact = case.each(torch.float64, torch.float64)
    return everything(exact, selective_scan(*exact, chunk=CHUNK))


def by_kernels(case: Case, low: torch.dtype) -> Named:
    tracked = case.each(low, torch.float32)
    found = kernels.run(*tracked)
    assert "(selective)" in backend()
    assert all(x.dtype is torch.float32 for x in found)
    return everything(tracked, found)


def split(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time into segments, though few programs would do."""
    programs = size.batch * (size.channels * size.d_state // kernels.TILE) * size.segments
    monkeypatch.setattr(flow, "PROGRAMS", programs)
    monkeypatch.setattr(flow, "SHORTEST", flow.SPAN)


def require_close(case: Case, low: torch.dtype, bound: float) -> None:
    found, wanted = by_kernels(case, low), by_torch(case)
    # Where nothing is kept, some gradients are none but for what no number holds.
    far = {name: float((found[name] - x).norm() / x.norm().clamp_min(1e-6)) for name, x in wanted.items()}
    assert {name: error for name, error in far.items() if not error < bound} == {}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("low", "bound"), [(torch.float32, EXACTLY), (torch.bfloat16, ROUNDED)])
def test_rates(rate: str, low: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that keep nothing, and those that write nothing."""
    split(Size(), monkeypatch)
    require_close(draw(Size(), low, rate), low, bound)


@pytest.mark.parametrize("decay", ["near zero", "zero"])
@pytest.mark.parametrize("rate", ["random", "large"])
def test_slow_decays(rate: str, decay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split(Size(), monkeypatch)
    require_close(draw(Size(), torch.float32, rate, decay), torch.float32, EXACTLY)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    split(size, monkeypatch)
    require_close(draw(size, torch.float32), torch.float32, EXACTLY)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize(("low", "bound"), [(torch.bfloat16, ROUNDED), (torch.float32, EXACTLY)])
def test_sizes_of_models(size: Size, low: torch.dtype, bound: float) -> None:
    for rate in ("small", "random", "now and then"):
        require_close(draw(size, low, rate), low, bound)


@pytest.mark.parametrize(("span", "held"), [(4, 2), (8, 8), (16, 4)])
def test_no_result_depends_on_what_is_kept(span: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "SPAN", span)
    monkeypatch.setattr(flow, "HELD", held)
    size = Size(time=35)
    split(size, monkeypatch)
    require_close(draw(size, torch.float32), torch.float32, EXACTLY)


def test_time_is_divided_among_many_programs() -> None:
    """No segment is empty, none is shorter than a state is worth, and few rows have many."""
    for batch, time, channels in ((1, 65_536, 1024), (16, 4096, 1024), (1, 1000, 1536), (3, 1, 32), (1, 65, 2048)):
        shapes = ((batch, time, 16),) * 2 + ((batch, time, channels),) * 2 + ((16, channels),)
        run = flow.Segments(flow.Tokens(*(torch.empty(shape, device="meta") for shape in shapes)))
        assert (run.segments - 1) * run.tokens < time <= run.segments * run.tokens
        assert run.tokens % flow.SPAN == 0
        programs = run.segments * run.batch * run.blocks
        assert programs > flow.PROGRAMS / 2 or run.tokens <= 2 * flow.SHORTEST


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_rates_beyond_all_measure_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their product with the decay is infinite in float32."""
    split(Size(), monkeypatch)
    case = draw(Size(), torch.float32)
    case = case._replace(rate=case.rate * 1e30, decay=case.decay * 1e30, values=case.values * 1e-30)
    found, wanted = by_kernels(case, torch.float32), by_torch(case)
    assert float((found["reads"] - wanted["reads"]).norm() / wanted["reads"].norm()) < EXACTLY
    assert all(x.isfinite().all() for x in found.values())


def test_views_are_taken() -> None:
    """Keys and queries are parts of one projection."""
    case = draw(Size(), torch.float32)
    both = torch.cat((case.keys, case.queries), dim=-1)
    keys, queries = both.split(16, dim=-1)
    reads, _ = kernels.run(queries, keys, *case[2:])
    assert torch.equal(reads, kernels.run(*case)[0])


def test_the_state_given_is_left_as_it_was() -> None:
    case = draw(Size(), torch.float32)
    before = case.state.clone()
    kernels.run(*case)
    assert torch.equal(case.state, before)


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
    case = draw(Size(), torch.float32).each(torch.float32, torch.float32)
    torch.library.opcheck(operator.selective, tuple(case), atol=1e-4, rtol=1e-4)


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", "selective", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launched = {"segment_kernel", "join_kernel", "read_kernel", "adjoint_kernel"}
    assert set(json.loads(done.stdout.splitlines()[-1])) == launched
