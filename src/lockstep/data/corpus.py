"""What a corpus is: documents in three splits, and a digest that tells its text apart from any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from lockstep.config.spec import Spec
from lockstep.data.locations import cache_folder
from lockstep.durable import whole_file
from lockstep.progress import showing

SPLITS = ("train", "valid", "test")
DIGEST_RULE = 1
"""Changed when the digest, or the way in which a corpus is cut into documents, is defined anew."""


class Contents(Spec):
    """What a corpus holds, as found by one pass over it."""

    digest: str
    documents: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True)
class Corpus:
    """Named text in three splits."""

    name: str
    description: str
    read: Callable[[str], Iterator[bytes]]
    """The documents of a split, in their defined order."""
    sources: tuple[Path, ...] = ()
    """The files it is read from: while they are unchanged the digest need not be computed again."""

    def documents(self, split: str) -> Iterator[bytes]:
        """The raw bytes of each document of a split; empty documents do not count as documents."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is none of {SPLITS}")
        return (document for document in self.read(split) if document)

    @property
    def digest(self) -> str:
        """sha256 over split names and documents, independent of where the files lie."""
        return self.contents.digest

    @cached_property
    def contents(self) -> Contents:
        """Digest and sizes, remembered on disk for as long as path, size and time of the files stay."""
        if not self.sources:
            return _examine(self)
        note = cache_folder() / "digests" / f"{_identity(self)}.json"
        try:
            return Contents.model_validate_json(note.read_bytes())
        except (OSError, ValidationError):
            contents = _examine(self)
        _remember(note, contents)
        return contents


def _identity(corpus: Corpus) -> str:
    """Changes when a source file may have changed."""
    whole = hashlib.sha256(f"{DIGEST_RULE} {corpus.name}".encode())
    for path in corpus.sources:
        facts = path.stat()
        whole.update(f"\n{facts.st_size} {facts.st_mtime_ns} {path.resolve()}".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()[:32]


def _examine(corpus: Corpus) -> Contents:
    whole = hashlib.sha256()
    documents = dict.fromkeys(SPLITS, 0)
    sizes = dict.fromkeys(SPLITS, 0)
    with showing(f"reading {corpus.name}", "bytes", None) as progress:
        for split in SPLITS:
            whole.update(f"split {split}\n".encode())
            for document in corpus.documents(split):
                # The length keeps apart two documents and their concatenation.
                whole.update(len(document).to_bytes(8, "little"))
                whole.update(document)
                documents[split] += 1
                sizes[split] += len(document)
                progress.add(len(document))
    return Contents(digest=whole.hexdigest(), documents=documents, bytes=sizes)


def _remember(note: Path, contents: Contents) -> None:
    """Failing to remember only costs time, so an unwritable cache is no error here."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        whole_file(note, contents.model_dump_json(indent=1))
    except OSError:
        return
