"""Files and folders that appear whole or not at all, and that survive a power cut once they have appeared.

All that is written aside has a hidden name of its own that ends in `.partial`: writers of the same thing never meet,
and what a killed process left behind can be told from everything else. While it is written it is locked, and a lock
ends with its process: whoever writes the same thing next removes what nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal


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


def whole_file(path: Path, content: str | bytes) -> None:
    """Write a file aside and give it its name when it is on the disk; text is written as UTF-8.

    A file that is replaced passes on its mode. A symbolic link stays one, and what it points to is replaced.
    """
    target = Path(os.path.realpath(path))
    mode = None
    # A path that leads nowhere for any other reason, such as links that go round, is the caller's to hear of.
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(target.stat().st_mode)
    # Not tempfile: the system applies the umask to this mode, which a program cannot read without changing it.
    aside, descriptor = _begin(target, lambda path: os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            # Before it is closed, which ends its lock.
            os.replace(aside, target)
    except BaseException:
        # What went wrong first is what the caller should hear of.
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync(target.parent)


@contextlib.contextmanager
def whole_folder(final: Path, existing: Literal["replace", "keep"]) -> Iterator[Path]:
    """A folder to fill; it takes its final name when everything in it is on the disk.

    Where there is a folder of that name by then, "replace" puts the new one in its place, and "keep" drops the new
    one: another process got there first. If anything goes wrong, nothing of the new one stays behind.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    aside, descriptor = _begin(final, _made_folder)
    try:
        yield aside
        for entry in aside.rglob("*"):
            sync(entry)
        sync(aside)
        if existing == "replace":
            _replace_folder(aside, final)
        else:
            _name_unless_taken(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(descriptor)
    sync(final.parent)
    shutil.rmtree(_damaged(final), ignore_errors=True)


def _replace_folder(aside: Path, final: Path) -> None:
    """Only a damaged folder is ever replaced; it makes room, and comes back if its successor cannot take its name."""
    damaged = _damaged(final)
    if not final.exists():
        aside.rename(final)
        return
    shutil.rmtree(damaged, ignore_errors=True)
    final.rename(damaged)
    try:
        aside.rename(final)
    except BaseException:
        damaged.rename(final)
        raise


def _name_unless_taken(aside: Path, final: Path) -> None:
    try:
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _begin(final: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    """What is to be written aside, and the descriptor that `create` opened on it, by which it is held."""
    for left_over in final.parent.glob(f".{glob.escape(final.name)}.{'?' * 8}.partial"):
        _remove_unless_held(left_over)
    while True:
        aside = final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")
        descriptor = create(aside)
        # Where a file system knows no locks, nothing is ever found to be left over.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another writer may have come between its creation and its lock, and have taken it for left over.
        if aside.exists():
            return aside, descriptor
        os.close(descriptor)


def _made_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def _remove_unless_held(aside: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if aside.is_dir():
                shutil.rmtree(aside)
            else:
                aside.unlink()
        finally:
            os.close(descriptor)


def _damaged(final: Path) -> Path:
    return final.with_name(f".{final.name}.damaged")
