"""Where data is looked for, and where what was fetched or computed is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def search_folders_in_words() -> str:
    """The searched folders as they may stand in an error line."""
    return ", ".join(str(folder) for folder in search_folders())


@contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes `target` in one rename, or leaves nothing behind.

    Where another process got there first its folder stays and ours is dropped: both hold the same.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UserError(
            f"{target.parent}: cannot be written ({error.strerror}); set LOCKSTEP_CACHE to another folder"
        ) from None
    try:
        yield aside
        # Temporary folders are private; what others may read is decided by the umask, as for any folder.
        aside.chmod(0o777 & ~_umask())
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
