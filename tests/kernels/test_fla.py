"""fla-core's kernels say what the torch forms say, where there is a GPU to run them on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.kernels import fla
from lockstep.kernels.record import backend
from lockstep.models.recurrences.channel_decayed import channel_decayed
from lockstep.models.recurrences.decayed import decayed
from lockstep.models.recurrences.delta import delta_rule

BATCH, HEADS, TIME, KEY, VALUE, CHUNK = 2, 3, 200, 64, 128, 64
CLOSE = 0.02
"""Of the largest number: what sixteen bits allow."""

NEEDED = "needs a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it"
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=NEEDED)


def test_without_a_gpu_nothing_is_taken() -> None:
    rows = torch.zeros(1, 1, 8, 8)
    assert not any(fla.takes(operation, rows) for operation in fla.FUNCTIONS)
    if not torch.cuda.is_available():
        assert {fla.unusable(operation) for operation in fla.FUNCTIONS} == {"its kernels need a CUDA device, not cpu"}


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    draw = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda")

    rows = {
        "queries": normal(BATCH, HEADS, TIME, KEY) * KEY**-0.5,
        "keys": torch.nn.functional.normalize(normal(BATCH, HEADS, TIME, KEY), dim=-1),
        "values": normal(BATCH, HEADS, TIME, VALUE),
        "rate": normal(BATCH, HEADS, TIME).sigmoid(),
        "log_keep": torch.nn.functional.logsigmoid(normal(BATCH, HEADS, TIME) + 3),
        "channel_log_keep": torch.nn.functional.logsigmoid(normal(BATCH, HEADS, TIME, KEY)) / 16,
        "state": normal(BATCH, HEADS, KEY, VALUE) * 0.1,
    }
    return {name: row.requires_grad_() for name, row in rows.items()}


def run(operation: fla.Operation, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    queries, keys, values, state = (given[name] for name in ("queries", "keys", "values", "state"))
    if operation == "decayed":
        return decayed(queries, keys, values, given["log_keep"], state, CHUNK)
    if operation == "channel-decayed":
        return channel_decayed(queries, keys, values, given["channel_log_keep"], state, CHUNK)
    gate = given["log_keep"] if operation == "gated-delta-rule" else None
    return delta_rule(queries, keys, values, given["rate"], gate, state, CHUNK)


@on_a_gpu
@pytest.mark.parametrize("operation", fla.FUNCTIONS)
def test_reads_states_and_gradients_agree(operation: fla.Operation, inputs: dict[str, Tensor]) -> None:
    reason = fla.unusable(operation)
    if reason is not None:
        pytest.skip(reason)
    exact = run(operation, inputs)
    with torch.autocast("cuda", torch.bfloat16):
        found = run(operation, inputs)
    assert operation in backend()
    assert "fla-core" in backend()
    weights = [torch.randn_like(one) for one in exact]
    needed = [row for row in inputs.values() if used(row, exact, weights)]
    for name, one, other in zip(("reads", "state"), exact, found, strict=True):
        assert far(one, other) < CLOSE, name
    wanted = torch.autograd.grad(weighted(exact, weights), needed)
    got = torch.autograd.grad(weighted(found, weights), needed)
    for row, one, other in zip(needed, wanted, got, strict=True):
        assert far(one, other) < CLOSE, tuple(row.shape)


def weighted(outputs: tuple[Tensor, Tensor], weights: list[Tensor]) -> Tensor:
    return torch.stack([(one.float() * weight).sum() for one, weight in zip(outputs, weights, strict=True)]).sum()


def used(row: Tensor, outputs: tuple[Tensor, Tensor], weights: list[Tensor]) -> bool:
    (gradient,) = torch.autograd.grad(weighted(outputs, weights), [row], retain_graph=True, allow_unused=True)
    return gradient is not None


def far(one: Tensor, other: Tensor) -> float:
    one, other = one.detach(), other.detach().float()
    return float((one - other).abs().max() / one.abs().max())
