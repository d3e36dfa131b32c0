"""Sizes are solved for: every architecture reaches every scale, and says so when it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.config.match import SCALES, MatchSpec, Quantity, Scale
from lockstep.errors import UserError
from lockstep.models.registry import architectures, find
from lockstep.study.match import amount_of, cost_on_meta, match

GIVEN: dict[str, Any] = {"vocab_size": 32_000, "max_length": 1024}
LENGTH = 1024


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", architectures())
def test_every_architecture_reaches_every_scale(name: str, scale: Scale) -> None:
    wanted = SCALES[scale]
    spec = match(name, GIVEN, wanted, LENGTH)
    found = cost_on_meta(spec, LENGTH).non_embedding_parameters
    assert found == pytest.approx(wanted.target, rel=0.01)
    # Sensible: neither a wide puddle nor a narrow tower, and heads of a size that hardware and papers know.
    aspect = spec.dim / spec.depth / find(name).aspect
    assert 1 / 2.5 <= aspect <= 2.5 or spec.depth == spec.period
    if spec.has_heads:
        assert spec.dim % spec.heads == 0
        assert 8 <= spec.dim // spec.heads <= 64


@pytest.mark.parametrize("name", ["transformer++", "titans-lmm", "gated-deltanet", "lstm", "samba"])
@pytest.mark.parametrize(
    ("on", "target"), [("total_parameters", 30e6), ("training_flops", 2e8), ("non_embedding_parameters", 7.7e6)]
)
def test_other_quantities(name: str, on: Quantity, target: float) -> None:
    spec = match(name, GIVEN, MatchSpec(on=on, target=target), LENGTH)
    assert amount_of(cost_on_meta(spec, LENGTH), on) == pytest.approx(target, rel=0.01)


def test_states_of_the_same_size() -> None:
    """A cache of 1,024 tokens and a memory can be made equally large, if not within one percent."""
    wanted = MatchSpec(on="state_bytes", target=20e6, tolerance=0.1)
    for name in ("transformer++", "titans-lmm", "gated-deltanet"):
        assert cost_on_meta(match(name, GIVEN, wanted, LENGTH), LENGTH).state_bytes == pytest.approx(20e6, rel=0.1)


@pytest.mark.parametrize(
    "fixed", [{"dim": 512}, {"depth": 7}, {"dim": 384, "heads": 6}, {"hidden": 1024}, {"dim": 512, "depth": 10}]
)
def test_what_is_given_stays(fixed: dict[str, int]) -> None:
    spec = match("transformer++", {**GIVEN, **fixed}, MatchSpec(target=30e6, tolerance=0.05), LENGTH)
    assert fixed.items() <= spec.model_dump().items()
    assert cost_on_meta(spec, LENGTH).non_embedding_parameters == pytest.approx(30e6, rel=0.05)


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("transformer++", {"heads": 6}),
        ("transformer++", {"kv_heads": 2}),
        ("mamba2", {"head_dim": 64}),
        ("samba", {"depth": 5}),
        ("gated-deltanet-h", {"depth": 3}),
        ("hybrid", {"pattern": ("attention", "retnet")}),
        ("hybrid", {"pattern": ("retnet", "attention")}),
        ("hf", {"hf": {"config": {"model_type": "llama", "num_key_value_heads": 2}}}),
    ],
)
def test_whatever_is_given_the_size_is_right(name: str, fixed: dict[str, Any]) -> None:
    spec = match(name, {**GIVEN, **fixed}, MatchSpec(target=3e6, tolerance=0.011), LENGTH)
    assert cost_on_meta(spec, LENGTH).non_embedding_parameters == pytest.approx(3e6, rel=0.011)
    assert {key: value for key, value in fixed.items() if key != "hf"}.items() <= spec.model_dump().items()


def test_trained_weights_are_not_resized() -> None:
    with pytest.raises(UserError, match="trained weights have a size of their own; use match: none"):
        match("hf", {**GIVEN, "hf": {"folder": "anywhere"}}, MatchSpec(target=3e6), LENGTH)


def test_fields_that_are_lists_can_be_given() -> None:
    pattern = ("gru", "attention:window=64")
    spec = match("hybrid", {**GIVEN, "pattern": list(pattern)}, MatchSpec(target=5e6), LENGTH)
    assert spec.model_dump()["pattern"] == pattern
    assert spec.depth % 2 == 0


def test_a_size_out_of_reach_names_the_closest() -> None:
    with pytest.raises(UserError, match=r"lstm: .* of 3K within 1.00% cannot be reached; the closest is [0-9.]+K"):
        match("lstm", GIVEN, MatchSpec(target=3e3), LENGTH)
    closest = r"the closest is 63[0-9.]+M \(dim 512, depth 12, hidden 27[0-9]+\)"
    with pytest.raises(UserError, match=closest):
        match("transformer++", {**GIVEN, "dim": 512, "depth": 12}, MatchSpec(target=100e6), LENGTH)


def test_nothing_is_allocated() -> None:
    """760 million parameters would show."""
    before = torch.get_rng_state()
    match("transformer++", GIVEN, SCALES["large"], LENGTH)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("text", "value"), [("50M", 50e6), ("1.3B", 1.3e9), ("2e5", 2e5), (7, 7), ("760 m", 760e6)])
def test_amounts_as_people_write_them(text: str | int, value: float) -> None:
    assert MatchSpec.model_validate({"target": text}).target == value
    assert MatchSpec.model_validate({"target": text, "tolerance": "2%"}).tolerance == pytest.approx(0.02)
