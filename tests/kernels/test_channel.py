"""Our kernels of channels that decay on their own say what the torch form says in float64: reads, states, gradients."""

from __future__ import annotations

import random
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.recurrences import channel as kernels
from lockstep.models.recurrences.channel_decayed import channel_decayed
from tests.kernels import recurrences
from tests.kernels.memories import DEVICE
from tests.kernels.recurrences import (
    BOUNDS,
    CHUNK,
    ON_A_GPU,
    ROUNDED,
    Recurrence,
    Size,
    drawn_keep,
    in_each_precision,
    normals,
    on_a_gpu,
    on_device,
    require_operator,
)

pytest.importorskip("triton")

from lockstep.kernels.recurrences import operator

KEEPS = (*recurrences.KEEPS, "as a model", "e^-30", "1 - 1e-4")
SIZES = recurrences.SIZES | {
    "half a block of keys": Size(chunks=2, key_dim=32, value_dim=64),
    "keys that fill no block": Size(heads=2, chunks=2, key_dim=48, value_dim=48),
    "keys that do not fill their blocks": Size(chunks=2, key_dim=80),
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


class Case(NamedTuple):
    """All that `channel_decayed` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor
    state: Tensor


def recurrence(low: torch.dtype, chunk: int = CHUNK) -> Recurrence:
    form = partial(channel_decayed, chunk=chunk)
    return Recurrence("channel-decayed", form, partial(kernels.run, low=low, chunk=chunk))


def draw(size: Size, keep: str, low: torch.dtype) -> Case:
    """Tokens that are numbers of `low`, in float32."""
    normal, time = normals(), size.chunks * size.chunk

    def tokens(width: int, scale: float = 1.0) -> Tensor:
        return (normal(size.batch, size.heads, time, width) * scale).to(low).float()

    case = Case(
        tokens(size.key_dim, size.key_dim**-0.5),
        tokens(size.key_dim),
        tokens(size.value_dim),
        drawn_keep(normal(size.batch, size.heads, time, size.key_dim), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return on_device(case)


def require_alike(size: Size, keep: str, low: torch.dtype) -> None:
    recurrence(low, size.chunk).require_close(draw(size, keep, low), BOUNDS[low])


@in_each_precision
@pytest.mark.parametrize("keep", KEEPS)
def test_gates(keep: str, low: torch.dtype) -> None:
    require_alike(Size(), keep, low)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size) -> None:
    """Also keys and values that fill no block, and blocks that programs share."""
    require_alike(size, "random", torch.float32)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_sizes(seed: int) -> None:
    draw = random.Random(seed)
    widths = draw.randint(1, 100), draw.randint(1, 100)
    size = Size(draw.randint(1, 3), draw.randint(1, 4), *widths, batch=draw.randint(1, 2))
    require_alike(size, draw.choice(KEEPS), torch.float32)


@pytest.mark.parametrize("keep", KEEPS)
def test_longer_chunks_in_bfloat16(keep: str) -> None:
    require_alike(SIZES["longer chunks"], keep, torch.bfloat16)


@on_a_gpu
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@in_each_precision
def test_sizes_of_models(size: Size, low: torch.dtype) -> None:
    for keep in ("slowly", "as a model", "random", "now and then"):
        require_alike(size, keep, low)


def test_gates_of_channels_that_forget_are_told_exactly() -> None:
    """What a gate hears is no difference of large numbers: beside channels that keep everything, one forgets."""
    case = draw(Size(chunks=2, key_dim=32, value_dim=64), "1 - 1e-4", torch.bfloat16)
    case.log_keep[:, :, ::5, ::3] = -7.0
    both = recurrence(torch.bfloat16)
    found, wanted = (x["gradient of log_keep"][:, :, ::5, ::3] for x in (both.by_kernels(case), both.by_torch(case)))
    assert float((found - wanted).norm() / wanted.norm()) < ROUNDED


def test_nothing_depends_on_when() -> None:
    """What is computed again is the same, to the last bit."""
    case = draw(Size(heads=3), "random", torch.bfloat16)
    wanted = recurrence(torch.bfloat16).by_kernels(case)
    for _ in range(10 if ON_A_GPU else 1):
        again = recurrence(torch.bfloat16).by_kernels(case)
        assert [name for name in wanted if not torch.equal(again[name], wanted[name])] == []


def test_what_is_given_is_left_as_it_was() -> None:
    case = draw(Size(key_dim=64, value_dim=64), "random", torch.float32)
    recurrence(torch.float32).require_given_left_alone(case)


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 32, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    case = Case(keys, keys, values, keys, torch.zeros(1, 1, 32, 65, device=DEVICE))
    wide = keys.repeat(1, 1, 1, 16)
    recurrence(torch.bfloat16, chunk=8).require_whole_chunks_taken(kernels.takes, case, misfit=wide)


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(chunks=2, key_dim=32, value_dim=64), "random", torch.float32)
    require_operator(operator.decayed, case, tokens=4, chunk=CHUNK)
