"""Finding a corpus: by registered name, as a text file or folder, or on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lockstep.config.spec import nearest
from lockstep.data.corpus import SPLITS, Corpus
from lockstep.data.hub import PREFIX, hub_corpus
from lockstep.data.novels import english_novels, find_novels
from lockstep.data.published import Archive, Part, find_part, locate
from lockstep.data.stdlib import standard_library
from lockstep.data.user_text import text_at
from lockstep.data.wikitext import (
    WIKITEXT_2_RAW,
    WIKITEXT_2_WORD,
    WIKITEXT_103_RAW,
    WIKITEXT_103_WORD,
    wikitext,
)
from lockstep.errors import UserError

__all__ = ["CORPORA", "SPLITS", "Corpus", "find_corpus", "is_corpus", "names"]

ENWIK8 = Part(
    member="enwik8",
    sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    packed=("enwik8.xz", "enwik8.gz", "enwik8.zip"),
    origin=Archive("http://mattmahoney.net/dc/enwik8.zip", "enwik8.zip"),
)
TINY_SHAKESPEARE = Part(
    member="tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    packed=("tinyshakespeare.txt", "tinyshakespeare.txt.xz", "tinyshakespeare.txt.gz"),
    origin=Archive(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "tinyshakespeare.txt",
    ),
)


def contiguous(name: str, description: str, part: Part) -> Corpus:
    """One text, its first 90 % for training, then 5 % and 5 %: one document each."""
    (place,) = locate(name, (part,))
    content = cache(place.read)

    def read(split: str) -> Iterator[bytes]:
        text = content()
        edges = (0, len(text) * 18 // 20, len(text) * 19 // 20, len(text))
        index = SPLITS.index(split)
        yield text[edges[index] : edges[index + 1]]

    return Corpus(name, description, read, (place.path,))


@dataclass(frozen=True)
class Registered:
    """A corpus known by name, whether or not its files are here."""

    description: str
    make: Callable[[str, str], Corpus]
    """Given name and description; finds the files, or fetches them."""
    is_present: Callable[[], bool]
    """Whether it can be made without a download."""


def _of_parts(description: str, make: Callable[..., Corpus], parts: Part | dict[str, Part]) -> Registered:
    needed = tuple(parts.values()) if isinstance(parts, dict) else (parts,)

    def is_present() -> bool:
        return all(find_part(part) is not None for part in needed)

    return Registered(description, lambda name, description: make(name, description, parts), is_present)


CORPORA: dict[str, Registered] = {
    "pystdlib": Registered("the source text of this Python's standard library", standard_library, lambda: True),
    "enwik8": _of_parts("the first 10^8 bytes of English Wikipedia, 2006", contiguous, ENWIK8),
    "wikitext-2-raw": _of_parts("WikiText-2, raw text", wikitext, WIKITEXT_2_RAW),
    "wikitext-2-word": _of_parts("WikiText-2, words with <unk>", wikitext, WIKITEXT_2_WORD),
    "wikitext-103-raw": _of_parts("WikiText-103, raw text", wikitext, WIKITEXT_103_RAW),
    "wikitext-103-word": _of_parts("WikiText-103, words with <unk>", wikitext, WIKITEXT_103_WORD),
    "tinyshakespeare": _of_parts("1.1 MB of Shakespeare's plays", contiguous, TINY_SHAKESPEARE),
    "english-novels": Registered("22 English novels, 1839 to 1904", english_novels, lambda: find_novels() is not None),
}
ALIASES = {"wikitext": "wikitext-103-raw", "wikitext-2": "wikitext-2-raw", "wikitext-103": "wikitext-103-raw"}


def find_corpus(reference: str) -> Corpus:
    """A registered corpus, the text at a path, or `hub:OWNER/NAME[:CONFIG]`."""
    name = ALIASES.get(reference, reference)
    if name in CORPORA:
        return CORPORA[name].make(name, CORPORA[name].description)
    if reference.startswith(PREFIX):
        return hub_corpus(reference)
    path = Path(reference).expanduser()
    if path.exists():
        return text_at(path)
    raise UserError(f"corpus {reference}: no such file or folder, nor a known name{nearest(reference, names())}")


def is_corpus(reference: str) -> bool:
    """Whether `find_corpus` would know where to look."""
    return reference in names() or reference.startswith(PREFIX) or Path(reference).expanduser().exists()


def names() -> tuple[str, ...]:
    """Every registered name, aliases included."""
    return (*CORPORA, *ALIASES)
