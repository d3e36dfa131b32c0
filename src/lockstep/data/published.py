"""Published corpora: the files they consist of, the forms in which people keep them, their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.data.archives import open_content
from lockstep.data.fetch import download
from lockstep.data.locations import download_folder, search_folders, search_folders_in_words
from lockstep.errors import UserError

BLOCK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A published file to download."""

    url: str
    file: str
    """The name it is kept under."""


@dataclass(frozen=True)
class Part:
    """One text file of a corpus."""

    member: str
    """Its path inside an archive, and inside a folder where the archive was unpacked."""
    sha256: str | None
    """Of the text itself; None where no checksum is known to us."""
    archives: tuple[str, ...] = ()
    """File names of archives that hold the member."""
    packed: tuple[str, ...] = ()
    """File names that hold this text alone, plain or compressed."""
    origin: Archive | None = None


@dataclass(frozen=True)
class Place:
    """Where a part was found."""

    part: Part
    path: Path
    member: str | None

    @property
    def label(self) -> str:
        """How an error line names it."""
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    def read(self) -> bytes:
        """The whole text, checked."""
        with open_content(self.path, self.member) as stream:
            text = stream.read()
        self.expect(hashlib.sha256(text).hexdigest())
        return text

    def lines(self) -> Iterator[bytes]:
        """The text line by line; a wrong checksum is an error at its end."""
        whole = hashlib.sha256()
        with open_content(self.path, self.member) as stream:
            while lines := stream.readlines(BLOCK):
                for line in lines:
                    whole.update(line)
                yield from lines
        self.expect(whole.hexdigest())

    def expect(self, found: str) -> None:
        """Raise where a checksum is known and is another."""
        if self.part.sha256 is not None and found != self.part.sha256:
            raise UserError(
                f"{self.label}: sha256 is {found}, not {self.part.sha256}; delete the file and fetch it again"
            )


def locate(corpus: str, parts: tuple[Part, ...]) -> list[Place]:
    """Every part of a corpus, downloaded where no searched folder has it."""
    return [_locate_one(corpus, part) for part in parts]


def find_part(part: Part) -> Place | None:
    """The first folder's form of a part; a folder's files are all tried before the next folder's."""
    for folder in search_folders():
        alone = (part.member, *part.packed, f"{part.member}.xz", f"{part.member}.gz")
        for name in alone:
            if (folder / name).is_file():
                return Place(part, folder / name, None)
        for name in part.archives:
            if (folder / name).is_file():
                return Place(part, folder / name, part.member)
    return None


def _locate_one(corpus: str, part: Part) -> Place:
    found = find_part(part)
    if found is not None:
        return found
    names = " or ".join(dict.fromkeys((*part.packed, part.member, *part.archives)))
    missing = f"corpus {corpus}: no {names} in {search_folders_in_words()}"
    if part.origin is None:
        raise UserError(f"{missing}; put it into one of these folders (LOCKSTEP_DATA names more)")
    target = download_folder() / part.origin.file
    member = part.member if part.origin.file in part.archives else None
    try:
        download(part.origin.url, target, lambda path: _check(Place(part, path, member)))
    except (UserError, OSError) as error:
        raise UserError(f"{missing}, and {error}; or put it into one of these folders") from None
    return Place(part, target, member)


def _check(place: Place) -> None:
    for _ in place.lines():
        pass
