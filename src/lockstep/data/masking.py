"""Masked-token targets for bidirectional models (Devlin et al., arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from lockstep.data.randomness import uniform

IGNORED = -100
"""A position without a target."""


def mask_tokens(
    tokens: NDArray[np.int64],
    probability: float,
    mask_id: int,
    special_ids: Collection[int],
    vocab_size: int,
    *purpose: int | str,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs with some tokens hidden, and targets that are IGNORED elsewhere; a pure function of `purpose`.

    Of the chosen positions 80 % show the mask, 10 % a random token, 10 % the token itself. Special tokens are never
    chosen. If chance picks nothing at all, the first eligible position is taken, so that a loss exists.
    """
    choice, fate, random_token = uniform((3, *tokens.shape), "mask", *purpose)
    eligible = ~np.isin(tokens, list(special_ids))
    chosen = (choice < probability) & eligible
    if not chosen.any() and eligible.any():
        chosen.flat[np.flatnonzero(eligible)[0]] = True
    inputs = np.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = np.where(chosen & (fate >= 0.9), (random_token * vocab_size).astype(np.int64), inputs)
    return inputs, np.where(chosen, tokens, IGNORED)
