"""Reading plain, .xz, .gz, .zip and .tar.* files alike; a damaged one is one line that names it."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from lockstep.errors import UserError

# What the readers below raise on a truncated or damaged file.
DAMAGED = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)


@contextmanager
def open_content(path: Path, member: str | None = None) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file, or of one member of an archive.

    The form is told from the first bytes, so that a file keeps its meaning under any name.
    """
    with _complaining_about(path), ExitStack() as stack:
        if _starts_with(path, b"PK\x03\x04"):
            yield stack.enter_context(_open_in_zip(path, member))
        elif member is None:
            yield stack.enter_context(_decompressed(path))
        else:
            tar = stack.enter_context(_open_tar(stack.enter_context(_decompressed(path))))
            yield _find_in_tar(tar, path, member)


def read_members(path: Path, members: Collection[str]) -> dict[str, bytes]:
    """Several members of one archive, in one pass over it."""
    found: dict[str, bytes] = {}
    if _starts_with(path, b"PK\x03\x04"):
        for member in members:
            with open_content(path, member) as stream:
                found[member] = stream.read()
        return found
    with _complaining_about(path), _decompressed(path) as content, _open_tar(content) as tar:
        for entry in tar:
            name = entry.name.removeprefix("./")
            text = tar.extractfile(entry) if name in members else None
            if text is not None:
                found[name] = text.read()
    for member in members:
        if member not in found:
            raise _lacks(path, member)
    return found


def read_checked(source: Path, folder: str, checksums: Mapping[str, str]) -> dict[str, bytes]:
    """Files by name from a folder, or from an archive of a folder of that name, each compared with its sha256."""
    if source.is_dir():
        contents = {}
        for name in checksums:
            with open_content(source / name) as stream:
                contents[name] = stream.read()
    else:
        members = read_members(source, [f"{folder}/{name}" for name in checksums])
        contents = {name: members[f"{folder}/{name}"] for name in checksums}
    for name, checksum in checksums.items():
        found = hashlib.sha256(contents[name]).hexdigest()
        if found != checksum:
            raise UserError(f"{source}: {name} has sha256 {found}, not {checksum}; fetch it again")
    return contents


@contextmanager
def _complaining_about(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: truncated or damaged ({reason}); delete it and fetch it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None


def _starts_with(path: Path, magic: bytes) -> bool:
    with _complaining_about(path), path.open("rb") as stream:
        return stream.read(len(magic)) == magic


def _decompressed(path: Path) -> IO[bytes]:
    if _starts_with(path, b"\xfd7zXZ\x00"):
        return lzma.open(path, "rb")
    if _starts_with(path, b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if _starts_with(path, b"BZh"):
        return bz2.open(path, "rb")
    return path.open("rb")


def _open_tar(content: IO[bytes]) -> tarfile.TarFile:
    # As a stream: seeking backwards would decompress everything again.
    return tarfile.open(fileobj=content, mode="r|")


def _find_in_tar(tar: tarfile.TarFile, path: Path, member: str) -> IO[bytes]:
    for entry in tar:
        stream = tar.extractfile(entry) if entry.name.removeprefix("./") == member else None
        if stream is not None:
            return stream
    raise _lacks(path, member)


@contextmanager
def _open_in_zip(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if member is None and len(names) != 1:
            raise UserError(f"{path}: holds {len(names)} files where one is expected; unpack it into a folder")
        name = names[0] if member is None else member
        if name not in names:
            raise _lacks(path, name)
        with archive.open(name) as stream:
            yield stream


def _lacks(path: Path, member: str) -> UserError:
    return UserError(f"{path}: has no {member} inside; fetch the archive again or unpack the right one")
