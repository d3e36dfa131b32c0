"""Files that appear whole or not at all, and that survive a power cut once they have appeared."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder to fill; it takes its final name, replacing an older one, when everything in it is on the disk.

    If anything goes wrong while it is filled, nothing of it stays behind and the final name is not touched.
    """
    aside = final.with_name(f".{final.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in aside.iterdir():
            sync(file)
        sync(aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    damaged = final.with_name(f".{final.name}.damaged")
    if final.exists():
        # Only a damaged folder is ever written again; it makes room, and goes when its successor is in place.
        shutil.rmtree(damaged, ignore_errors=True)
        final.rename(damaged)
    aside.rename(final)
    sync(final.parent)
    shutil.rmtree(damaged, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file aside and give it its name when it is on the disk."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        sync(aside)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)
