"""Masked targets: which positions are chosen, what is shown there, and that nothing else depends on anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.data.masking import IGNORED, mask_tokens

MASK, SEPARATOR, VOCABULARY = 1001, 1000, 1002
SPECIAL = frozenset({MASK, SEPARATOR})


def text(rows: int = 200, length: int = 500) -> NDArray[np.int64]:
    """Tokens of which every tenth is a separator."""
    tokens = np.arange(rows * length).reshape(rows, length) * 17 % 1000
    tokens[:, ::10] = SEPARATOR
    return tokens


def masked(tokens: NDArray[np.int64], probability: float, *purpose: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return mask_tokens(tokens, probability, MASK, SPECIAL, VOCABULARY, *purpose)


@pytest.mark.parametrize("probability", [0.05, 0.15, 0.4])
def test_the_rates(probability: float) -> None:
    """Within five standard deviations of what Devlin et al. prescribe."""
    tokens = text()
    inputs, targets = masked(tokens, probability, 3)
    chosen = targets != IGNORED
    eligible = int((tokens != SEPARATOR).sum())
    assert near(int(chosen.sum()), eligible, probability)
    count = int(chosen.sum())
    shown = inputs[chosen]
    assert near(int((shown == MASK).sum()), count, 0.8 + 0.1 / VOCABULARY)
    kept = shown == tokens[chosen]
    assert near(int(kept.sum()), count, 0.1 + 0.1 / VOCABULARY)
    random = shown[(shown != MASK) & ~kept]
    assert near(len(random), count, 0.1 * (1 - 2 / VOCABULARY))
    assert random.min() >= 0
    assert random.max() < VOCABULARY
    assert abs(random.mean() - VOCABULARY / 2) < 5 * VOCABULARY / np.sqrt(12 * len(random))


def near(found: int, of: int, probability: float) -> bool:
    return bool(abs(found - of * probability) < 5 * np.sqrt(of * probability * (1 - probability)))


def test_targets_are_the_tokens_themselves_and_nothing_else_changes() -> None:
    tokens = text()
    inputs, targets = masked(tokens, 0.15, 3)
    chosen = targets != IGNORED
    assert np.array_equal(targets[chosen], tokens[chosen])
    assert np.array_equal(inputs[~chosen], tokens[~chosen])


def test_special_tokens_are_never_chosen() -> None:
    tokens = text()
    tokens[:, 5] = MASK
    inputs, targets = masked(tokens, 0.9, 3)
    special = np.isin(tokens, list(SPECIAL))
    assert (targets[special] == IGNORED).all()
    assert np.array_equal(inputs[special], tokens[special])


def test_masks_are_a_pure_function_of_their_purpose() -> None:
    tokens = text(4, 50)
    untouched = tokens.copy()
    first = masked(tokens, 0.15, 3, 7)
    for other in ((3, 8), (4, 7)):
        assert not np.array_equal(masked(tokens, 0.15, *other)[1], first[1])
    again = masked(tokens, 0.15, 3, 7)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert np.array_equal(tokens, untouched)


def test_the_choice_does_not_depend_on_the_tokens() -> None:
    """Otherwise two tokenizers or two corpora would be masked with different luck."""
    chosen = [masked(tokens, 0.15, 3)[1] != IGNORED for tokens in (np.zeros((9, 40), int), np.full((9, 40), 5))]
    assert np.array_equal(chosen[0], chosen[1])


@given(seed=st.integers(0, 10_000), length=st.integers(2, 12))
def test_a_step_always_has_a_target(seed: int, length: int) -> None:
    tokens = np.full((1, length), SEPARATOR)
    tokens[0, length // 2] = 5
    inputs, targets = masked(tokens, 1e-9, seed)
    assert targets.tolist() == [[5 if place == length // 2 else IGNORED for place in range(length)]]
    assert inputs.shape == tokens.shape


def test_a_text_of_special_tokens_only_has_none() -> None:
    tokens = np.full((2, 6), SEPARATOR)
    inputs, targets = masked(tokens, 0.5, 1)
    assert np.array_equal(inputs, tokens)
    assert (targets == IGNORED).all()
