"""Where data is looked for, and where what was fetched or computed is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lockstep.durable import whole_folder
from lockstep.errors import UserError


def cache_folder() -> Path:
    """The folder for downloads and derived files: `LOCKSTEP_CACHE`, else `~/.cache/lockstep`."""
    chosen = os.environ.get("LOCKSTEP_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "lockstep"


def download_folder() -> Path:
    """The part of the cache that holds corpora as they were published."""
    return cache_folder() / "corpora"


def search_folders() -> list[Path]:
    """The folders searched for corpora: those of `LOCKSTEP_DATA` in their order, then the cache."""
    named = os.environ.get("LOCKSTEP_DATA", "").split(os.pathsep)
    return [*(Path(one).expanduser() for one in named if one), download_folder()]


def find_archived(folder: str, files: Iterable[str], archives: Iterable[str]) -> Path | None:
    """The first searched folder's form of some files: unpacked in a folder of their own, or an archive of it."""
    names = tuple(files)
    for searched in search_folders():
        if all((searched / folder / name).is_file() for name in names):
            return searched / folder
        for archive in archives:
            if (searched / archive).is_file():
                return searched / archive
    return None


def search_folders_in_words() -> str:
    """The searched folders as they may stand in an error line."""
    return ", ".join(str(folder) for folder in search_folders())


@contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """A folder of the cache to write into: it appears whole, or leaves nothing behind."""
    with ExitStack() as stack:
        try:
            aside = stack.enter_context(whole_folder(target, existing="keep"))
        except OSError as error:
            raise UserError(
                f"{target.parent}: cannot be written ({error.strerror}); set LOCKSTEP_CACHE to another folder"
            ) from None
        yield aside
