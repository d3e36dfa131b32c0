"""Our kernels of the decayed recurrence say what the torch form says in float64: reads, states and gradients.

Without a GPU they run in Triton's interpreter, on small heads. Both forms are given the same rounded numbers.
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
from lockstep.kernels.recurrences import decayed as kernels
from lockstep.models.recurrences.decayed import decayed
from tests.kernels.memories import DEVICE
from tests.memory.cases import Named

flow = pytest.importorskip("lockstep.kernels.recurrences.flow")
operator = pytest.importorskip("lockstep.kernels.recurrences.operator")

ROOT = Path(__file__).resolve().parents[2]
ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
KEEPS = ("all", "slowly", "random", "little", "nothing", "everything", "now and then")


class Size(NamedTuple):
    """Heads of keys and of values, and how wide these are; `chunks` of `chunk` tokens."""

    groups: int = 1
    heads: int = 2
    chunks: int = 3
    key_dim: int = 16
    value_dim: int = 32
    chunk: int = 16
    batch: int = 1


SIZES = {
    "own keys": Size(groups=2, heads=2),
    "shared keys": Size(groups=1, heads=4),
    "groups": Size(groups=2, heads=6, batch=2, chunks=2),
    "one chunk": Size(chunks=1),
    "many chunks": Size(heads=1, chunks=7),
    "a value and a one": Size(value_dim=17),
    "blocks of values": Size(heads=1, chunks=2, value_dim=160, batch=2),
    "blocks of keys": Size(chunks=2, key_dim=128),
    "longer chunks": Size(chunks=2, key_dim=32, value_dim=64, chunk=64),
}
ON_GPUS = {
    "mamba2": Size(1, 16, 8, 128, 64, 64, batch=2),
    "retnet": Size(4, 4, 8, 64, 128, 64, batch=2),
    "wide retnet": Size(2, 2, 4, 256, 512, 64),
    "linear attention": Size(4, 4, 8, 64, 65, 64, batch=2),
}
"""As models have them."""


class Case(NamedTuple):
    """All that `decayed` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor | None
    state: Tensor

    def inputs(self) -> Named:
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return self._replace(**{name: x.to(dtype, copy=True).requires_grad_() for name, x in self.inputs().items()})


def draw(size: Size, keep: str, low: torch.dtype, seed: int = 0) -> Case:
    """Tokens that are numbers of `low`, in float32."""
    generator = torch.Generator().manual_seed(seed)
    time = size.chunks * size.chunk

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def tokens(heads: int, width: int, scale: float = 1.0) -> Tensor:
        return (normal(size.batch, heads, time, width) * scale).to(low).float()

    case = Case(
        tokens(size.groups, size.key_dim),
        tokens(size.groups, size.key_dim, size.key_dim**-0.5),
        tokens(size.heads, size.value_dim),
        drawn_keep(normal(size.batch, size.heads, time), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return case._replace(**{name: x.to(DEVICE) for name, x in case.inputs().items()})


def drawn_keep(normal: Tensor, keep: str) -> Tensor | None:
    """Logarithms: of shares near one, around a half, around e^-30, of 0 and 1, and of anything with zeros among it."""
    plain = -normal.abs()
    sometimes = plain.masked_fill(normal > 1, -1e4).masked_fill(normal < -1.5, -torch.inf)
    return {
        "all": None,
        "slowly": plain / 50,
        "random": plain,
        "little": 30 * plain,
        "nothing": torch.full_like(normal, -1e4),
        "everything": torch.zeros_like(normal),
        "now and then": sometimes.masked_fill(normal.abs() < 0.3, 0.0),
    }[keep]


def everything(case: Case, found: tuple[Tensor, Tensor]) -> Named:
    """What came out and the gradients of all that went in, in double precision; adjoints are the same for any."""
    given, draw = case.inputs(), torch.Generator().manual_seed(5)
    adjoints = [torch.randn(x.shape, generator=draw).bfloat16().to(x) for x in found]
    gradients = torch.autograd.grad(found, list(given.values()), adjoints)
    named = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": found[0], "state": found[1], **named}.items()}


def by_torch(case: Case, chunk: int) -> Named:
    exact = case.to(torch.float64)
    return everything(exact, decayed(*exact, chunk=chunk))


def by_kernels(case: Case, low: torch.dtype, chunk: int) -> Named:
    tracked = case.to(torch.float32)
    found = kernels.run(*tracked, low=low, chunk=chunk)
    assert "(decayed)" in backend()
    assert all(x.dtype is torch.float32 for x in found)
    return everything(tracked, found)


def require_close(size: Size, keep: str, low: torch.dtype, bound: float) -> None:
    case = draw(size, keep, low)
    found, wanted = by_kernels(case, low, size.chunk), by_torch(case, size.chunk)
    # Where nothing is kept the state's gradient is none but for what no number holds.
    far = {name: float((found[name] - x).norm() / x.norm().clamp_min(1e-6)) for name, x in wanted.items()}
    assert {name: error for name, error in far.items() if not error < bound} == {}


@pytest.mark.parametrize("keep", KEEPS)
def test_float32(keep: str) -> None:
    require_close(Size(), keep, torch.float32, EXACTLY)


@pytest.mark.parametrize("keep", KEEPS)
def test_bfloat16(keep: str) -> None:
    require_close(Size(), keep, torch.bfloat16, ROUNDED)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size) -> None:
    """Also values that fill no block, and blocks that programs share."""
    require_close(size, "random", torch.float32, EXACTLY)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize(("low", "bound"), [(torch.bfloat16, ROUNDED), (torch.float32, EXACTLY)])
def test_sizes_of_models(size: Size, low: torch.dtype, bound: float) -> None:
    for keep in ("slowly", "random", "now and then"):
        require_close(size, keep, low, bound)


def test_heads_that_programs_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program has all heads of a group if there are programs enough, and else fewer."""
    size = Size(groups=2, heads=8, chunks=2)
    case = draw(size, "random", torch.float32)
    apart = by_kernels(case, torch.float32, size.chunk)
    monkeypatch.setattr(flow, "PROGRAMS", 1)
    monkeypatch.setattr(flow, "WALKERS", 1)
    together = by_kernels(case, torch.float32, size.chunk)
    for name, x in together.items():
        assert float((apart[name] - x).norm() / x.norm()) < EXACTLY, name


def test_samples_may_forget_alike() -> None:
    """One row of gates for the whole batch, and the sum of its derivatives."""
    case = draw(Size(batch=2, chunks=2), "random", torch.float32)
    assert case.log_keep is not None
    alike = case._replace(log_keep=case.log_keep[:1])
    found, wanted = by_kernels(alike, torch.float32, 16), by_torch(alike, 16)
    for name, x in wanted.items():
        assert float((found[name] - x).norm() / x.norm()) < EXACTLY, name


def test_the_state_given_is_left_as_it_was() -> None:
    case = draw(Size(), "random", torch.float32)
    before = case.state.clone()
    kernels.run(*case, low=torch.float32, chunk=16)
    assert torch.equal(case.state, before)


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 64, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    assert not kernels.takes(keys, values)
    if not ON_A_GPU:
        return
    with torch.autocast("cuda", torch.bfloat16):
        assert kernels.takes(keys, values)
        assert not kernels.takes(keys[:, :, :100], values[:, :, :100])
        assert not kernels.takes(keys[..., :48], values)
        decayed(keys, keys, values, None, torch.zeros(1, 1, 64, 65, device=DEVICE), chunk=8)
    assert "(decayed)" in backend()
    with torch.autocast("cuda", torch.float16):
        assert not kernels.takes(keys, values)


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(heads=2, chunks=2), "random", torch.float32)
    assert case.log_keep is not None
    tokens = (kernels.token_wise(x, torch.float32) for x in case[:3])
    given = tuple(x.detach().requires_grad_() for x in (*tokens, case.log_keep, case.state))
    torch.library.opcheck(operator.decayed, (*given, 16), atol=1e-4, rtol=1e-4)


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", "decayed", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launched = {"decays_kernel", "chain_kernel", "read_kernel", "adjoint_kernel", "through_decays_kernel"}
    assert set(json.loads(done.stdout.splitlines()[-1])) == launched
