"""From text to a prepared folder: tokenized once, then only opened."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpora import SPLITS, Corpus, find_corpus, is_corpus
from lockstep.data.locations import appearing_whole, cache_folder, search_folders_in_words
from lockstep.data.prepared import (
    FORMAT,
    LENGTH_TYPE,
    MANIFEST,
    TOKENIZER,
    VERSION,
    Manifest,
    Prepared,
    SplitFacts,
    has_lengths_file,
    is_prepared,
    lengths_file,
    open_prepared,
    token_type,
    tokens_file,
)
from lockstep.data.task_corpus import with_tasks
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.data.tokenizers import canonical_kind, make_tokenizer
from lockstep.errors import UserError
from lockstep.progress import showing

__all__ = ["Manifest", "Prepared", "open_prepared", "prepare"]


def prepare(data: DataSpec, tokenizer: TokenizerSpec, *, verify: bool = False) -> Prepared:
    """The tokens that a run reads, prepared now where that has not been done before.

    What had been done before is checked for its size; `verify` compares every byte with its checksum.
    """
    if data.tasks:
        text = prepare_text(data, tokenizer, verify=verify) if data.has_text else None
        return _verified(with_tasks(data, tokenizer, text), verify)
    return prepare_text(data, tokenizer, verify=verify)


def prepare_text(data: DataSpec, tokenizer: TokenizerSpec, *, verify: bool = False) -> Prepared:
    """The corpus alone, whatever tasks there may be."""
    reference = choose_corpus(data)
    given = Path(reference).expanduser()
    if is_prepared(given):
        return _verified(_agreeing(open_prepared(given), tokenizer), verify)
    corpus = find_corpus(reference)
    made = make_tokenizer(tokenizer, corpus)
    key = hashlib.sha256(f"{VERSION} {corpus.digest} {made.fingerprint}".encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", corpus.name)
    folder = cache_folder() / "prepared" / f"{name}-{key}"
    if folder.is_dir():
        return _verified(open_prepared(folder), verify)
    with appearing_whole(folder) as aside:
        write_prepared(aside, corpus, made, tokenizer.vocab_size)
    return open_prepared(folder)


def _verified(prepared: Prepared, wanted: bool) -> Prepared:
    if wanted:
        prepared.verify()
    return prepared


def choose_corpus(data: DataSpec) -> str:
    """`training_corpus` where there is such a thing, else `source_corpus`."""
    named = [one for one in (data.training_corpus, data.source_corpus) if one is not None]
    for reference in named:
        if is_corpus(reference):
            return reference
    if len(named) == 1:
        find_corpus(named[0])  # says what is wrong with the one name, and what is near it
    raise UserError(
        f"data.training_corpus {data.training_corpus} and data.source_corpus {data.source_corpus}: neither is a known "
        f"corpus, a file or a folder; put one in place, or a known corpus into {search_folders_in_words()}"
    )


def write_prepared(folder: Path, corpus: Corpus, tokenizer: Tokenizer, requested: int | None) -> None:
    """Tokenize every split into `folder`; the manifest comes last."""
    splits: dict[str, SplitFacts] = {}
    total = sum(corpus.contents.bytes.values())
    with showing(f"tokenizing {corpus.name}", "bytes", total) as progress:
        for split in SPLITS:
            splits[split] = _write_split(folder, corpus, split, tokenizer, progress.add)
    tokenizer.save(folder / TOKENIZER)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        corpus=corpus.name,
        corpus_digest=corpus.digest,
        tokenizer_type=tokenizer.kind,
        requested_vocab_size=requested,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        tokenizer_fingerprint=tokenizer.fingerprint,
        splits=splits,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")


class _HashedFile:
    """A file of numbers of one type, hashed as it is written."""

    def __init__(self, stream: IO[bytes], dtype: np.dtype[np.unsignedinteger]) -> None:
        self._stream = stream
        self._dtype = dtype
        self._hash = hashlib.sha256()
        self.count = 0

    def append(self, numbers: NDArray[np.integer], last: int) -> None:
        """A document's numbers, then the separator's."""
        whole = np.empty(len(numbers) + 1, dtype=self._dtype)
        whole[:-1] = numbers
        whole[-1] = last
        self._hash.update(whole.data)
        self._stream.write(whole.data)
        self.count += len(whole)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _write_split(
    folder: Path, corpus: Corpus, split: str, tokenizer: Tokenizer, advance: Callable[[int], None]
) -> SplitFacts:
    documents = size = 0
    with_lengths = has_lengths_file(tokenizer.kind)
    names = [tokens_file(split), *([lengths_file(split)] if with_lengths else ())]
    with (folder / names[0]).open("wb") as first, (folder / names[-1]).open("ab") as second:
        tokens = _HashedFile(first, token_type(tokenizer.vocab_size))
        lengths = _HashedFile(second, LENGTH_TYPE)
        for document in corpus.documents(split):
            if with_lengths:
                ids, spans = tokenizer.encode_with_lengths(document)
                # The separator accounts for no byte, unless nothing else can: a document without tokens.
                lengths.append(spans, 0 if len(ids) else len(document))
            else:
                ids = tokenizer.encode(document)
            tokens.append(ids, tokenizer.eos_id)
            documents += 1
            size += len(document)
            advance(len(document))
    if not documents:
        raise UserError(f"corpus {corpus.name}: its {split} split is empty; give it text of its own")
    checksums = dict(zip(names, (tokens.sha256, lengths.sha256), strict=False))
    return SplitFacts(tokens=tokens.count, documents=documents, bytes=size, sha256=checksums)


def _agreeing(prepared: Prepared, spec: TokenizerSpec) -> Prepared:
    """A prepared folder brings its tokenizer; a specification may repeat it but not contradict it."""
    manifest = prepared.manifest
    asked = canonical_kind(spec.tokenizer_type)
    if "tokenizer_type" in spec.model_fields_set and asked != manifest.tokenizer_type:
        raise UserError(
            f"tokenizer.tokenizer_type is {spec.tokenizer_type}, but {prepared.folder} was prepared with "
            f"{manifest.tokenizer_type}; leave the key out or name the text instead"
        )
    if spec.vocab_size not in (None, manifest.vocab_size, manifest.requested_vocab_size):
        raise UserError(
            f"tokenizer.vocab_size is {spec.vocab_size}, but {prepared.folder} was prepared with "
            f"{manifest.vocab_size}; leave the key out or name the text instead"
        )
    return prepared
