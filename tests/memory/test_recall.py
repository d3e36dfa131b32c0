"""A memory learns to be one: it says what lies beyond attention's reach, where the same model without it guesses."""

from __future__ import annotations

import pytest
import torch

from tests.memory.recall import FAR, PAIRS, SYMBOLS, build, draw_task, learn

VARIANTS = ("titans-lmm", "titans-mac", "titans-mag", "titans-mal")
CHANCE = 1 / SYMBOLS
STEP_LIMIT = 1000
"""More than twice what any variant needed."""
LEAST_STEPS = 400
"""Of a model without memory, which gets at least as many as the one with it needed."""


def test_the_task_is_as_described() -> None:
    task = draw_task(torch.Generator().manual_seed(0), batch=8, pairs=PAIRS)
    assert task.tokens.shape == (8, 4 * PAIRS)
    for tokens, distances in zip(task.tokens.tolist(), task.distance.tolist(), strict=True):
        value_of = dict(zip(tokens[: 2 * PAIRS : 2], tokens[1 : 2 * PAIRS : 2], strict=True))
        assert len(value_of) == PAIRS
        assert max(value_of) < SYMBOLS <= min(value_of.values())
        for place, distance in zip(range(2 * PAIRS, 4 * PAIRS, 2), distances, strict=True):
            key, value = tokens[place : place + 2]
            assert value == value_of[key]
            assert tokens.index(key) == place - distance


@pytest.mark.parametrize("architecture", VARIANTS)
def test_only_a_memory_reaches_far_pairs(architecture: str) -> None:
    """Otherwise guessing would prove nothing: a far key is more than FAR tokens back, and its value one less."""
    bare = build(architecture, use_memory=False, seed=0)
    assert bare.spec.reach is not None
    assert bare.spec.reach < FAR
    assert build(architecture, use_memory=True, seed=0).spec.reach is None


@pytest.mark.slow
@pytest.mark.parametrize("architecture", VARIANTS)
def test_memory_recalls_what_attention_cannot(architecture: str) -> None:
    """Both follow the same recipe, and the model without memory is trained for no fewer steps."""
    remembering = learn(architecture, use_memory=True, steps=STEP_LIMIT, enough=0.97)
    bare = learn(architecture, use_memory=False, steps=max(remembering.steps, LEAST_STEPS))
    assert remembering.far >= 0.95
    assert bare.far < 2 * CHANCE
