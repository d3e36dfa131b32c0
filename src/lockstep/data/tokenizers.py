"""Making, caching and loading tokenizers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.character_tokenizer import CharacterTokenizer
from lockstep.data.corpus import Corpus
from lockstep.data.gpt2 import gpt2_tokenizer
from lockstep.data.library_tokenizer import LIBRARY_FILE, LibraryTokenizer, from_library_file
from lockstep.data.locations import appearing_whole, cache_folder
from lockstep.data.symbol_tokenizer import SymbolTokenizer
from lockstep.data.tokenizer_base import DEFINITION, Tokenizer
from lockstep.data.tokenizer_training import (
    train_bpe,
    train_character,
    train_unigram,
    train_word,
    train_wordpiece,
)
from lockstep.errors import UserError

__all__ = ["ByteTokenizer", "LibraryTokenizer", "Tokenizer", "canonical_kind", "load_tokenizer", "make_tokenizer"]

DEFAULT_SIZE = 32000
TRAINING_RULE = 1
"""Changed when a training recipe changes, so that cached tokenizers of the old one are not taken."""


def make_tokenizer(spec: TokenizerSpec, corpus: Corpus | None) -> Tokenizer:
    """The tokenizer that `spec` names; a trained one is trained once per corpus, kind and size."""
    if spec.tokenizer_type == "bytes":
        return ByteTokenizer()
    if spec.tokenizer_type == "symbols":
        return SymbolTokenizer(spec.vocab_size or 0)
    if spec.tokenizer_type == "gpt2":
        return _of_size(gpt2_tokenizer(spec.path), spec)
    if spec.tokenizer_type == "file":
        path = Path(str(spec.path)).expanduser()
        return _of_size(from_library_file("file", path / LIBRARY_FILE if path.is_dir() else path), spec)
    if corpus is None:
        raise UserError(
            f"tokenizer.tokenizer_type {spec.tokenizer_type} is trained on text, of which there is none beside"
            " data.tasks; take bytes, gpt2, file or symbols, or add data.training_corpus"
        )
    kind, size = canonical_kind(spec.tokenizer_type), trained_size(spec)
    folder = cache_folder() / "tokenizers" / f"{kind}-{size or 'all'}-{corpus.digest[:12]}-{TRAINING_RULE}"
    if not folder.is_dir():
        with appearing_whole(folder) as aside:
            train_tokenizer(kind, size, corpus).save(aside)
    tokenizer = load_tokenizer(folder)
    if size is not None and tokenizer.vocab_size < size:
        warnings.warn(
            f"tokenizer.vocab_size {size}: {corpus.name} gives a {kind} vocabulary of only {tokenizer.vocab_size}",
            stacklevel=2,
        )
    return tokenizer


def canonical_kind(tokenizer_type: str) -> str:
    """One name for one thing: `sentencepiece` is the unigram model."""
    return "unigram" if tokenizer_type == "sentencepiece" else tokenizer_type


def trained_size(spec: TokenizerSpec) -> int | None:
    """The size to train for; None takes all that is seen."""
    if spec.vocab_size is None and spec.tokenizer_type not in ("character", "word"):
        return DEFAULT_SIZE
    return spec.vocab_size


def train_tokenizer(kind: str, size: int | None, corpus: Corpus) -> Tokenizer:
    """Train on the corpus's training split, without looking into the cache."""
    if kind == "character":
        return train_character(corpus, size)
    if kind == "word":
        return train_word(corpus, size)
    train = {"bpe": train_bpe, "unigram": train_unigram, "wordpiece": train_wordpiece}[kind]
    return train(corpus, DEFAULT_SIZE if size is None else size)


def load_tokenizer(folder: Path) -> Tokenizer:
    """What `Tokenizer.save` has written."""
    try:
        definition = json.loads((folder / DEFINITION).read_text(encoding="utf-8"))
        kind = definition["kind"]
        if kind == "bytes":
            return ByteTokenizer()
        if kind == "symbols":
            return SymbolTokenizer(definition["vocab_size"])
        if kind == "character":
            return CharacterTokenizer(definition["alphabet"])
        library = (folder / LIBRARY_FILE).read_text(encoding="utf-8")
        return LibraryTokenizer(kind, library, definition["eos"], definition["mask"])
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no {Path(error.filename).name}; delete the folder and prepare again") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); check the folder") from None
    except Exception as error:  # malformed JSON, missing keys, and the library's bare Exceptions
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder}: a damaged tokenizer ({reason}); delete the folder and prepare again") from None


def _of_size(tokenizer: Tokenizer, spec: TokenizerSpec) -> Tokenizer:
    if spec.vocab_size not in (None, tokenizer.vocab_size):
        raise UserError(
            f"tokenizer.vocab_size is {spec.vocab_size}, but the {spec.tokenizer_type} tokenizer has "
            f"{tokenizer.vocab_size} tokens; leave vocab_size out"
        )
    return tokenizer
