"""Tokenizers of the Hugging Face `tokenizers` library, held to the bytes of the document."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lockstep.data.tokenizer_base import (
    Ids,
    Lengths,
    Tokenizer,
    bytes_per_character,
    readable,
    write_definition,
)
from lockstep.errors import UserError

LIBRARY_FILE = "tokenizer.json"
EOS_NAMES = ("</s>", "<eos>", "<|endoftext|>", "[SEP]", "<|end_of_text|>")
MASK_NAMES = ("[MASK]", "<mask>")

PIECE = 1 << 19
"""Characters handed to the library at once: its own record of a token takes far more room than the token."""
PIECES_TOGETHER = 8
# Before a space between two words, or after a line break between two lines: no pre-tokenizer in common use
# makes a token that spans such a place, so cutting there changes nothing.
SAFE_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\S\n)(?=\S)")


class LibraryTokenizer(Tokenizer):
    """Wraps a definition in the library's own format; special tokens in a document's text are plain text."""

    def __init__(self, kind: str, definition: str, eos: str, mask: str | None) -> None:
        self.kind = kind
        self._definition = definition
        self._library = tokenizers.Tokenizer.from_str(definition)
        self._library.no_truncation()
        self._library.no_padding()
        # A document that quotes "<|endoftext|>" has not ended.
        self._library.encode_special_tokens = True
        self._eos, self._mask = eos, mask
        self.eos_id = self._id_of(eos)
        self.mask_id = self._id_of(mask) if mask is not None else None
        # The largest id decides: a vocabulary may have gaps.
        self.vocab_size = 1 + max(self._library.get_vocab(with_added_tokens=True).values())
        added = self._library.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special) | {self.eos_id}
        self.fingerprint = hashlib.sha256(json.dumps([definition, eos, mask]).encode()).hexdigest()

    def _id_of(self, token: str) -> int:
        number = self._library.token_to_id(token)
        if number is None:
            raise ValueError(f"the vocabulary has no {token}")
        return int(number)

    def encode(self, document: bytes) -> Ids:
        parts = [np.array(one.ids, dtype=np.int32) for _, one in self._encodings(readable(document))]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def encode_with_lengths(self, document: bytes) -> tuple[Ids, Lengths]:
        ids: list[Ids] = []
        ends: list[NDArray[np.int64]] = []
        for start, one in self._encodings(readable(document)):
            ids.append(np.array(one.ids, dtype=np.int32))
            ends.append(start + np.array(one.offsets, dtype=np.int64).reshape(-1, 2)[:, 1])
        if not sum(len(part) for part in ids):
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint32)
        return np.concatenate(ids), lengths_from_ends(document, np.concatenate(ends))

    def _encodings(self, text: str) -> Iterator[tuple[int, tokenizers.Encoding]]:
        """The library's answer for each piece, with the piece's first character."""
        pieces = in_pieces(text)
        while group := list(itertools.islice(pieces, PIECES_TOGETHER)):
            encodings = self._library.encode_batch([piece for _, piece in group], add_special_tokens=False)
            for (start, _), encoding in zip(group, encodings, strict=True):
                yield start, encoding

    def decode(self, ids: Iterable[int]) -> str:
        kept = [int(one) for one in ids if one not in self.special_ids]
        return str(self._library.decode(kept, skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        write_definition(folder, {"kind": self.kind, "eos": self._eos, "mask": self._mask})
        (folder / LIBRARY_FILE).write_text(self._definition, encoding="utf-8")


def in_pieces(text: str, size: int = PIECE) -> Iterator[tuple[int, str]]:
    """A long text cut where its tokens stay the same: the first character's place, and the piece."""
    start = 0
    while start < len(text):
        cut = SAFE_CUT.search(text, start + size)
        end = cut.start() if cut else len(text)
        yield start, text[start:end]
        start = end


def lengths_from_ends(document: bytes, ends: NDArray[np.int64]) -> Lengths:
    """Bytes per token, from the character at which each token ends.

    Several tokens may share one character's bytes, and the library gives each the whole character: the
    first of them gets its bytes, the others none. Ends that fall back (normalizers may reorder) are held.
    """
    after = np.concatenate(([0], np.cumsum(bytes_per_character(document))))
    byte_ends = np.maximum.accumulate(after[ends])
    byte_ends[-1] = len(document)
    return np.diff(byte_ends, prepend=0).astype(np.uint32)


def from_library_file(kind: str, path: Path) -> LibraryTokenizer:
    """Any tokenizer.json; separator and mask are found by their usual names."""
    try:
        definition = path.read_text(encoding="utf-8")
        vocabulary = tokenizers.Tokenizer.from_str(definition).get_vocab(with_added_tokens=True)
    except OSError as error:
        raise UserError(f"tokenizer.path {path}: cannot be read ({error.strerror}); check the path") from None
    except Exception as error:  # the library raises bare Exceptions on malformed files
        reason = str(error).partition("\n")[0]
        raise UserError(f"tokenizer.path {path}: not a tokenizer.json of the library ({reason})") from None
    eos = next((name for name in EOS_NAMES if name in vocabulary), None)
    if eos is None:
        raise UserError(f"tokenizer.path {path}: no end-of-document token; add one of {', '.join(EOS_NAMES)}")
    mask = next((name for name in MASK_NAMES if name in vocabulary), None)
    return LibraryTokenizer(kind, definition, eos, mask)
