"""The delta rule in chunks is the delta rule token by token, and other people's."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels import fla
from lockstep.kernels.record import Ran, recorded_in
from lockstep.memory import Gates, Memory, MemorySpec, memorize
from lockstep.models.recurrences.delta import delta_rule
from tests.memory.cases import Named, assert_close, gradients

CHUNK = 8
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2)
KEY_DIM, VALUE_DIM = 5, 3


def drawn(length: int, *, seed: int = 0, extremes: bool = True, dtype: torch.dtype = torch.float64) -> Named:
    """All that `delta_rule` is given, by name; `extremes` plants rates of 0 and 1, and keeps of 1 and 0."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, 3, *shape, generator=draw, dtype=torch.float64)

    def uniform() -> Tensor:
        return torch.rand(2, 3, length, generator=draw, dtype=torch.float64)

    rate, log_keep = uniform(), -0.5 * uniform()
    if extremes:
        chance = uniform()
        rate = rate.masked_fill(chance < 0.2, 0.0).masked_fill(chance > 0.8, 1.0)
        chance = uniform()
        log_keep = log_keep.masked_fill(chance < 0.2, 0.0).masked_fill(chance > 0.9, -1e4)
    inputs = {
        "queries": normal(length, KEY_DIM),
        "keys": F.normalize(normal(length, KEY_DIM), dim=-1),
        "values": normal(length, VALUE_DIM),
        "rate": rate,
        "log_keep": log_keep,
        "state": normal(KEY_DIM, VALUE_DIM),
    }
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def run(inputs: Named, chunk: int = CHUNK) -> Named:
    given: dict[str, Any] = {"log_keep": None, **inputs}
    reads, state = delta_rule(**given, chunk=chunk)
    return {"reads": reads, "state": state}


def token_by_token(inputs: Named) -> Named:
    """As the papers write it."""
    S, reads = inputs["state"], []
    for t in range(inputs["keys"].shape[2]):
        q, k, v = (inputs[name][:, :, t, :, None] for name in ("queries", "keys", "values"))
        rate = inputs["rate"][:, :, t, None, None]
        if "log_keep" in inputs:
            S = inputs["log_keep"][:, :, t, None, None].exp() * S
        S = S - rate * k @ (k.mT @ S) + rate * k @ v.mT
        reads.append((S.mT @ q)[..., 0])
    return {"reads": torch.stack(reads, dim=2), "state": S}


def with_gradients(rule: Callable[[Named], Named], inputs: Named) -> Named:
    tracked = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    outputs = rule(tracked)
    return outputs | gradients(outputs, tracked)


def cut(inputs: Named, start: int, stop: int) -> Named:
    """Some of the tokens; the state is not one."""
    return {name: tensor if name == "state" else tensor[:, :, start:stop] for name, tensor in inputs.items()}


@pytest.mark.parametrize("forgets", [False, True], ids=["delta rule", "gated delta rule"])
@pytest.mark.parametrize("extremes", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_are_the_definition(length: int, extremes: bool, forgets: bool) -> None:
    """Reads, state, and gradients with respect to everything that goes in."""
    for seed in range(3):
        inputs = drawn(length, seed=seed, extremes=extremes)
        if not forgets:
            del inputs["log_keep"]
        assert_close(with_gradients(run, inputs), with_gradients(token_by_token, inputs), 1e-10)


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("log_keep", [0.0, -1e4])
def test_gates_that_are_all_the_same(rate: float, log_keep: float) -> None:
    inputs = drawn(3 * CHUNK + 2)
    inputs |= {"rate": torch.full_like(inputs["rate"], rate), "log_keep": torch.full_like(inputs["rate"], log_keep)}
    assert_close(with_gradients(run, inputs), with_gradients(token_by_token, inputs), 1e-10)


def test_a_key_that_comes_again_is_overwritten() -> None:
    """At a rate of one nothing of its old value is left, and other keys keep theirs."""
    keys = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 0, 3, 1]].expand(1, 1, -1, -1)
    values = torch.arange(6.0, dtype=torch.float64)[:, None].expand(1, 1, -1, -1)
    ones = torch.ones(1, 1, 6, dtype=torch.float64)
    state = torch.zeros(1, 1, 4, 1, dtype=torch.float64)
    _, state = delta_rule(keys, keys, values, ones, None, state, 4)
    assert state.flatten().tolist() == [3, 5, 2, 4]


@pytest.mark.parametrize("chunk", [1, 3, 13, 64])
def test_chunks_leave_no_trace(chunk: int) -> None:
    inputs = drawn(3 * CHUNK + 2)
    assert_close(with_gradients(lambda x: run(x, chunk), inputs), with_gradients(run, inputs), 1e-10)


@pytest.mark.parametrize("cuts", [(1,), (5, 6, 7), (CHUNK, 2 * CHUNK), (3, 2 * CHUNK + 1)], ids=str)
def test_any_split_is_one_call(cuts: tuple[int, ...]) -> None:
    inputs = drawn(3 * CHUNK + 2)
    state, reads = inputs["state"], []
    for start, stop in zip((0, *cuts), (*cuts, 3 * CHUNK + 2), strict=True):
        part = run({**cut(inputs, start, stop), "state": state})
        reads.append(part["reads"])
        state = part["state"]
    assert_close({"reads": torch.cat(reads, dim=2), "state": state}, run(inputs), 1e-12)


def test_float32_stays_exact_over_thousands_of_tokens() -> None:
    """Also after tokens that forget everything, whose logarithms would swallow those of their neighbours in a sum."""
    inputs = drawn(4096)
    single = {name: tensor.float() for name, tensor in inputs.items()}
    exact = run({name: tensor.double() for name, tensor in single.items()}, chunk=64)
    assert_close({name: x.double() for name, x in run(single, chunk=64).items()}, exact, 1e-6)


@pytest.mark.parametrize("length", [1, CHUNK + 1])
def test_arithmetic_is_at_least_float32(length: int) -> None:
    """Whatever comes in, and whatever autocast would like."""
    lowered = {name: tensor.bfloat16() for name, tensor in drawn(length).items()}
    expected = run({name: tensor.float() for name, tensor in lowered.items()})
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(run(lowered), expected, 0.0)


def test_the_grid_of_memories_has_the_same_point() -> None:
    """A linear memory that descends the gradient of l2 at every token and keeps everything."""
    inputs = drawn(3 * CHUNK + 2)
    del inputs["log_keep"]
    gates = Gates(keep=torch.ones_like(inputs["rate"]), rate=inputs["rate"])
    spec = MemorySpec(structure="linear", bias="l2", rule="gradient-descent", chunk=1)
    queries, keys, values = (inputs[name] for name in ("queries", "keys", "values"))
    reads, memory = memorize(queries, keys, values, gates, Memory((inputs["state"],)), spec)
    assert_close(run(inputs), {"reads": reads, "state": memory.weights[0]}, 1e-12)


# --- what others have written: theirs scale the queries, and all but one cast to float32 whatever they are given


def other(module: str) -> Any:
    """A module of theirs; fla warns where there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(module, reason="the other implementation is not installed")


def scaled(inputs: Named) -> Named:
    return {**inputs, "queries": inputs["queries"] * KEY_DIM**-0.5}


def arranged(inputs: Named) -> list[Tensor]:
    """Queries, keys, values, rate and log keep, time before heads."""
    return [inputs[name].transpose(1, 2) for name in ("queries", "keys", "values", "rate", "log_keep")]


@pytest.mark.parametrize("name", ["naive_recurrent_gated_delta_rule", "naive_chunk_gated_delta_rule"])
def test_gated_delta_rule_of_fla(name: str) -> None:
    """Their chunks lose precision in sums of logarithms where everything is forgotten, so that nothing is here."""
    rule = getattr(other("fla.ops.gated_delta_rule.naive"), name)
    inputs = drawn(3 * CHUNK + 2, dtype=torch.float32, extremes="recurrent" in name)
    q, k, v, beta, g = arranged(inputs)
    reads, state = rule(q, k, v, beta=beta, g=g, initial_state=inputs["state"], output_final_state=True)
    assert_close(run(scaled(inputs)), {"reads": reads.transpose(1, 2), "state": state}, 1e-5)


@pytest.mark.parametrize("name", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_gated_delta_rule_of_transformers(name: str) -> None:
    # Unwrapped, because with fla installed the name stands for a kernel of theirs.
    rule = inspect.unwrap(getattr(other("transformers.models.qwen3_next.modeling_qwen3_next"), name))
    inputs = drawn(3 * CHUNK + 2, dtype=torch.float32, extremes="recurrent" in name)
    q, k, v, beta, g = arranged(inputs)
    reads, state = rule(q, k, v, beta=beta, g=g, initial_state=inputs["state"], output_final_state=True)
    assert_close(run(scaled(inputs)), {"reads": reads.transpose(1, 2), "state": state}, 1e-5)


def test_delta_rule_of_fla() -> None:
    inputs = drawn(3 * CHUNK + 2, dtype=torch.float32)
    del inputs["log_keep"]
    tokens = [inputs[name] for name in ("queries", "keys", "values", "rate")]
    reads, state = other("fla.ops.delta_rule.naive").delta_rule_recurrence(*tokens, initial_state=inputs["state"])
    assert_close(run(scaled(inputs)), {"reads": reads, "state": state}, 1e-5)


def test_delta_rule_of_fla_in_float64() -> None:
    """Their plain chunks leave the dtype alone; they start from nothing, and are whole."""
    inputs = drawn(3 * CHUNK) | {"state": torch.zeros(2, 3, KEY_DIM, VALUE_DIM, dtype=torch.float64)}
    del inputs["log_keep"]
    tokens = [inputs[name] for name in ("queries", "keys", "values", "rate")]
    reads, state = other("fla.ops.delta_rule.naive").delta_rule_chunkwise(*tokens, chunk_size=CHUNK)
    assert_close(run(scaled(inputs)), {"reads": reads, "state": state}, 1e-10)


@pytest.mark.parametrize("forgets", [False, True], ids=["delta rule", "gated delta rule"])
def test_kernels_are_given_what_they_want(forgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their part is played by fla's definition, on numbers that their dtype holds exactly."""
    definition = other("fla.ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule

    def kernel(**given: Any) -> tuple[Tensor, Tensor]:
        given.setdefault("g", torch.zeros_like(given["beta"]))
        reads, state = definition(**given)
        return reads, state

    lower = torch.get_autocast_dtype("cuda")
    inputs = {name: tensor.to(lower).float() for name, tensor in drawn(CHUNK + 1).items()}
    if not forgets:
        del inputs["log_keep"]
    expected = run(inputs)
    monkeypatch.setattr(fla, "takes", lambda *_: True)
    monkeypatch.setattr(fla, "function", lambda _: kernel)
    ran: Ran = set()
    with recorded_in(ran):
        assert_close(run(inputs), expected, 1e-5)
    assert ran == {("fla-core", "gated-delta-rule" if forgets else "delta-rule")}
