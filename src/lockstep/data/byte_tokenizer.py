"""The tokenizer that needs no vocabulary: each byte is a token."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lockstep.config.tokenizer import BYTES_VOCABULARY
from lockstep.data.tokenizer_base import Ids, Lengths, Tokenizer, write_definition

EOS = 256
MASK = 257


class ByteTokenizer(Tokenizer):
    """256 byte values, then the separator, then the mask."""

    kind = "bytes"
    vocab_size = BYTES_VOCABULARY
    eos_id = EOS
    mask_id = MASK
    special_ids = frozenset({EOS, MASK})
    fingerprint = hashlib.sha256(b"bytes: 256 values, separator 256, mask 257").hexdigest()

    def encode(self, document: bytes) -> Ids:
        return np.frombuffer(document, dtype=np.uint8).astype(np.int32)

    def encode_with_lengths(self, document: bytes) -> tuple[Ids, Lengths]:
        return self.encode(document), np.ones(len(document), dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(one for one in ids if one < EOS).decode("utf-8", "replace")

    def save(self, folder: Path) -> None:
        write_definition(folder, {"kind": self.kind})
