"""What every tokenizer can do, whatever its kind."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Lengths = NDArray[np.uint32]

DEFINITION = "definition.json"
"""The file of a saved tokenizer that says its kind."""
REPLACEMENT = "\ufffd"


class Tokenizer(ABC):
    """Maps the bytes of a document to token ids and back."""

    kind: str
    """The `tokenizer_type` that gives it."""
    vocab_size: int
    eos_id: int
    """The separator that follows each document."""
    mask_id: int | None
    special_ids: frozenset[int]
    """Tokens that stand for no text."""
    fingerprint: str
    """sha256 of the definition: equal fingerprints give equal tokens."""

    @abstractmethod
    def encode(self, document: bytes) -> Ids:
        """The document's tokens, without the separator."""

    @abstractmethod
    def encode_with_lengths(self, document: bytes) -> tuple[Ids, Lengths]:
        """Tokens, and how many of the document's own bytes each accounts for.

        A token accounts for the bytes from the end of the token before it to its own end; what follows the
        last token belongs to the last one, so that the lengths sum to the document's size. Where the
        document gives no token at all both are empty, and its bytes are the separator's.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; special ones give none."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` reads."""


def write_definition(folder: Path, definition: dict[str, Any]) -> None:
    """Save the part of a tokenizer that says what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(definition, ensure_ascii=False, indent=1)
    (folder / DEFINITION).write_text(text + "\n", encoding="utf-8")


def readable(document: bytes) -> str:
    """The document as text in which each byte that is no UTF-8 is one U+FFFD."""
    text = document.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text
    points = code_points(text)
    escaped = is_escaped_byte(points)
    if not escaped.any():
        return text
    points = points.copy()
    points[escaped] = ord(REPLACEMENT)
    return points.tobytes().decode("utf-32-le")


def code_points(text: str) -> NDArray[np.uint32]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def is_escaped_byte(points: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Where `surrogateescape` has put a byte that is no UTF-8."""
    return (points >= 0xDC80) & (points <= 0xDCFF)


def bytes_per_character(document: bytes) -> NDArray[np.int64]:
    """How many of the document's bytes each character of its `readable` text stands for."""
    if document.isascii():
        return np.ones(len(document), dtype=np.int64)
    points = code_points(document.decode("utf-8", "surrogateescape"))
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    sizes[is_escaped_byte(points)] = 1
    return sizes
