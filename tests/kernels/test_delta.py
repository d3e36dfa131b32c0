"""Our kernels of the delta rule say what the torch form says in float64: reads, states and gradients.

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
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences import delta as kernels
from lockstep.kernels.recurrences.decayed import CHUNK as OF_MODELS
from lockstep.kernels.recurrences.decayed import token_wise
from lockstep.models.recurrences.delta import delta_rule
from tests.kernels.memories import DEVICE
from tests.kernels.test_decayed import KEEPS, drawn_keep
from tests.memory.cases import Named

operator = pytest.importorskip("lockstep.kernels.recurrences.delta_operator")

ROOT = Path(__file__).resolve().parents[2]
ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
CHUNK = OF_MODELS if ON_A_GPU else 16
"""Tokens worked on as one: narrower tiles are nothing to a GPU in 16 bits, and wider ones take the interpreter long."""
RATES = ("drawn", "one", "none, some and all")
KEYS = ("drawn", "repeated", "few")


class Size(NamedTuple):
    """Heads and how wide they are; `chunks` of `chunk` tokens."""

    heads: int = 2
    chunks: int = 3
    key_dim: int = 16
    value_dim: int = 32
    chunk: int = CHUNK
    batch: int = 1


SIZES = {
    "batch": Size(heads=3, batch=2, chunks=2),
    "one chunk": Size(chunks=1),
    "many chunks": Size(heads=1, chunks=7),
    "odd widths": Size(key_dim=5, value_dim=15),
    "keys that are no power of two": Size(heads=1, chunks=2, key_dim=96, value_dim=48),
    "blocks of values": Size(heads=1, chunks=2, value_dim=160, batch=2),
    "blocks of keys": Size(chunks=2, key_dim=128),
    "longer chunks": Size(chunks=2, key_dim=64, value_dim=64, chunk=64),
}
ON_GPUS = {
    "deltanet": Size(4, 16, 64, 64, 64, batch=2),
    "wide deltanet": Size(6, 16, 128, 128, 64, batch=2),
    "gated deltanet": Size(6, 16, 96, 192, 64),
    "wide gated deltanet": Size(2, 16, 256, 512, 64),
    "long": Size(2, 64, 128, 128, 64),
}
"""As models have them, 1024 tokens and more."""


class Case(NamedTuple):
    """All that `delta_rule` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    rate: Tensor
    log_keep: Tensor | None
    state: Tensor

    def inputs(self) -> Named:
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return self._replace(**{name: x.to(dtype, copy=True).requires_grad_() for name, x in self.inputs().items()})


def draw(size: Size, keep: str, low: torch.dtype, rate: str = "drawn", keys: str = "drawn") -> Case:
    """Tokens that are numbers of `low`, in float32."""
    generator = torch.Generator().manual_seed(0)
    time = size.chunks * size.chunk

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def tokens(width: int) -> Tensor:
        return normal(size.batch, size.heads, time, width)

    queries, drawn, values = tokens(size.key_dim), tokens(size.key_dim), tokens(size.value_dim)
    case = Case(
        F.normalize(queries, dim=-1).to(low).float(),
        F.normalize(drawn_keys(drawn, keys), dim=-1).to(low).float(),
        values.to(low).float(),
        drawn_rate(tokens(1).squeeze(-1), rate),
        drawn_keep(tokens(1).squeeze(-1), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return case._replace(**{name: x.to(DEVICE) for name, x in case.inputs().items()})


def drawn_keys(normal: Tensor, keys: str) -> Tensor:
    """All unlike, the same all along, and four in turn, of which memory soon knows what it will be told."""
    repeated, few = normal[:, :, :1].expand_as(normal), normal[:, :, torch.arange(normal.shape[2]) % 4]
    return {"drawn": normal, "repeated": repeated, "few": few}[keys]


def drawn_rate(normal: Tensor, rate: str) -> Tensor:
    plain = normal.sigmoid()
    mixed = plain.masked_fill(normal > 0.5, 1.0).masked_fill(normal < -0.5, 0.0)
    return {"drawn": plain, "one": torch.ones_like(normal), "none, some and all": mixed}[rate]


def everything(case: Case, found: tuple[Tensor, Tensor]) -> Named:
    """What came out and the gradients of all that went in, in double precision; adjoints are the same for any."""
    given, draw = case.inputs(), torch.Generator().manual_seed(5)
    adjoints = [torch.randn(x.shape, generator=draw).bfloat16().to(x) for x in found]
    gradients = torch.autograd.grad(found, list(given.values()), adjoints)
    named = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": found[0], "state": found[1], **named}.items()}


def by_torch(case: Case, chunk: int) -> Named:
    exact = case.to(torch.float64)
    return everything(exact, delta_rule(*exact, chunk=chunk))


def by_kernels(case: Case, low: torch.dtype, chunk: int) -> Named:
    tracked = case.to(torch.float32)
    found = kernels.run(*tracked, low=low, chunk=chunk)
    assert "(delta)" in backend()
    assert all(x.dtype is torch.float32 for x in found)
    return everything(tracked, found)


def require_close(case: Case, chunk: int, low: torch.dtype, bound: float) -> None:
    found, wanted = by_kernels(case, low, chunk), by_torch(case, chunk)
    # Where nothing is kept the state's gradient is none but for what no number holds.
    far = {name: float((found[name] - x).norm() / x.norm().clamp_min(1e-6)) for name, x in wanted.items()}
    assert {name: error for name, error in far.items() if not error < bound} == {}


@pytest.mark.parametrize("keep", KEEPS)
def test_float32(keep: str) -> None:
    require_close(draw(Size(), keep, torch.float32), CHUNK, torch.float32, EXACTLY)


@pytest.mark.parametrize("keep", KEEPS)
def test_bfloat16(keep: str) -> None:
    require_close(draw(Size(), keep, torch.bfloat16), CHUNK, torch.bfloat16, ROUNDED)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("keep", ["all", "slowly"])
def test_keys_and_rates(keys: str, rate: str, keep: str) -> None:
    """Also where each write replaces the one before."""
    require_close(draw(Size(), keep, torch.float32, rate, keys), CHUNK, torch.float32, EXACTLY)
    require_close(draw(Size(), keep, torch.bfloat16, rate, keys), CHUNK, torch.bfloat16, ROUNDED)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size) -> None:
    """Also keys and values that fill no block, and blocks that programs share."""
    require_close(draw(size, "random", torch.float32), size.chunk, torch.float32, EXACTLY)


@pytest.mark.parametrize("keys", KEYS)
def test_longer_chunks_in_bfloat16(keys: str) -> None:
    size = SIZES["longer chunks"]
    require_close(draw(size, "slowly", torch.bfloat16, "drawn", keys), size.chunk, torch.bfloat16, ROUNDED)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize(("low", "bound"), [(torch.bfloat16, ROUNDED), (torch.float32, EXACTLY)])
def test_sizes_of_models(size: Size, low: torch.dtype, bound: float) -> None:
    for keep in ("all", "slowly", "random", "now and then"):
        require_close(draw(size, keep, low), size.chunk, low, bound)
    require_close(draw(size, "slowly", low, "one", "repeated"), size.chunk, low, bound)


def test_the_state_given_is_left_as_it_was() -> None:
    case = draw(Size(value_dim=64, key_dim=64), "random", torch.float32)
    before = case.state.clone()
    kernels.run(*case, low=torch.float32, chunk=CHUNK)
    assert torch.equal(case.state, before)


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 48, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    assert not kernels.takes(keys, values)
    if not ON_A_GPU:
        return
    with torch.autocast("cuda", torch.bfloat16):
        assert kernels.takes(keys, values)
        assert not kernels.takes(keys[:, :, :100], values[:, :, :100])
        assert not kernels.takes(keys.repeat(1, 1, 1, 8), values)
        delta_rule(keys, keys, values, keys[..., 0], None, torch.zeros(1, 1, 48, 65, device=DEVICE), chunk=8)
    assert "(delta)" in backend()
    with torch.autocast("cuda", torch.float16):
        assert not kernels.takes(keys, values)


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(chunks=2, key_dim=64, value_dim=64), "random", torch.float32)
    assert case.log_keep is not None
    tokens = (token_wise(x, torch.float32) for x in case[:3])
    given = tuple(x.detach().requires_grad_() for x in (*tokens, case.rate, case.log_keep, case.state))
    torch.library.opcheck(operator.delta, (*given, CHUNK), atol=1e-4, rtol=1e-4)


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", "delta", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    own = {"solve_kernel", "write_kernel", "delta_read_kernel", "unwrite_kernel", "delta_adjoint_kernel"}
    assert set(json.loads(done.stdout.splitlines()[-1])) == own | {"decays_kernel", "through_decays_kernel"}
