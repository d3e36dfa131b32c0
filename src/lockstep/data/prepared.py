"""A prepared folder: the tokens of a corpus on disk, opened without reading them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from lockstep.config.spec import Spec
from lockstep.data.corpus import SPLITS
from lockstep.data.masking import IGNORED
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.data.tokenizers import load_tokenizer
from lockstep.durable import sha256
from lockstep.errors import UserError

FORMAT = "lockstep-prepared"
VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
LENGTH_TYPE = np.dtype("<u4")
UNASKED, TEXT, ANSWER = 0, 1, 2
"""What a token is among tasks: not to be predicted, a part of text, a part of an answer."""
REMEDY = "delete the folder and prepare again"


class SplitFacts(Spec):
    """What one split holds."""

    tokens: int
    """Separators included."""
    documents: int
    bytes: int
    """Of the original text."""
    sha256: dict[str, str]
    """Per file."""


class Manifest(Spec):
    """What a prepared folder holds; nothing in it depends on where or when it was prepared."""

    format: str
    version: int
    corpus: str
    corpus_digest: str
    tokenizer_type: str
    requested_vocab_size: int | None
    vocab_size: int
    eos_id: int
    tokenizer_fingerprint: str
    splits: dict[str, SplitFacts]
    asked: tuple[str, ...] = ()
    """Splits in which only some tokens are to be predicted: they have instances of tasks in them."""


class Prepared:
    """A prepared folder, open for reading."""

    def __init__(self, folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = tokenizer

    @property
    def corpus_digest(self) -> str:
        """The digest of the text it was prepared from."""
        return self.manifest.corpus_digest

    def tokens(self, split: str) -> NDArray[np.unsignedinteger]:
        """The token ids of a split, mapped from disk and read-only."""
        dtype = token_type(self.manifest.vocab_size)
        return np.memmap(self.folder / tokens_file(split), dtype=dtype, mode="r")

    def byte_lengths(self, split: str, places: NDArray[np.integer]) -> NDArray[np.int64]:
        """How many bytes of the original text the tokens at `places` account for; over a split, all of them.

        Where there are tasks among the text, none: bits per byte would mean nothing.
        """
        if split in self.manifest.asked:
            return np.zeros(places.shape, dtype=np.int64)
        if has_lengths_file(self.manifest.tokenizer_type):
            lengths = np.memmap(self.folder / lengths_file(split), dtype=LENGTH_TYPE, mode="r")
            return np.asarray(lengths[places], dtype=np.int64)
        # Each byte is a token of its own, and a separator stands for none.
        return np.asarray(self.tokens(split)[places] != self.manifest.eos_id, dtype=np.int64)

    def targets(self, split: str, places: NDArray[np.integer]) -> NDArray[np.int64]:
        """The tokens at `places` as what is to be predicted there: IGNORED where nothing is asked."""
        tokens, asked = np.asarray(self.tokens(split)[places], dtype=np.int64), self.asked(split, places)
        return tokens if asked is None else np.where(asked != UNASKED, tokens, IGNORED)

    def asked(self, split: str, places: NDArray[np.integer]) -> NDArray[np.uint8] | None:
        """UNASKED, TEXT or ANSWER at each place; None where all is text."""
        if split not in self.manifest.asked:
            return None
        kinds = np.memmap(self.folder / asked_file(split), dtype=np.uint8, mode="r")
        return np.asarray(kinds[places])

    def split_bytes(self, split: str) -> int:
        """Bytes of the original text of a split."""
        return self.manifest.splits[split].bytes

    def verify(self) -> None:
        """Compare every file with its checksum; slow on a large corpus."""
        for facts in self.manifest.splits.values():
            for name, expected in facts.sha256.items():
                if sha256(self.folder / name) != expected:
                    raise UserError(f"{self.folder / name}: sha256 is not the manifest's; {REMEDY}")


def is_prepared(folder: Path) -> bool:
    """Whether a folder says that it is one of ours."""
    try:
        return f'"{FORMAT}"' in (folder / MANIFEST).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def open_prepared(folder: Path) -> Prepared:
    """Open a prepared folder, its files checked for their size only."""
    manifest = _read_manifest(folder / MANIFEST)
    for split in SPLITS:
        if split not in manifest.splits:
            raise UserError(f"{folder / MANIFEST}: has no split {split}; {REMEDY}")
        count = manifest.splits[split].tokens
        _expect_size(folder / tokens_file(split), count * token_type(manifest.vocab_size).itemsize)
        if split in manifest.asked:
            _expect_size(folder / asked_file(split), count)
        elif has_lengths_file(manifest.tokenizer_type):
            _expect_size(folder / lengths_file(split), count * LENGTH_TYPE.itemsize)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise UserError(f"{folder / TOKENIZER}: not the tokenizer that the manifest names; {REMEDY}")
    return Prepared(folder, manifest, tokenizer)


def tokens_file(split: str) -> str:
    """The name of a split's tokens."""
    return f"{split}.bin"


def lengths_file(split: str) -> str:
    """The name of a split's byte lengths."""
    return f"{split}.lengths.bin"


def asked_file(split: str) -> str:
    """The name of what says which of a split's tokens are to be predicted."""
    return f"{split}.asked.bin"


def token_type(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest of two little-endian types that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def has_lengths_file(tokenizer_type: str) -> bool:
    """Byte tokens have known lengths, which need no file."""
    return tokenizer_type != "bytes"


def _read_manifest(path: Path) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except ValidationError:
        raise UserError(f"{path}: damaged, or written by another version of lockstep; {REMEDY}") from None
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise UserError(f"{path}: format {manifest.format} {manifest.version}, not {FORMAT} {VERSION}; {REMEDY}")
    return manifest


def _expect_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    if found != size:
        raise UserError(f"{path}: {found} bytes where the manifest says {size}; {REMEDY}")
