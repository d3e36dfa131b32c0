"""A user's own text file or folder as a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep.data.archives import open_content
from lockstep.data.corpus import SPLITS, Corpus
from lockstep.errors import UserError

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
HELD_OUT_SHARE = 20
"""One part in twenty is held out for each split that has to be cut from the training text."""


def text_at(path: Path) -> Corpus:
    """The corpus that a file or folder is."""
    files = [path] if path.is_file() else visible_files(path)
    if not files:
        raise UserError(f"{path}: an empty folder; put text files into it, or name another corpus")
    own = split_files(path, files) if path.is_dir() else {}
    if "train" in own:
        return held_out_corpus(path, own)
    cut = CutText(str(path), lambda: read_files(files), tuple(SPLITS[1:]))
    return Corpus(corpus_name(path), f"text at {path}", cut.documents, tuple(files))


def held_out_corpus(path: Path, own: dict[str, Path]) -> Corpus:
    """A folder with split files; held-out splits that are missing are cut from its training text."""
    missing = tuple(split for split in SPLITS if split not in own)
    cut = CutText(str(own["train"]), lambda: read_files([own["train"]]), missing)

    def read(split: str) -> Iterator[bytes]:
        if split != "train" and split in own:
            return read_files([own[split]])
        return cut.documents(split)

    for split, file in own.items():
        if not file.stat().st_size:
            raise UserError(f"{file}: the {split} split is empty; put text into it or remove the file")
    return Corpus(corpus_name(path), f"text at {path}", read, tuple(own.values()))


def visible_files(folder: Path) -> list[Path]:
    """Every file below, hidden ones aside, in the order of their relative paths."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    shown = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted(shown, key=lambda path: path.relative_to(folder).as_posix())


def split_files(folder: Path, files: list[Path]) -> dict[str, Path]:
    """The folder's own files named after splits: train.txt, valid.txt.gz, wiki.test.raw …"""
    own: dict[str, Path] = {}
    for path in files:
        words = path.name.lower().split(".")
        splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
        if path.parent != folder or len(splits) != 1:
            continue
        split = splits.pop()
        if split in own:
            raise UserError(f"{folder}: both {own[split].name} and {path.name} name the {split} split; keep one")
        own[split] = path
    return own


def read_files(files: list[Path]) -> Iterator[bytes]:
    """One document per file, decompressed."""
    for path in files:
        with open_content(path) as stream:
            yield stream.read()


def corpus_name(path: Path) -> str:
    """The file's or folder's name without its endings."""
    return path.resolve().name.lstrip(".").partition(".")[0] or "text"


@dataclass(frozen=True)
class CutText:
    """Documents cut by bytes into a training part and held-out twentieths, at line breaks."""

    label: str
    read: Callable[[], Iterator[bytes]]
    held_out: tuple[str, ...]

    def documents(self, split: str) -> Iterator[bytes]:
        """The documents of a split; one that crosses a cut becomes two."""
        start, end = self.ranges[split]
        offset = 0
        for document in self.read():
            piece = document[max(0, start - offset) : max(0, end - offset)]
            offset += len(document)
            if piece:
                yield piece

    @cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Where each split begins and ends in the concatenation."""
        total = sum(len(document) for document in self.read())
        names = ("train", *self.held_out)
        aims = [total * (HELD_OUT_SHARE - left) // HELD_OUT_SHARE for left in range(len(self.held_out), 0, -1)]
        edges = [0, *self._line_ends(aims), total]
        ranges = {name: (edges[i], edges[i + 1]) for i, name in enumerate(names)}
        for name, (start, end) in ranges.items():
            if start >= end:
                raise UserError(
                    f"{self.label}: {total} bytes, too few to cut at line breaks into {', '.join(names)}: {name} would "
                    f"be empty; give at least {HELD_OUT_SHARE} lines of similar length, or files of its own per split"
                )
        return ranges

    def _line_ends(self, aims: list[int]) -> list[int]:
        """Each aim moved on to the next line break; a document's end counts as one."""
        ends: list[int] = []
        offset = 0
        for document in self.read():
            while len(ends) < len(aims) and aims[len(ends)] <= offset + len(document):
                newline = document.find(b"\n", max(0, aims[len(ends)] - offset - 1))
                ends.append(offset + (newline + 1 if newline >= 0 else len(document)))
            offset += len(document)
        return ends
