"""Text around what is hidden, as tokens whose sentence boundaries are known, and the hiding itself.

Every sentence is encoded on its own, with the white space before it. What is put between two sentences therefore
changes no token of either, and an instance is made without running the tokenizer over its surroundings again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.config.tasks import Haystack as Source
from lockstep.data.corpora import find_corpus
from lockstep.data.corpus import Corpus
from lockstep.data.locations import appearing_whole, cache_folder
from lockstep.data.prepared import token_type
from lockstep.data.randomness import Draws
from lockstep.data.symbol_tokenizer import SymbolTokenizer
from lockstep.data.tasks.task import Tokens
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError
from lockstep.progress import showing

BOOKS = "english-novels"
RULE = 1
"""Changed when sentences are cut or stored in another way, so that cached ones of the old way are not taken."""
REPEATED = (
    " The river runs past the mill.",
    " The clouds are low and slow today.",
    " A cart goes up the hill and down again.",
    " Some bread is left on the table.",
    " The evening is as quiet as the morning was.",
)
"""Nothing in them is ever asked for."""

TITLES = ("Mr", "Mrs", "Ms", "Dr", "St", "Rev", "Col", "Capt", "Esq", "Messrs")
NOT_A_TITLE = "".join(rf"(?<!\b{title}\.)" for title in TITLES)
END_OF_SENTENCE = re.compile(
    # After a full stop, which may stand within quotation marks or brackets, where a capital follows;
    # or before an empty line. A new line alone says nothing: in some books it stands within sentences.
    rf"""(?:(?<=[.!?]){NOT_A_TITLE}|(?<=[.!?]["')]))(?=\s+["'(]*[A-Z])|(?<=\S)(?=\n\s*\n\s*\S)""".encode()
)


@dataclass(frozen=True)
class Excerpt:
    """Some of a haystack."""

    tokens: Tokens
    """[length]"""
    boundaries: Tokens
    """Where something may be put: before each sentence that begins in it, and at its end, though the last is cut."""

    def nearest(self, depths: NDArray[np.float64]) -> Tokens:
        """The boundary nearest to each depth, 0 the beginning and 1 the end; deeper ones never stand earlier."""
        wanted = depths * len(self.tokens)
        after = np.searchsorted(self.boundaries[:-1], wanted)
        before = np.maximum(after - 1, 0)
        closer = wanted - self.boundaries[before] <= self.boundaries[after] - wanted
        return np.where(closer, self.boundaries[before], self.boundaries[after])

    def hiding(self, pieces: Sequence[Tokens], places: Tokens) -> tuple[Tokens, Tokens]:
        """Pieces put at boundaries that never fall: all tokens, and where each piece begins in them."""
        *before, rest = np.split(self.tokens, places)
        parts = [part for pair in zip(before, pieces, strict=True) for part in pair]
        sizes = np.array([len(piece) for piece in pieces])
        return np.concatenate([*parts, rest]), places + np.cumsum(sizes) - sizes


@dataclass(frozen=True)
class Haystack:
    """Sentences in a circle: the first follows the last."""

    tokens: NDArray[np.unsignedinteger]
    """[tokens], of all sentences one after another."""
    starts: NDArray[np.int64]
    """[sentences]: where each begins."""

    def excerpt(self, draws: Draws, length: int) -> Excerpt:
        """`length` tokens from the beginning of any sentence on."""
        count, total = len(self.starts), len(self.tokens)
        first = draws.one_below(count)
        begin = int(self.starts[first])
        rounds, rest = divmod(begin + length, total)
        last = rounds * count + int(np.searchsorted(self.starts, rest))
        sentences = np.arange(first, last)
        boundaries = self.starts[sentences % count] + sentences // count * total - begin
        tokens = self.tokens[np.arange(begin, begin + length) % total].astype(np.int64)
        return Excerpt(tokens, np.append(boundaries, length))


class Haystacks:
    """Those of one tokenizer, opened when they are first asked for."""

    def __init__(self, tokenizer: Tokenizer, sources: Iterable[Source]) -> None:
        self.tokenizer = tokenizer
        self._corpus = find_corpus(BOOKS) if "books" in sources else None
        self._opened: dict[str, Haystack] = {}

    @cached_property
    def repeated(self) -> Haystack:
        """A few short sentences again and again, the same in every split."""
        return Haystack(*encode_sentences(self.tokenizer, (sentence.encode() for sentence in REPEATED)))

    def find(self, source: Source, split: str) -> Haystack:
        """The surroundings of a split's instances; no book is in two splits."""
        if source == "repeated" or self._corpus is None:
            return self.repeated
        if split not in self._opened:
            self._opened[split] = books(self._corpus, self.tokenizer, split)
        return self._opened[split]


def books(corpus: Corpus, tokenizer: Tokenizer, split: str) -> Haystack:
    """The books of a split, tokenized now where that has not been done before, and mapped from disk."""
    key = hashlib.sha256(f"{RULE} {corpus.digest} {tokenizer.fingerprint}".encode()).hexdigest()[:16]
    folder = cache_folder() / "haystacks" / f"{corpus.name}-{split}-{key}"
    if not folder.is_dir():
        with appearing_whole(folder) as aside:
            with showing(f"tokenizing {corpus.name} ({split})", "bytes", corpus.contents.bytes[split]) as progress:
                tokens, starts = encode_sentences(tokenizer, _sentences_of(corpus, split, progress.add))
            np.save(aside / "tokens.npy", tokens)
            np.save(aside / "starts.npy", starts)
    return open_haystack(folder)


def open_haystack(folder: Path) -> Haystack:
    """What `books` has written, without reading it."""
    try:
        tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        return Haystack(tokens, np.load(folder / "starts.npy", mmap_mode="r"))
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder}: a damaged haystack ({reason}); delete the folder, it is made again") from None


def sentences(document: bytes) -> list[bytes]:
    """A document's sentences, each with the white space before it; together they are the document."""
    return END_OF_SENTENCE.split(document)


def _sentences_of(corpus: Corpus, split: str, advance: Callable[[int], None]) -> Iterator[bytes]:
    for document in corpus.documents(split):
        for sentence in sentences(document):
            yield sentence
            advance(len(sentence))


def encode_sentences(
    tokenizer: Tokenizer, pieces: Iterable[bytes]
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """All tokens, and where each sentence begins; one that gives no token is none."""
    kept = [ids for ids in map(tokenizer.encode, pieces) if len(ids)]
    ends = np.cumsum([len(ids) for ids in kept], dtype=np.int64)
    tokens = np.concatenate(kept).astype(token_type(tokenizer.vocab_size))
    return tokens, np.concatenate([[0], ends[:-1]])


def encode_text(tokenizer: Tokenizer, text: str) -> Tokens:
    """The tokens of a piece of text by itself."""
    return tokenizer.encode(text.encode()).astype(np.int64)


def require_spelling(tokenizer: Tokenizer, texts: Iterable[str], task: str) -> None:
    """Raise where a tokenizer cannot write one of these: an answer that it cannot tell from another is no answer."""
    if tokenizer.kind == SymbolTokenizer.kind:
        raise UserError(f"{task}: made of text, and tokenizer_type symbols has none; take bytes, gpt2 or file")
    for text in texts:
        back = tokenizer.decode(encode_text(tokenizer, text).tolist())
        if "".join(back.split()).lower() != "".join(text.split()).lower():
            raise UserError(
                f"{task}: the {tokenizer.kind} tokenizer cannot write {text.strip()!r}; take bytes, bpe or gpt2"
            )
