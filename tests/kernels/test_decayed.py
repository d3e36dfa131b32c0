"""Our kernels of the decayed recurrence say what the torch form says in float64: reads, states and gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.recurrences import decayed as kernels
from lockstep.models.recurrences.decayed import decayed
from tests.kernels.memories import DEVICE
from tests.kernels.recurrences import (
    BOUNDS,
    EXACTLY,
    KEEPS,
    Recurrence,
    drawn_keep_if_any,
    in_each_precision,
    normals,
    on_a_gpu,
    on_device,
    require_close,
    require_operator,
)

pytest.importorskip("triton")

from lockstep.kernels.recurrences import flow, operator

CHUNK, LONG_CHUNK = 16, kernels.LONG_CHUNK


class Size(NamedTuple):
    """Heads of keys and of values, and how wide these are; `chunks` of `chunk` tokens."""

    groups: int = 1
    heads: int = 2
    chunks: int = 3
    key_dim: int = 16
    value_dim: int = 32
    chunk: int = CHUNK
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
LONG_SIZES = {
    "one chunk": Size(heads=1, chunks=1, key_dim=64, value_dim=64, chunk=LONG_CHUNK),
    "shared keys": Size(groups=1, heads=3, chunks=3, key_dim=128, value_dim=64, chunk=LONG_CHUNK),
    "groups": Size(groups=2, heads=4, chunks=2, key_dim=128, value_dim=64, chunk=LONG_CHUNK, batch=2),
    "blocks of keys": Size(chunks=3, key_dim=256, value_dim=64, chunk=LONG_CHUNK),
    "blocks of values": Size(heads=2, groups=2, chunks=2, key_dim=64, value_dim=128, chunk=LONG_CHUNK),
}
"""In 16 bits."""
ON_GPUS = {
    "mamba2": Size(1, 16, 8, 128, 64, 64, batch=2),
    "retnet": Size(4, 4, 8, 64, 128, 64, batch=2),
    "wide retnet": Size(2, 2, 4, 256, 512, 64),
    "linear attention": Size(4, 4, 8, 64, 65, 64, batch=2),
}
LONG_ON_GPUS = {name: size._replace(chunk=LONG_CHUNK) for name, size in ON_GPUS.items()} | {
    "odd number of chunks": Size(1, 16, 7, 128, 64, LONG_CHUNK, batch=2),
    "long keys of many heads": Size(1, 16, 4, 256, 64, LONG_CHUNK),
}
"""As models have them."""


class Case(NamedTuple):
    """All that `decayed` is given, but for the chunk."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor | None
    state: Tensor


def recurrence(low: torch.dtype, chunk: int = CHUNK) -> Recurrence:
    run = partial(kernels.run, low=low, chunk=chunk)
    return Recurrence("decayed", partial(decayed, chunk=chunk), run, reads=low)


def draw(size: Size, keep: str, low: torch.dtype) -> Case:
    """Tokens that are numbers of `low`, in float32."""
    normal, time = normals(), size.chunks * size.chunk

    def tokens(heads: int, width: int, scale: float = 1.0) -> Tensor:
        return (normal(size.batch, heads, time, width) * scale).to(low).float()

    case = Case(
        tokens(size.groups, size.key_dim),
        tokens(size.groups, size.key_dim, size.key_dim**-0.5),
        tokens(size.heads, size.value_dim),
        drawn_keep_if_any(normal(size.batch, size.heads, time), keep),
        normal(size.batch, size.heads, size.key_dim, size.value_dim),
    )
    return on_device(case)


def require_alike(size: Size, keep: str, low: torch.dtype) -> None:
    recurrence(low, size.chunk).require_close(draw(size, keep, low), BOUNDS[low])


@in_each_precision
@pytest.mark.parametrize("keep", ["all", *KEEPS])
def test_gates(keep: str, low: torch.dtype) -> None:
    require_alike(Size(), keep, low)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_other_sizes(size: Size) -> None:
    """Also values that fill no block, and blocks that programs share."""
    require_alike(size, "random", torch.float32)


@pytest.mark.parametrize("size", LONG_SIZES.values(), ids=LONG_SIZES)
def test_long_chunks(size: Size) -> None:
    require_alike(size, "slowly", torch.bfloat16)


@pytest.mark.parametrize("keep", ["all", *KEEPS])
def test_gates_in_long_chunks(keep: str) -> None:
    require_alike(Size(chunks=2, key_dim=64, value_dim=64, chunk=LONG_CHUNK), keep, torch.bfloat16)


SHARED, APART = Size(1, 8, 2, 128, 64, kernels.CHUNK), Size(2, 2, 2, 64, 128, kernels.CHUNK)


@pytest.mark.parametrize(
    ("size", "chosen"),
    [(SHARED, LONG_CHUNK), (SHARED._replace(chunks=3), kernels.CHUNK), (APART, kernels.CHUNK)],
    ids=["shared", "odd", "apart"],
)
def test_chunks_are_long_where_states_outweigh_tokens(size: Size, chosen: int) -> None:
    """In 16 bits; 32 leave no room."""
    case = draw(size, "random", torch.bfloat16)
    by_itself, asked = (kernels.run(*case, chunk=chunk)[0] for chunk in (None, chosen))
    assert torch.equal(by_itself, asked)
    assert kernels.suitable_chunk(case.keys, case.values, torch.float32) == kernels.CHUNK


@on_a_gpu
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@in_each_precision
def test_sizes_of_models(size: Size, low: torch.dtype) -> None:
    for keep in ("slowly", "random", "now and then"):
        require_alike(size, keep, low)


@on_a_gpu
@pytest.mark.parametrize("size", LONG_ON_GPUS.values(), ids=LONG_ON_GPUS)
@pytest.mark.parametrize("programs", [1, flow.PROGRAMS], ids=["heads in a row", "heads apart"])
def test_long_chunks_of_models(size: Size, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes through heads asks for their tiles ahead, which one of few heads does not."""
    monkeypatch.setattr(flow, "PROGRAMS", programs)
    for keep in ("slowly", "random", "now and then"):
        require_alike(size, keep, torch.bfloat16)


def test_heads_that_programs_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program has all heads of a group if there are programs enough, and else fewer."""
    case = draw(Size(groups=2, heads=8, chunks=2), "random", torch.float32)
    apart = recurrence(torch.float32).by_kernels(case)
    monkeypatch.setattr(flow, "PROGRAMS", 1)
    monkeypatch.setattr(flow, "WALKERS", 1)
    require_close(apart, recurrence(torch.float32).by_kernels(case), EXACTLY)


def test_samples_may_forget_alike() -> None:
    """One row of gates for the whole batch, and the sum of its derivatives."""
    case = draw(Size(batch=2, chunks=2), "random", torch.float32)
    assert case.log_keep is not None
    recurrence(torch.float32).require_close(case._replace(log_keep=case.log_keep[:1]), EXACTLY)


def test_what_is_given_is_left_as_it_was() -> None:
    recurrence(torch.float32).require_given_left_alone(draw(Size(), "random", torch.float32))


def test_who_is_taken() -> None:
    """Whole chunks under bfloat16 autocast on a GPU; all else is left to others."""
    keys, values = torch.zeros(1, 1, 128, 64, device=DEVICE), torch.zeros(1, 1, 128, 65, device=DEVICE)
    case = Case(keys, keys, values, None, torch.zeros(1, 1, 64, 65, device=DEVICE))
    recurrence(torch.bfloat16, chunk=8).require_whole_chunks_taken(kernels.takes, case, misfit=keys[..., :48])


@in_each_precision
def test_what_a_compiler_is_told(low: torch.dtype) -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case = draw(Size(heads=2, chunks=2), "random", low)
    require_operator(operator.decayed, case, tokens=3, chunk=CHUNK, low=low)
