"""GPT-2's byte-level BPE, from any of the forms in which its vocabulary is handed around."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lockstep.data.archives import open_content
from lockstep.data.library_tokenizer import LibraryTokenizer
from lockstep.data.locations import search_folders, search_folders_in_words
from lockstep.errors import UserError

EOS = "<|endoftext|>"
SIZE = 50257
NAME = "gpt2-bpe"
ARCHIVES = ("gpt2-bpe.tar.xz", "gpt2-bpe.tar.gz", "gpt2-bpe.zip")
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def gpt2_tokenizer(path: str | None) -> LibraryTokenizer:
    """The tokenizer at `path`, else the one in the searched folders."""
    place = Path(path).expanduser() if path is not None else _find()
    vocabulary, merges = _read(place)
    if len(vocabulary) != SIZE or vocabulary.get(EOS) != SIZE - 1:
        raise UserError(
            f"{place}: {len(vocabulary)} tokens, where GPT-2 has {SIZE} with {EOS} last; use tokenizer_type file"
        )
    return LibraryTokenizer("gpt2", byte_level_bpe(vocabulary, merges, (EOS,)), EOS, None)


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], specials: tuple[str, ...]) -> str:
    """The library's definition of a BPE over bytes that loses nothing."""
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in specials])
    return library.to_str()


def _find() -> Path:
    for folder in search_folders():
        if (folder / NAME).is_dir():
            return folder / NAME
        for archive in ARCHIVES:
            if (folder / archive).is_file():
                return folder / archive
    raise UserError(
        f"tokenizer gpt2: no {ARCHIVES[0]} or folder {NAME} in {search_folders_in_words()}; put it into one of "
        f"these folders, or set tokenizer.path to a tokenizer.json or a folder with vocab.json and merges.txt"
    )


def _read(place: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a tokenizer.json, a folder or an archive."""
    if place.name.endswith(ARCHIVES):
        vocabulary = _from_archive(place, "vocab.json")
        return _parse(place, vocabulary, _from_archive(place, "merges.txt"))
    if place.is_file():
        return _from_definition(place)
    if (place / "tokenizer.json").is_file():
        return _from_definition(place / "tokenizer.json")
    for first, second in PAIRS:
        if (place / first).is_file() and (place / second).is_file():
            return _parse(place, (place / first).read_bytes(), (place / second).read_bytes())
    raise UserError(
        f"tokenizer.path {place}: neither a tokenizer.json nor a folder with it, or with vocab.json and merges.txt"
    )


def _from_archive(place: Path, file: str) -> bytes:
    with open_content(place, f"{NAME}/{file}") as stream:
        return stream.read()


def _from_definition(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    try:
        whole = json.loads(path.read_bytes())
        model = whole["model"]
        added = {token["content"]: int(token["id"]) for token in whole.get("added_tokens", ())}
        return {**model["vocab"], **added}, [_pair(merge) for merge in model["merges"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not a tokenizer.json with a BPE model; check the file") from None


def _parse(place: Path, vocabulary: bytes, merges: bytes) -> tuple[dict[str, int], list[tuple[str, str]]]:
    try:
        lines = merges.decode("utf-8").split("\n")
        pairs = [_pair(line) for line in lines if line and not line.startswith("#version")]
        return dict(json.loads(vocabulary)), pairs
    except (ValueError, TypeError):
        raise UserError(f"{place}: vocab.json or merges.txt is damaged; fetch them again") from None


def _pair(merge: Any) -> tuple[str, str]:
    """Written as `a b` or as `["a", "b"]`, by the library's age."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second
