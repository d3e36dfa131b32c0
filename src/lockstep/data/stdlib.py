"""The embedded corpus: the source text of the running Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lockstep.data.corpus import Corpus
from lockstep.errors import UserError

LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "idlelib", "lib2to3"}
)
# Written when Python was built: they hold that machine's paths and flags, not somebody's source text.
GENERATED = ("_sysconfigdata", "config-")
HELD_OUT = {0: "valid", 1: "test"}
SHARES = 20
"""One file in twenty is held out for each of `valid` and `test`."""


def standard_library(name: str, description: str) -> Corpus:
    """One document per source file, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = tuple(source_files(root))
    if not files:
        raise UserError(f"{root}: no Python source files; name another corpus in data.training_corpus")

    def read(split: str) -> Iterator[bytes]:
        return (path.read_bytes() for path in files if split_of(path.relative_to(root).as_posix()) == split)

    return Corpus(name, description, read, files)


def source_files(root: Path) -> list[Path]:
    """The library's own modules: no tests, no installed packages, nothing generated at build time."""
    chosen = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if LEFT_OUT.isdisjoint(parts) and not any(part.startswith(GENERATED) for part in parts):
            chosen.append(path)
    return sorted(chosen, key=lambda path: path.relative_to(root).as_posix())


def split_of(relative_path: str) -> str:
    """Decided by the path alone, so that a file keeps its split when others come and go."""
    number = int.from_bytes(hashlib.sha256(relative_path.encode()).digest()[:8], "big")
    return HELD_OUT.get(number % SHARES, "train")
