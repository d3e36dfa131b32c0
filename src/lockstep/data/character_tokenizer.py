"""Each character is a token, looked up in one array operation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lockstep.data.tokenizer_base import (
    Ids,
    Lengths,
    Tokenizer,
    bytes_per_character,
    code_points,
    readable,
    write_definition,
)

SPECIALS = ("<unk>", "<eos>", "<mask>")


class CharacterTokenizer(Tokenizer):
    """The characters of a given alphabet in its order, after the specials; any other is `<unk>`."""

    kind = "character"
    unk_id = 0
    eos_id = 1
    mask_id = 2
    special_ids = frozenset({0, 1, 2})

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.vocab_size = len(SPECIALS) + len(alphabet)
        self.fingerprint = hashlib.sha256(json.dumps([SPECIALS, alphabet]).encode()).hexdigest()
        self._table = np.full(0x110000, self.unk_id, dtype=np.int32)
        self._table[code_points(alphabet)] = np.arange(len(SPECIALS), self.vocab_size, dtype=np.int32)

    def encode(self, document: bytes) -> Ids:
        ids: Ids = self._table[code_points(readable(document))]
        return ids

    def encode_with_lengths(self, document: bytes) -> tuple[Ids, Lengths]:
        return self.encode(document), bytes_per_character(document).astype(np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.alphabet[one - len(SPECIALS)] for one in ids if one not in self.special_ids)

    def save(self, folder: Path) -> None:
        write_definition(folder, {"kind": self.kind, "alphabet": self.alphabet})
