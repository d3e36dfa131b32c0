"""Ablations against models in which the same is true by other means, and the surgery on states behind them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.evaluation.memory_ablations import mean_loss, reset_memory, score_ablations, warm_state, with_memory_of
from lockstep.evaluation.memory_hooks import ablated, neural_memories
from lockstep.memory import MemoryState, recollect, stream
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.models.mixers.memory_as_context import ContextState
from lockstep.models.mixers.neural_memory import NeuralState
from lockstep.models.state import State, named_tensors
from tests.evaluation.memory_models import CHUNK, MIRAS, SEGMENT, TITANS, random_model, random_tokens, set_gate

TIME = 3 * SEGMENT
ALL = {"intact", "off", "frozen", "reset", "warm"}


@torch.no_grad()
def plain_loss(model: LanguageModel, tokens: Tensor, skipped: int = 0) -> float:
    """Of the whole sequence at once, the first targets not counted."""
    logits = model(tokens[:, :-1])[:, skipped:].log_softmax(dim=-1)
    return float(-logits.gather(2, tokens[:, 1 + skipped :, None]).mean())


def scored(model: LanguageModel, segment: int = SEGMENT) -> dict[str, float]:
    return score_ablations(model, random_tokens(3, TIME + 1), random_tokens(2, 11, seed=1), segment=segment)


@pytest.mark.parametrize("architecture", [*TITANS, *MIRAS])
def test_every_ablation_changes_the_loss(architecture: str) -> None:
    model = random_model(architecture)
    scores = scored(model)
    assert scores.keys() == ALL
    assert all(map(math.isfinite, scores.values()))
    assert len(set(scores.values())) == len(ALL)
    assert scores["intact"] == pytest.approx(plain_loss(model, random_tokens(3, TIME + 1)), rel=1e-9)


@pytest.mark.parametrize("architecture", [*TITANS, *MIRAS])
def test_frozen_is_a_model_that_never_writes(architecture: str) -> None:
    """Forgetting leads to the first weights, so that a rate of zero leaves them as they are."""
    model = random_model(architecture)
    still = copy.deepcopy(model)
    for memory in neural_memories(still).values():
        set_gate(memory, "rate", -math.inf)
    expected = plain_loss(still, random_tokens(3, TIME + 1))
    assert scored(model)["frozen"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("architecture", [*TITANS, *MIRAS])
def test_off_is_a_model_that_reads_zeros(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(architecture)
    off = scored(model)["off"]
    used = "lockstep.models.mixers.neural_memory"

    def silent(*arguments: Any) -> tuple[Tensor, MemoryState]:
        reads, state = stream(*arguments)
        return reads * 0, state

    monkeypatch.setattr(f"{used}.stream", silent)
    monkeypatch.setattr(f"{used}.recollect", lambda *arguments: recollect(*arguments) * 0)
    assert off == pytest.approx(plain_loss(model, random_tokens(3, TIME + 1)), rel=1e-9)


@pytest.mark.parametrize("architecture", TITANS)
@pytest.mark.parametrize("segment", [TIME, 10 * TIME])
def test_a_reset_after_the_end_changes_nothing(architecture: str, segment: int) -> None:
    scores = scored(random_model(architecture), segment)
    assert scores["reset"] == scores["intact"]


@pytest.mark.parametrize("segment", [CHUNK, SEGMENT])
@pytest.mark.parametrize("architecture", ["titans-lmm", *MIRAS])
def test_where_memory_is_all_there_is_a_reset_starts_a_new_sequence(architecture: str, segment: int) -> None:
    model, tokens = random_model(architecture, conv=0), random_tokens(2, TIME + 1)
    parts = [tokens[:, start : start + segment + 1] for start in range(0, TIME, segment)]
    expected = sum(plain_loss(model, part) for part in parts) / len(parts)
    assert score_ablations(model, tokens, segment=segment)["reset"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("segment", [3, 7])
@pytest.mark.parametrize("architecture", TITANS)
def test_a_reset_may_come_within_a_chunk(architecture: str, segment: int) -> None:
    """The chunk goes on from the first weights: the same as a step, whatever the pieces after it."""
    model, tokens = random_model(architecture), random_tokens(2, TIME)
    with torch.no_grad():
        _, state = model.step(tokens[:, :segment])
        emptied = reset_memory(model, state)
        whole, _ = model.step(tokens[:, segment:], emptied)
        parts = []
        for piece in tokens[:, segment:].split(5, dim=1):
            logits, emptied = model.step(piece, emptied)
            parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-8, atol=1e-10)
    assert math.isfinite(score_ablations(model, tokens, segment=segment)["reset"])


@pytest.mark.parametrize("architecture", ["titans-lmm", "titans-mac", *MIRAS])
def test_where_memory_is_all_that_lasts_warm_is_going_on(architecture: str) -> None:
    """At a segment's start MAC knows the past by its memory alone, if there is no convolution."""
    model, tokens, other = random_model(architecture, conv=0), random_tokens(2, 12), random_tokens(2, 2 * SEGMENT, 1)
    expected = plain_loss(model, torch.cat((other, tokens), dim=1), skipped=2 * SEGMENT)
    scores = score_ablations(model, tokens, other, segment=SEGMENT)
    assert scores["warm"] == pytest.approx(expected, rel=1e-9)
    assert scores["warm"] != scores["intact"]


@pytest.mark.parametrize("architecture", TITANS)
def test_warm_from_no_text_is_intact(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(2, TIME)
    scores = score_ablations(model, tokens, tokens[:, :0], segment=SEGMENT)
    assert scores["warm"] == scores["intact"]


@pytest.mark.parametrize("architecture", TITANS)
def test_fewer_texts_than_sequences_are_used_again(architecture: str) -> None:
    model, tokens, other = random_model(architecture), random_tokens(3, TIME), random_tokens(2, 9, seed=1)
    alone = [(tokens[row, None], warm_state(model, other[row % 2, None], 1)) for row in range(3)]
    rows = [mean_loss(model, row, row[:, 1:], state) for row, state in alone]
    scores = score_ablations(model, tokens, other, segment=SEGMENT)
    assert scores["warm"] == pytest.approx(sum(rows) / 3, rel=1e-9)


@pytest.mark.parametrize("architecture", TITANS)
def test_only_the_memory_of_a_warm_state_is_warm(architecture: str) -> None:
    model = random_model(architecture)
    warm, fresh = warm_state(model, random_tokens(2, 11), 2), model.initial_state(2)
    changed = {name for name, mine in named_tensors(warm) if not torch.equal(mine, dict(named_tensors(fresh))[name])}
    held = {id(tensor) for state in memory_states(warm) for tensor in (*state.point, *state.weights, *state.velocity)}
    assert changed == {name for name, tensor in named_tensors(warm) if id(tensor) in held}
    for state in memory_states(warm):
        assert all(map(torch.equal, state.point, state.weights))
        assert state.position.tolist() == [0, 0]


def memory_states(state: State) -> list[MemoryState]:
    """All of a tree."""
    if isinstance(state, MemoryState):
        return [state]
    if isinstance(state, Tensor):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [found for part in parts for found in memory_states(part)]


@pytest.mark.parametrize("architecture", TITANS)
def test_a_reset_state_is_a_new_tree(architecture: str) -> None:
    """What is given stays as it was; memories are as at first, all else is that of the state."""
    model = random_model(architecture)
    with torch.no_grad():
        _, state = model.step(random_tokens(2, 11))
    before = {name: tensor.clone() for name, tensor in named_tensors(state)}
    emptied = reset_memory(model, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_tensors(state))
    assert emptied is not state
    assert len(memory_states(emptied)) == 2
    for mine, first in zip(memory_states(emptied), memory_states(model.initial_state(2)), strict=True):
        for name in ("point", "weights", "velocity"):
            assert all(map(torch.equal, getattr(mine, name), getattr(first, name))), name
        assert mine.position.tolist() == [11, 11], "chunks keep their phase"
    assert {name for name, _ in named_tensors(emptied)} == set(before)
    refilled = with_memory_of(emptied, state)
    for mine, theirs in zip(memory_states(refilled), memory_states(state), strict=True):
        assert all(map(torch.equal, mine.weights, theirs.weights))
        assert all(map(torch.equal, mine.velocity, theirs.velocity))


def test_a_reset_empties_what_mac_reads_as_its_past() -> None:
    model = random_model("titans-mac")
    with torch.no_grad():
        _, state = model.step(random_tokens(2, SEGMENT + 3))
    for layer, mine in zip(state["layers"], reset_memory(model, state)["layers"], strict=True):
        assert isinstance(mine, ContextState)
        assert isinstance(mine.memory, NeuralState)
        assert not torch.equal(layer.standing[0], mine.standing[0])
        assert all(map(torch.equal, mine.standing, mine.memory.memory.weights))
        assert mine.keys is layer.keys
        assert mine.position is layer.position
        assert mine.tail is layer.tail
        assert mine.memory.tail is layer.memory.tail


def test_hooks_are_put_back_after_an_exception() -> None:
    model = random_model("titans-mac")
    first, second = neural_memories(model).values()
    first.ablation = "frozen"
    with ablated(model, "off"):
        assert (first.ablation, second.ablation) == ("off", "off")
    assert (first.ablation, second.ablation) == ("frozen", None)
    with pytest.raises(IndexError), ablated(model, "off"):
        model(torch.full((1, 4), 10_000))
    assert (first.ablation, second.ablation) == ("frozen", None)


def test_an_unknown_ablation_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="unknown ablation shuffled; valid: off, frozen"),
        ablated(random_model("titans-lmm"), "shuffled"),  # type: ignore[arg-type] # the mistake is the test
    ):
        pass


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("transformer++", {}), ("lstm", {}), ("titans-mac", {"use_memory": False}), ("yaad", {"use_memory": False})],
    ids=str,
)
def test_without_a_memory_there_is_nothing_to_ablate(architecture: str, fields: dict[str, Any]) -> None:
    model = random_model(architecture, **fields)
    scores = scored(model)
    assert scores.keys() == {"intact"}
    assert scores["intact"] == pytest.approx(plain_loss(model, random_tokens(3, TIME + 1)), rel=1e-6)


def test_without_other_text_nothing_is_warm() -> None:
    scores = score_ablations(random_model("titans-lmm"), random_tokens(2, 9), segment=4)
    assert scores.keys() == ALL - {"warm"}


def test_the_mean_is_over_all_tokens_also_of_a_short_last_segment() -> None:
    model, tokens = random_model("titans-lmm", conv=0), random_tokens(2, 2 * CHUNK + 2)
    with torch.no_grad():
        parts = [tokens[:, : CHUNK + 1], tokens[:, CHUNK : 2 * CHUNK + 1], tokens[:, 2 * CHUNK :]]
        losses = torch.cat([token_losses(model(part[:, :-1]), part[:, 1:]) for part in parts], dim=1)
    assert losses.shape[1] == 2 * CHUNK + 1
    scores = score_ablations(model, tokens, segment=CHUNK)
    assert scores["reset"] == pytest.approx(float(losses.mean()), rel=1e-9)
