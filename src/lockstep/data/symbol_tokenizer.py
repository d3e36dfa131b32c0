"""The tokenizer of tasks without text: its tokens are numbers, and mean nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lockstep.data.tokenizer_base import Ids, Lengths, Tokenizer, write_definition
from lockstep.errors import UserError


class SymbolTokenizer(Tokenizer):
    """Token n is written as the number n; the last one is the separator."""

    kind = "symbols"
    mask_id = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_id = vocab_size - 1
        self.special_ids = frozenset({self.eos_id})
        self.fingerprint = hashlib.sha256(f"symbols: {vocab_size}, the last the separator".encode()).hexdigest()

    def encode(self, document: bytes) -> Ids:
        """Of numbers with space between them."""
        words = document.decode("utf-8", "replace").split()
        for word in words:
            if not word.isdecimal() or int(word) >= self.vocab_size:
                raise UserError(f"{word}: no symbol; the symbols are the numbers 0 to {self.vocab_size - 1}")
        return np.array([int(word) for word in words], dtype=np.int32)

    def encode_with_lengths(self, document: bytes) -> tuple[Ids, Lengths]:
        """No symbol accounts for text; the last takes the bytes of all, as somebody must."""
        ids = self.encode(document)
        lengths = np.zeros(len(ids), dtype=np.uint32)
        lengths[-1:] = len(document)
        return ids, lengths

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(str(one) for one in ids if one != self.eos_id)

    def save(self, folder: Path) -> None:
        write_definition(folder, {"kind": self.kind, "vocab_size": self.vocab_size})
