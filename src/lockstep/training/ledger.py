"""The ledger: what a run has consumed, counted exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockstep.data.stream import EMPTY_HASH, Windows, advance_hash


@dataclass(slots=True)
class Ledger:
    """Counts since step 0, carried through every checkpoint."""

    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    """Tokens seen."""
    supervised_tokens: int = 0
    """Tokens that had a loss: all of them for a causal model, the masked ones for a masked model."""
    stream_hash: str = EMPTY_HASH
    """Rolling hash of the token stream."""

    def record(self, windows: Windows, supervised: int) -> None:
        """Enter one optimizer step over `windows` [sequences, length + 1]."""
        self.step += 1
        self.tokens += windows.shape[0] * (windows.shape[1] - 1)
        self.supervised_tokens += supervised
        self.stream_hash = advance_hash(self.stream_hash, windows)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
