"""Probes against memories whose content is known, and against the states that a model steps through."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.evaluation.memory_hooks import ablated, neural_memories
from lockstep.evaluation.memory_measures import candidate_ages, compared, half_lives, ranks, spread, update_magnitudes
from lockstep.evaluation.memory_probes import MemoryProbe, probe_memory
from lockstep.memory import Memory, MemorySpec, Outer, memorize, recollect
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.neural_memory import Observation
from tests.evaluation.memory_models import (
    CHUNK,
    MIRAS,
    TITANS,
    VOCABULARY,
    every_token_once,
    only_memory,
    planted_model,
    random_model,
    random_tokens,
    set_gate,
)


def only_probe(model: LanguageModel, tokens: Tensor) -> MemoryProbe:
    (probe,) = probe_memory(model, tokens)
    return probe


# A memory that is known by heart.


def test_a_planted_memory_retrieves_everything() -> None:
    probe = only_probe(planted_model(), every_token_once())
    assert [group.age for group in probe.retrieval] == [1, 2, 4, 8, 16, 32]
    assert [group.tokens for group in probe.retrieval] == [1, 2, 4, 8, 16, 1]
    assert probe.candidates == VOCABULARY
    for group in probe.retrieval:
        assert group.cosine == pytest.approx(1)
        assert group.strength == pytest.approx(1, rel=1e-6)
        assert group.top1 == 1
        assert (group.initial_cosine, group.initial_top1) == (0, 0), "the memory was empty"


def test_what_is_known_surprises_nobody() -> None:
    """At first a value surprises by its whole length; read a second time it is what the memory says."""
    model, tokens = planted_model(), every_token_once()
    lengths: list[Tensor] = []
    only_memory(model).observer = lambda seen: lengths.append(seen.values.norm(dim=-1))
    with torch.no_grad():
        model(tokens)
    only_memory(model).observer = None
    probe = only_probe(model, tokens.repeat(1, 2))
    assert probe.surprise_series[:VOCABULARY] == pytest.approx(torch.cat(lengths).mean(dim=(0, 1)).tolist())
    assert max(probe.surprise_series[VOCABULARY:]) < 1e-5
    assert probe.surprise == pytest.approx(float(torch.cat(lengths).mean()) / 2, rel=1e-5)
    assert probe.update_series[VOCABULARY:] == pytest.approx([0] * VOCABULARY, abs=1e-5)


def test_an_empty_memory_has_no_relative_update() -> None:
    """The first chunk finds weights of zero, by which nothing can be divided: no number, rather than a wrong one."""
    probe = only_probe(planted_model(), every_token_once())
    assert math.isnan(probe.update_series[0])
    assert probe.update == pytest.approx(sum(probe.update_series[1:]) / (VOCABULARY - 1))
    assert probe.as_dict()["update_series"][0] is None


def test_writes_of_r_tokens_have_rank_r() -> None:
    """Orthonormal keys make as many directions as there were tokens, and values alike in length make them equal."""
    model, tokens = planted_model(), every_token_once()[:, :6]
    with torch.no_grad():
        only_memory(model).qkv.weight[2 * VOCABULARY :] = 10 * torch.eye(VOCABULARY)
    (used,) = only_probe(model, tokens).utilisation
    assert used.full == VOCABULARY
    assert used.stable == pytest.approx(6)
    assert used.effective == pytest.approx(6)
    assert used.stable_share == used.stable / VOCABULARY
    assert used.effective_share == used.effective / VOCABULARY


@pytest.mark.parametrize("half_life", [2.0, 8.0])
def test_forgetting_is_as_fast_as_the_gates_say(half_life: float) -> None:
    """The formula against what is read: of a write, half is left after each half-life."""
    keep = 0.5 ** (1 / half_life)
    probe = only_probe(planted_model(keep), every_token_once())
    assert probe.half_life == pytest.approx([half_life])
    for group in probe.retrieval:
        last = min(2 * group.age, VOCABULARY + 1)
        left = [0.5 ** ((age - 1) / probe.half_life[0]) for age in range(group.age, last)]
        assert group.strength == pytest.approx(sum(left) / len(left), rel=1e-5)
        assert group.cosine == pytest.approx(1), "a linear memory forgets strength, not direction"


def test_what_is_forgotten_is_no_longer_found() -> None:
    """Where forgetting leads back to other weights, old reads turn away from their values."""
    model = planted_model(0.5, decay_to="initial")
    with torch.no_grad():
        only_memory(model).weights[0].copy_(torch.randn(1, VOCABULARY, VOCABULARY) * 5)
    young, *_, old = only_probe(model, every_token_once(8)).retrieval
    assert young.cosine > 0.99
    assert young.top1 == 1
    assert old.cosine == pytest.approx(old.initial_cosine, abs=1e-3)
    assert old.top1 < 0.5


def test_nothing_decays_without_a_gate() -> None:
    probe = only_probe(planted_model(), every_token_once())
    assert probe.half_life == [math.inf]
    assert probe.as_dict()["half_life"] == [None]
    assert probe.gates.keys() == {"rate"}


def test_gates_that_are_the_same_for_every_token() -> None:
    probe = only_probe(planted_model(0.75), every_token_once())
    for name, value in (("keep", 0.75), ("rate", 1.0)):
        gate = probe.gates[name]
        assert (gate.mean, gate.low, gate.high) == pytest.approx((value,) * 3)
        assert gate.deviation == pytest.approx(0, abs=1e-9)
    assert probe.saturation == 1, "a rate of 1 is all that a memory without norm is given"


@pytest.mark.parametrize(("share", "saturated"), [(0.94, 0), (0.96, 1)])
def test_a_rate_near_its_bound_is_saturated(share: float, saturated: int) -> None:
    model = planted_model()
    set_gate(only_memory(model), "rate", math.log(share / (1 - share)))
    assert only_probe(model, every_token_once()).saturation == saturated


# Any memory, against the states that the model itself steps through.


@pytest.mark.parametrize("time", [3 * CHUNK, 3 * CHUNK + 1])
@pytest.mark.parametrize("architecture", [*TITANS, *MIRAS])
def test_probes_agree_with_the_definition(architecture: str, time: int) -> None:
    """The first layer's memory, written token by token with what went in, and read at each chunk's start."""
    model, tokens = random_model(architecture), random_tokens(2, time)
    name, memory = next(iter(neural_memories(model).items()))
    seen: list[Observation] = []
    memory.observer = seen.append
    with torch.no_grad():
        model.step(tokens)
    memory.observer = None
    probe = next(probe for probe in probe_memory(model, tokens) if probe.layer == name)
    with torch.no_grad():
        held, surprise, update = memory.initial_memory(2), [], []
        for part in chunks_of(seen, CHUNK):
            said = recollect(part.keys, held.weights, memory.spec, memory.outer)
            surprise.append(float((said - part.values).norm(dim=-1).mean()))
            after = token_by_token(part, held, memory.spec, memory.outer)
            update.append(float(relative_change(held, after, memory.spec).mean()))
            held = after
    assert probe.surprise_series == pytest.approx(surprise, rel=1e-8)
    assert probe.update_series == pytest.approx(update, rel=1e-8)
    assert probe.update == pytest.approx(sum(update) / len(update))
    assert (probe.sequences, probe.tokens, probe.chunk) == (2, time, CHUNK)


def between(time: slice, x: Tensor) -> Tensor:
    return x[:, :, time]


def chunks_of(seen: list[Observation], chunk: int) -> list[Observation]:
    """What went through a memory, whatever the pieces it was run in, cut into chunks."""
    parts = []
    for one in seen:
        for start in range(0, one.keys.shape[2], chunk):
            now = slice(start, start + chunk)
            queries, keys, values = (between(now, x) for x in (one.queries, one.keys, one.values))
            gates = one.gates.each(partial(between, now))
            parts.append(one._replace(queries=queries, keys=keys, values=values, gates=gates))
    return parts


def token_by_token(part: Observation, held: Memory, spec: MemorySpec, outer: Outer) -> Memory:
    return memorize(part.queries, part.keys, part.values, part.gates, held, spec, "sequential", outer)[1]


def relative_change(before: Memory, after: Memory, spec: MemorySpec) -> Tensor:
    """By its formula, with all matrices of a head laid end to end."""
    laid = [torch.cat([weights_of(x, spec).flatten(-2) for x in one.weights], dim=-1) for one in (before, after)]
    return ((laid[1] - laid[0]).square().sum(dim=-1) / laid[0].square().sum(dim=-1)).sqrt()


def weights_of(held: Tensor, spec: MemorySpec) -> Tensor:
    """What is held, as weights: the formulas of the retentions."""
    if spec.retention == "lq":
        return held / held.abs().pow(spec.q).sum(dim=(-2, -1), keepdim=True).pow((spec.q - 2) / spec.q)
    return spec.simplex * held.softmax(dim=-1) if spec.retention == "kl" else held


@pytest.mark.parametrize("architecture", [*TITANS, *MIRAS])
def test_every_layer_is_probed_and_can_be_written_as_json(architecture: str) -> None:
    model = random_model(architecture)
    probes = probe_memory(model, random_tokens(3, 21))
    assert [probe.layer for probe in probes] == list(neural_memories(model))
    assert len(probes) == 2
    for probe in probes:
        stored = json.loads(json.dumps(probe.as_dict(), allow_nan=False))
        assert stored == probe.as_dict()
        assert len(stored["surprise_series"]) == len(stored["update_series"]) == math.ceil(21 / CHUNK)
        assert len(stored["half_life"]) == 2
        assert ("momentum" in stored["gates"]) == architecture.startswith("titans")
        assert ("threshold" in stored["gates"]) == (architecture == "yaad")
        for used in stored["utilisation"]:
            assert 1 <= used["stable"] <= used["full"]
            assert 1 <= used["effective"] <= used["full"]


@pytest.mark.parametrize("architecture", TITANS)
def test_probing_leaves_no_trace(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(2, 13)
    with torch.no_grad():
        before = model(tokens)
        probe_memory(model, tokens)
        assert torch.equal(model(tokens), before)
    assert all(memory.observer is None for memory in neural_memories(model).values())


def test_observers_are_put_back_after_an_exception() -> None:
    model, seen = random_model("titans-mac"), list[Observation]()
    mine = seen.append
    for memory in neural_memories(model).values():
        memory.observer = mine
    with pytest.raises(IndexError):
        probe_memory(model, torch.full((1, 8), VOCABULARY))
    assert all(memory.observer == mine for memory in neural_memories(model).values())


@pytest.mark.parametrize("architecture", TITANS)
def test_a_frozen_memory_does_not_move(architecture: str) -> None:
    """Zero is a measurement here; the rank of no change, and the half-life of no forgetting, do not exist."""
    model = random_model(architecture)
    with ablated(model, "frozen"):
        probes = probe_memory(model, random_tokens(2, 12))
    for probe in probes:
        assert probe.update == 0
        assert probe.update_series == [0, 0, 0]
        stored = probe.as_dict()
        assert all(used["stable"] is None and used["effective"] is None for used in stored["utilisation"])
        assert stored["half_life"] == [None, None]
        for group in probe.retrieval:
            assert group.cosine == group.initial_cosine
            assert group.top1 == group.initial_top1
    assert all(probe.update > 0 for probe in probe_memory(model, random_tokens(2, 12)))


@pytest.mark.parametrize(
    ("architecture", "fields"), [("transformer++", {}), ("bert", {}), ("titans-mac", {"use_memory": False})], ids=str
)
def test_no_memory_no_probe(architecture: str, fields: dict[str, Any]) -> None:
    assert probe_memory(random_model(architecture, **fields), random_tokens(1, 8)) == []


# The measures by themselves.


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_ranks_of_a_matrix_of_rank_r(rank: int) -> None:
    """Equal singular values: both ranks are the number of them, at any scale."""
    left, right = (torch.linalg.qr(torch.randn(4, 2, width, rank, dtype=torch.float64))[0] for width in (9, 6))
    found = ranks(1e-7 * left @ right.mT)
    assert found.full == 6
    assert found.stable == pytest.approx(rank)
    assert found.effective == pytest.approx(rank)


def test_the_ranks_of_unequal_singular_values() -> None:
    found = ranks(torch.diag(torch.tensor([2.0, 1.0, 1.0]))[None, None])
    assert found.stable == pytest.approx((4 + 1 + 1) / 4)
    assert found.effective == pytest.approx(math.exp(0.5 * math.log(2) + 0.5 * math.log(4)))


def test_unchanged_rows_have_no_rank_and_broken_ones_are_not_hidden() -> None:
    change = torch.zeros(2, 1, 3, 3)
    assert math.isnan(ranks(change).stable)
    change[0, 0] = torch.eye(3)
    assert ranks(change).stable == pytest.approx(3)
    change[1, 0, 0, 0] = math.nan
    assert math.isnan(ranks(change).stable)
    weights = (torch.tensor([[[[0.0]], [[1.0]], [[2.0]]]]),)
    moved = (torch.tensor([[[[1.0]], [[3.0]], [[math.nan]]]]),)
    assert update_magnitudes(weights, moved).tolist() == pytest.approx([2.0, math.nan], nan_ok=True)


def test_half_lives_average_the_logarithm() -> None:
    keep = torch.tensor([[[0.5, 1.0], [1.0, 1.0], [0.25, 0.25], [0.0, 1.0]]])
    assert half_lives(keep) == pytest.approx([2, math.inf, 0.5, 0])


def test_the_spread_of_known_numbers() -> None:
    found = spread(torch.arange(101.0))
    assert (found.mean, found.low, found.high) == pytest.approx((50, 5, 95))
    assert found.deviation == pytest.approx(math.sqrt((101**2 - 1) / 12))


@pytest.mark.parametrize("length", [1, 2, 31, 256, 257, 1000, 4096, 100_000])
def test_candidates_are_of_every_age(length: int) -> None:
    ages = candidate_ages(length)
    assert len(set(ages)) == len(ages) <= 256
    assert ages == sorted(ages)
    assert {age.bit_length() for age in ages} == set(range(1, length.bit_length() + 1))
    assert ages[0] == 1
    assert ages[-1] <= length
    assert length > 256 or ages == list(range(1, length + 1))


def test_a_value_stored_twice_is_found_and_silence_finds_nothing() -> None:
    values = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [2.0, 2.0]]]])
    reads = torch.tensor([[[[0.0, 3.0], [0.1, 2.0], [0.0, 0.5], [0.0, 0.0]]]])
    found = compared(reads, values)
    assert found.found.tolist() == [[[False, True, True, False]]]
    assert found.strength.tolist() == [[[0, 2, 0.5, 0]]]
    assert found.cosine[0, 0, 1] == pytest.approx(2 / math.sqrt(4.01))


def test_values_of_one_direction_are_one_value() -> None:
    """Their cosines differ in the last bit, which decides nothing."""
    values = (torch.tensor([0.1, 0.7, 0.3]) * torch.tensor([1.0, 3.0, 7.0, 11.0])[:, None])[None, None]
    assert compared(values, values).found.all()
