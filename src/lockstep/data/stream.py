"""The token stream: every batch is a pure function of the seed and the step.

The corpus is cut into windows of `length` tokens (each with one token more, the last target). Epoch by epoch, the
windows are visited in a random order without replacement; step n takes the next windows of that endless list. No
loader state exists: whoever knows seed and step knows the batch, whatever the architecture or the number of ranks.
Noise, where it is asked for, is a function of the same two.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.data.randomness import permutation, uniform
from lockstep.errors import UserError

Windows = NDArray[np.int64]
"""[sequences, length + 1]: inputs are all but the last column, next-token targets all but the first."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Tokens of a noisy text: each is replaced with a probability, by any of the vocabulary."""

    share: float
    vocab_size: int

    def over(self, windows: Windows, *purpose: int | str) -> Windows:
        """`windows` with their noise, a pure function of `purpose`."""
        choice, token = uniform((2, *windows.shape), "noise", *purpose)
        return np.where(choice < self.share, (token * self.vocab_size).astype(np.int64), windows)


class TokenStream:
    """The windows that each step trains on."""

    def __init__(
        self,
        tokens: NDArray[np.integer],
        length: int,
        sequences_per_step: int,
        seed: int,
        noise: Noise | None = None,
    ) -> None:
        self.tokens, self.length = tokens, length
        self.sequences_per_step, self.seed, self.noise = sequences_per_step, seed, noise
        self.windows = (len(tokens) - 1) // length
        if self.windows < 1:
            raise UserError(
                f"data.max_sequence_length: the corpus has {len(tokens)} training tokens, but one sequence of"
                f" {length} needs {length + 1}"
            )
        self._orders: dict[int, NDArray[np.int64]] = {}

    def step(self, step: int) -> Windows:
        """All windows of a step (counted from 0), over all ranks and micro-batches together."""
        places = self.starts(step)[:, None] + np.arange(self.length + 1)
        windows = np.asarray(self.tokens[places], dtype=np.int64)
        return windows if self.noise is None else self.noise.over(windows, self.seed, step)

    def starts(self, step: int) -> NDArray[np.int64]:
        """Where each window of a step begins in the corpus."""
        first = step * self.sequences_per_step
        numbers = np.arange(first, first + self.sequences_per_step)
        epochs, places = np.divmod(numbers, self.windows)
        windows = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            windows[here] = self._epoch_order(int(epoch))[places[here]]
        return windows * self.length

    def target_places(self, step: int) -> NDArray[np.int64]:
        """Where each target of a step stands in the corpus, [sequences, length]."""
        return self.starts(step)[:, None] + np.arange(1, self.length + 1)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            # A step may straddle two epochs; those before are done with.
            self._orders = {old: order for old, order in self._orders.items() if abs(old - epoch) == 1}
            self._orders[epoch] = permutation(self.windows, "order", self.seed, epoch)
        return self._orders[epoch]


def advance_hash(previous: str, windows: Windows) -> str:
    """The rolling hash after `windows`: equal hashes mean the same tokens in the same order from step 0 on."""
    return hashlib.sha256(bytes.fromhex(previous) + windows.astype("<u4").tobytes()).hexdigest()


EMPTY_HASH = hashlib.sha256(b"").hexdigest()
"""The rolling hash before the first step."""


def share(rows: NDArray[np.integer], micro: int, micros: int, rank: int, world_size: int) -> NDArray[np.integer]:
    """The rows of a step that one rank takes in one micro-batch."""
    per_micro = len(rows) // micros
    per_rank = per_micro // world_size
    first = micro * per_micro + rank * per_rank
    return rows[first : first + per_rank]
