"""Where the time goes: which parts a model has, that they add up, and that nothing is left behind."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.evaluation.memory_hooks import ablated
from lockstep.evaluation.parts import BACKWARD, DECODED, REST, Stopwatch, What, profile, read_only, train, watched
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import architectures, find
from tests.evaluation.memory_models import random_model, random_tokens

CPU = torch.device("cpu")
EVERYWHERE = {"embedding and output", "rest"}
ALL_WHATS: tuple[What, ...] = ("training", "prefill", "decode")
MEMORY = {"memory read", "memory write"}
PARTS = {
    "transformer++": {"attention", "MLP"},
    "gpt2": {"attention", "MLP"},
    "gru": {"mixer", "MLP"},
    "mamba2": {"mixer"},
    "samba": {"attention", "mixer", "MLP"},
    "titans-lmm": MEMORY | {"mixer", "MLP"},
    "titans-mac": MEMORY | {"attention", "mixer", "MLP"},
    "titans-mag": MEMORY | {"attention", "mixer", "MLP"},
    "titans-mal": MEMORY | {"attention", "mixer", "MLP"},
    "ttt-mlp": MEMORY | {"mixer", "MLP"},
    "moneta": MEMORY | {"mixer", "MLP"},
}


def small(architecture: str, **fields: Any) -> LanguageModel:
    return random_model(architecture, **fields)


@pytest.mark.parametrize("what", ALL_WHATS)
@pytest.mark.parametrize("architecture", PARTS)
def test_every_part_that_is_there_and_no_other(architecture: str, what: What) -> None:
    model, tokens = small(architecture), random_tokens(2, 20)
    found = profile(model, tokens, what, CPU, rounds=2)
    learning = {"backward"} if what == "training" else set()
    assert set(found) == PARTS[architecture] | EVERYWHERE | learning
    assert all(value >= 0 for value in found.values())
    assert all(value > 0 for name, value in found.items() if name != "memory write")


@pytest.mark.parametrize("what", ALL_WHATS)
def test_parts_add_up_to_the_whole(what: What, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once whenever it is read, everything is known."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    found = profile(small("titans-mac"), random_tokens(1, 20), what, CPU, rounds=3)
    per_round = 1 if what != "training" else 1 + 4  # reading the clock at both ends, and around loss and backward
    assert sum(found.values()) == pytest.approx(per_round / (DECODED if what == "decode" else 1))


def test_time_is_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the work moves."""
    watch, clock = Stopwatch(CPU), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += 1
        with watch.part("outer"):
            clock[0] += 2
            with watch.part("inner"):
                clock[0] += 4
            with watch.part("outer"):
                clock[0] += 8
            clock[0] += 16
        clock[0] += 32

    assert watch.lap(work) == {REST: 1 + 32, "outer": 2 + 8 + 16, "inner": 4}


def test_a_backward_pass_is_a_whole() -> None:
    watch = Stopwatch(CPU)

    def work() -> None:
        with watch.part(BACKWARD), watch.part("attention"):
            pass

    assert set(watch.lap(work)) == {REST, BACKWARD}


def test_a_part_that_fails_is_left() -> None:
    watch = Stopwatch(CPU)
    with pytest.raises(KeyError), watch.part("attention"):
        raise KeyError
    assert set(watch.lap(lambda: None)) == {REST}


def everything(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    logits = model(tokens)
    stepped = model.step(tokens)[0] if model.causal else logits
    return [logits, stepped, *model.state_dict().values()]


@pytest.mark.parametrize("architecture", [name for name in architectures() if name != "hf"])
def test_the_model_is_left_as_it_was(architecture: str) -> None:
    model, tokens = small(architecture, dropout=0.1), random_tokens(2, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    torch.manual_seed(11)
    before = everything(model, tokens)
    own = [set(vars(module)) for module in model.modules()]
    drawn = torch.get_rng_state()
    for what in ALL_WHATS if find(architecture).causal else ALL_WHATS[:1]:
        profile(model, tokens, what, CPU, rounds=1, optimizers=[optimizer])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [set(vars(module)) for module in model.modules()] == own
    assert all(torch.equal(one, two) for one, two in zip(before, everything(model, tokens), strict=True))
    assert not optimizer.state
    assert bool((model.head.weight.grad == 1).all())
    assert not model.training


def test_an_optimizer_is_a_part_of_training() -> None:
    model = small("gru")
    found = profile(model, random_tokens(1, 8), "training", CPU, 1, [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert found["optimizer"] > 0


def test_watching_changes_no_number() -> None:
    for architecture in PARTS:
        model, tokens, watch = small(architecture), random_tokens(2, 12), Stopwatch(CPU)
        plain = everything(model, tokens)
        with watched(model, watch):
            seen = everything(model, tokens)
        assert all(torch.equal(one, two) for one, two in zip(plain, seen, strict=True))


def test_what_was_put_in_by_others_is_put_back() -> None:
    model = small("gru")
    mlp = model.blocks[0].mlp
    assert isinstance(mlp, nn.Module)
    mine = mlp.forward
    object.__setattr__(mlp, "forward", mine)
    with watched(model, Stopwatch(CPU)):
        assert vars(mlp)["forward"] is not mine
    assert vars(mlp)["forward"] is mine
    with pytest.raises(IndexError), watched(model, Stopwatch(CPU)):
        model(torch.tensor([[10**6]]))
    assert vars(mlp)["forward"] is mine


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["titans-lmm", "titans-mag", "titans-mal", "moneta"])
def test_reading_alone_is_what_a_memory_that_is_never_written_says(architecture: str) -> None:
    """Whatever is kept: a frozen memory keeps all of what it was."""
    model, tokens = small(architecture), random_tokens(2, 12)
    with ablated(model, "frozen"):
        frozen = model(tokens)
    with read_only(model):
        alone = model(tokens)
    torch.testing.assert_close(alone, frozen)
    assert not torch.allclose(alone, model(tokens))


def test_masked_models_train_only() -> None:
    model = small("bert")
    assert "attention" in profile(model, random_tokens(1, 8), "training", CPU, 1)
    with pytest.raises(ValueError, match="bert is bidirectional"):
        profile(model, random_tokens(1, 8), "prefill", CPU, 1)


def test_learned_positions_are_filled_but_not_passed() -> None:
    model = small("gpt2", max_length=8)
    assert profile(model, random_tokens(1, 8), "prefill", CPU, 1)
    for time_ in (1, 7, 8):
        assert profile(model, random_tokens(1, time_), "decode", CPU, 1)
    for what in ALL_WHATS[1:]:
        with pytest.raises(ValueError, match="max_length is 8"):
            profile(model, random_tokens(1, 9), what, CPU, 1)


def test_recomputed_activations_belong_to_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once whenever it is read, a second run through a part would show."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    model, tokens, watch, laps = small("titans-mac").train(), random_tokens(1, 16), Stopwatch(CPU), []
    for model.gradient_checkpointing in (False, True):
        with watched(model, watch):
            laps.append(watch.lap(lambda: train(model, tokens, watch, ())))
    assert laps[0] == laps[1]
    assert laps[0]["backward"] == 1
    assert laps[0]["attention"] > 2 * 2
