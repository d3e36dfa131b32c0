"""Our kernels of the delta rule say what the torch form says in float64: reads, states and gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.recurrences import delta as kernels
from lockstep.models.recurrences.delta import delta_rule
from tests.kernels import recurrences
from tests.kernels.memories import DEVICE
from tests.kernels.recurrences import (
    BOUNDS,
    CHUNK,
    KEEPS,
    Recurrence,
    Size,
    drawn_keep_if_any,
    in_each_precision,
    normals,
    on_a_gpu,
    on_device,
    require_operator,
)

pytest.importorskip("triton")

from lockstep.kernels.recurrences import delta_operator as operator

RATES = ("drawn", "one", "none, some and all")
KEYS = ("drawn", "repeated", "few")
SIZES = recurrences.SIZES | {
    "keys that are no power of two": Size(heads=1, chunks=2, key_dim=96, value_dim=48),
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


def recurrence(low: torch.dtype, chunk: int = CHUNK) -> Recurrence:
    return Recurrence("delta", partial(delta_rule, chunk=chunk), partial(kernels.run, low=low, chunk=chunk))


def draw(size: Size, keep: str, low: torch.dtype, rate: str = "drawn", keys: str = "drawn") -> Case:
    """Tokens that are numbers of `low`, in float32."""
    normal, time = normals(), size.chunks * size.chunk

    def tokens(width: int) -> Tensor:
        return normal(size.batch, size.heads, time, width)

    queries, drawn, values = tokens(size.key_dim), tokens(size.key_dim), tokens(size.value_dim)
    case = Case(
        F.normalize(queries, dim=-1).to(low).float(),
        F.normalize(drawn_keys(drawn, keys), dim=-1).to(low).float(),
        values.to(low).float(),
        drawn_rate(tokens(1).squeeze(-1), rate),
        drawn_keep_if_any(tokens(1).squeeze(-1), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return on_device(case)


def drawn_keys(normal: Tensor, keys: str) -> Tensor:
    """All unlike, the same all along, and four in turn, of which memory soon knows what it will be told."""
    repeated, few = normal[:, :, :1].expand_as(normal), normal[:, :, torch.arange(normal.shape[2]) % 4]
    return {"drawn": normal, "repeated": repeated, "few": few}[keys]


def drawn_rate(normal: Tensor, rate: str) -> Tensor:
    plain = normal.sigmoid()
    mixed = plain.masked_fill(normal > 0.5, 1.0).masked_fill(normal < -0.5, 0.0)
    return {"drawn": plain, "one": torch.ones_like(normal), "none, some and all": mixed}[rate]


def require_alike(size: Size, keep: str, low: torch.dtype, rate: str = "drawn", keys: str = "drawn") -> None:
    recurrence(low, size.chunk).require_close(draw(size, keep, low, rate, keys), BOUNDS[low])


@in_each_precision
@pytest.mark.parametrize("keep", ["all", *KEEPS])
def test_gates(keep: str, low: torch.dtype) -> None:
    require_alike(Size(), keep, low)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("keep", ["all", "slowly"])
def test_keys_and_rates(keys: str, rate: str, keep: str) -> None:
    """Also where each write replaces the one before."""
    for low in BOUNDS:
        require_alike(Size(), keep, low, rate, keys)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size) -> None:
    """Also keys and values that fill no block, and blocks that programs share."""
    require_alike(size, "random", torch.float32)


@pytest.mark.parametrize("keys", KEYS)
def test_longer_chunks_in_bfloat16(keys: str) -> None:
    require_alike(SIZES["longer chunks"], "slowly", torch.bfloat16, "drawn", keys)


@on_a_gpu
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@in_each_precision
def test_sizes_of_models(size: Size, low: torch.dtype) -> None:
    for keep in ("all", "slowly", "random", "now and then"):
        require_alike(size, keep, low)
    require_alike(size, "slowly", low, "one", "repeated")


def test_what_is_given_is_left_as_it_was() -> None:
    case = draw(Size(value_dim=64, key_dim=64), "random", torch.float32)
    recurrence(torch.float32).require_given_left_alone(case)


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 48, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    case = Case(keys, keys, values, keys[..., 0], None, torch.zeros(1, 1, 48, 65, device=DEVICE))
    wide = keys.repeat(1, 1, 1, 8)
    recurrence(torch.bfloat16, chunk=8).require_whole_chunks_taken(kernels.takes, case, misfit=wide)


def test_what_a_compiler_is_told() -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(chunks=2, key_dim=64, value_dim=64), "random", torch.float32)
    require_operator(operator.delta, case, tokens=3, chunk=CHUNK)
