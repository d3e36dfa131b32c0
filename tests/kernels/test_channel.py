"""Our kernels of channels that decay on their own say what the torch form says in float64: reads, states, gradients.

Without a GPU they run in Triton's interpreter, on small heads. Both forms are given the same rounded numbers.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences import channel as kernels
from lockstep.kernels.recurrences.decayed import CHUNK as OF_MODELS
from lockstep.kernels.recurrences.decayed import token_wise
from lockstep.models.recurrences.channel_decayed import channel_decayed
from tests.kernels.memories import DEVICE
from tests.memory.cases import Named

operator = pytest.importorskip("lockstep.kernels.recurrences.channel_operator")

ROOT = Path(__file__).resolve().parents[2]
ON_A_GPU = torch.cuda.is_available()
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
CHUNK = OF_MODELS if ON_A_GPU else 16
"""Tokens worked on as one: narrower tiles are nothing to a GPU in 16 bits, and wider ones take the interpreter long."""


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
    "half a block of keys": Size(chunks=2, key_dim=32, value_dim=64),
    "keys that fill no block": Size(heads=2, chunks=2, key_dim=48, value_dim=48),
    "blocks of keys": Size(chunks=2, key_dim=128),
    "keys that do not fill their blocks": Size(chunks=2, key_dim=80),
    "blocks of values": Size(heads=1, chunks=2, value_dim=160, batch=2),
    "longer chunks": Size(chunks=2, key_dim=32, value_dim=64, chunk=64),
}
ON_GPUS = {
    "gla": Size(16, 16, 32, 64, 64, batch=2),
    "wide gla": Size(4, 16, 64, 128, 64, batch=2),
    "wider gla": Size(4, 16, 128, 256, 64),
    "widest gla": Size(2, 8, 256, 512, 64),
    "narrow gla": Size(4, 16, 16, 32, 64),
    "long": Size(2, 64, 32, 64, 64),
}
"""As models have them, 512 tokens and more."""
KEEPS = ("slowly", "as a model", "random", "little", "e^-30", "1 - 1e-4", "nothing", "everything", "now and then")


class Case(NamedTuple):
    """All that `channel_decayed` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor
    state: Tensor

    def to(self, dtype: torch.dtype) -> Case:
        """With gradients asked for."""
        return Case(*(x.to(dtype, copy=True).requires_grad_() for x in self))


def draw(size: Size, keep: str, low: torch.dtype, seed: int = 0) -> Case:
    """Tokens that are numbers of `low`, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def tokens(width: int, scale: float = 1.0) -> Tensor:
        return (normal(size.batch, size.heads, size.chunks * size.chunk, width) * scale).to(low).float()

    case = Case(
        tokens(size.key_dim, size.key_dim**-0.5),
        tokens(size.key_dim),
        tokens(size.value_dim),
        drawn_keep(normal(size.batch, size.heads, size.chunks * size.chunk, size.key_dim), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return Case(*(x.to(DEVICE) for x in case))


def drawn_keep(normal: Tensor, keep: str) -> Tensor:
    """Logarithms of shares, weak and strong, of 0 and 1, and of anything with zeros among it."""
    plain = -normal.abs()
    sometimes = plain.masked_fill(normal > 1, -1e4).masked_fill(normal < -1.5, -torch.inf)
    return {
        "slowly": plain / 50,
        "as a model": torch.nn.functional.logsigmoid(normal) / 16,
        "random": plain,
        "little": 30 * plain,
        "e^-30": torch.full_like(normal, -30.0),
        "1 - 1e-4": torch.full_like(normal, -1e-4),
        "nothing": torch.full_like(normal, -1e4),
        "everything": torch.zeros_like(normal),
        "now and then": sometimes.masked_fill(normal.abs() < 0.3, 0.0),
    }[keep]


def everything(case: Case, found: tuple[Tensor, Tensor]) -> Named:
    """What came out and the gradients of all that went in, in double precision; adjoints are the same for any."""
    draw = torch.Generator().manual_seed(5)
    adjoints = [torch.randn(x.shape, generator=draw).bfloat16().to(x) for x in found]
    gradients = torch.autograd.grad(found, list(case), adjoints)
    named = {f"gradient of {name}": gradient for name, gradient in zip(case._fields, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": found[0], "state": found[1], **named}.items()}


def by_torch(case: Case, chunk: int) -> Named:
    exact = case.to(torch.float64)
    return everything(exact, channel_decayed(*exact, chunk=chunk))


def by_kernels(case: Case, low: torch.dtype, chunk: int) -> Named:
    tracked = case.to(torch.float32)
    found = kernels.run(*tracked, low=low, chunk=chunk)
    assert "(channel-decayed)" in backend()
    assert all(x.dtype is torch.float32 for x in found)
    return everything(tracked, found)


def require_close(size: Size, keep: str, low: torch.dtype, bound: float) -> None:
    case = draw(size, keep, low)
    found, wanted = by_kernels(case, low, size.chunk), by_torch(case, size.chunk)
    # Where nothing is kept some gradients are none but for what no number holds.
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
    """Also keys and values that fill no block, and blocks that programs share."""
    require_close(size, "random", torch.float32, EXACTLY)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_sizes(seed: int) -> None:
    draw = random.Random(seed)
    widths = draw.randint(1, 100), draw.randint(1, 100)
    size = Size(draw.randint(1, 3), draw.randint(1, 4), *widths, batch=draw.randint(1, 2))
    require_close(size, draw.choice(KEEPS), torch.float32, EXACTLY)


@pytest.mark.parametrize("keep", KEEPS)
def test_longer_chunks_in_bfloat16(keep: str) -> None:
    require_close(SIZES["longer chunks"], keep, torch.bfloat16, ROUNDED)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize(("low", "bound"), [(torch.bfloat16, ROUNDED), (torch.float32, EXACTLY)])
def test_sizes_of_models(size: Size, low: torch.dtype, bound: float) -> None:
    for keep in ("slowly", "as a model", "random", "now and then"):
        require_close(size, keep, low, bound)


def test_gates_of_channels_that_forget_are_told_exactly() -> None:
    """What a gate hears is no difference of large numbers: beside channels that keep everything, one forgets."""
    size = Size(chunks=2, key_dim=32, value_dim=64)
    case = draw(size, "1 - 1e-4", torch.bfloat16)
    case.log_keep[:, :, ::5, ::3] = -7.0
    found, wanted = by_kernels(case, torch.bfloat16, size.chunk), by_torch(case, size.chunk)
    name = "gradient of log_keep"
    found_there, wanted_there = (x[name][:, :, ::5, ::3] for x in (found, wanted))
    assert float((found_there - wanted_there).norm() / wanted_there.norm()) < ROUNDED


def test_nothing_depends_on_when() -> None:
    """What is computed again is the same, to the last bit."""
    case = draw(Size(heads=3), "random", torch.bfloat16)
    wanted = by_kernels(case, torch.bfloat16, CHUNK)
    for _ in range(10 if ON_A_GPU else 1):
        again = by_kernels(case, torch.bfloat16, CHUNK)
        assert [name for name in wanted if not torch.equal(again[name], wanted[name])] == []


def test_the_state_given_is_left_as_it_was() -> None:
    case = draw(Size(key_dim=64, value_dim=64), "random", torch.float32)
    before = case.state.clone()
    kernels.run(*case, low=torch.float32, chunk=CHUNK)
    assert torch.equal(case.state, before)


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 32, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    assert not kernels.takes(keys, values)
    if not ON_A_GPU:
        return
    with torch.autocast("cuda", torch.bfloat16):
        assert kernels.takes(keys, values)
        assert not kernels.takes(keys[:, :, :100], values[:, :, :100])
        assert not kernels.takes(keys.repeat(1, 1, 1, 16), values)
        channel_decayed(keys, keys, values, keys, torch.zeros(1, 1, 32, 65, device=DEVICE), chunk=8)
    assert "(channel-decayed)" in backend()
    with torch.autocast("cuda", torch.float16):
        assert not kernels.takes(keys, values)


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(chunks=2, key_dim=32, value_dim=64), "random", torch.float32)
    tokens = (token_wise(x, torch.float32) for x in case[:4])
    given = tuple(x.detach().requires_grad_() for x in (*tokens, case.state))
    torch.library.opcheck(operator.channel_decayed, (*given, CHUNK), atol=1e-4, rtol=1e-4)


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", "channel", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launched = {f"channel_{name}_kernel" for name in ("decays", "chain", "read", "adjoint")}
    assert set(json.loads(done.stdout.splitlines()[-1])) == launched
