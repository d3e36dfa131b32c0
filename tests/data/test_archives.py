"""One reader for every form, and one line for a damaged file."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from lockstep.data.archives import open_content, read_members
from lockstep.errors import UserError

CONTENT = random.Random(0).randbytes(50_000) + b"the end\n"


def tar_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("folder/first.txt", "folder/second.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = len(CONTENT)
            tar.addfile(entry, io.BytesIO(CONTENT))
    return buffer.getvalue()


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/second.txt", CONTENT)
    return buffer.getvalue()


FORMS = {
    "plain": (CONTENT, None),
    "text.xz": (lzma.compress(CONTENT), None),
    "text.gz": (gzip.compress(CONTENT), None),
    "text.zip": (zip_bytes(), None),
    "member.zip": (zip_bytes(), "folder/second.txt"),
    "member.tar": (tar_bytes(), "folder/second.txt"),
    "member.tar.xz": (lzma.compress(tar_bytes()), "folder/second.txt"),
    "member.tar.gz": (gzip.compress(tar_bytes()), "folder/second.txt"),
    "misnamed.part": (lzma.compress(CONTENT), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_content(name: str, tmp_path: Path) -> None:
    packed, member = FORMS[name]
    path = tmp_path / name
    path.write_bytes(packed)
    with open_content(path, member) as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("plain", "member.tar")])
def test_a_truncated_file_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    packed, member = FORMS[name]
    path = tmp_path / name
    path.write_bytes(packed[: len(packed) // 3])
    with pytest.raises(UserError) as caught, open_content(path, member) as stream:
        stream.read()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["text.xz", "text.gz", "member.zip", "member.tar.xz"])
def test_a_flipped_byte_is_noticed(name: str, tmp_path: Path) -> None:
    packed, member = FORMS[name]
    middle = len(packed) // 2
    path = tmp_path / name
    path.write_bytes(packed[:middle] + bytes([packed[middle] ^ 0xFF]) + packed[middle + 1 :])
    with pytest.raises(UserError, match=name), open_content(path, member) as stream:
        stream.read()


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    path = tmp_path / "two.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes()))
    with pytest.raises(UserError, match=r"has no folder/third\.txt"), open_content(path, "folder/third.txt"):
        pass
    with pytest.raises(UserError, match=r"has no folder/third\.txt"):
        read_members(path, ["folder/first.txt", "folder/third.txt"])
