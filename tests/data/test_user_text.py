"""A user's own files: splits by name, or cut at line breaks; nothing lost, nothing twice."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.corpora import SPLITS, find_corpus
from lockstep.data.user_text import CutText
from lockstep.errors import UserError


def contents(path: Path) -> dict[str, list[bytes]]:
    corpus = find_corpus(str(path))
    return {split: list(corpus.documents(split)) for split in SPLITS}


def test_a_file_is_cut_at_line_breaks(tmp_path: Path) -> None:
    lines = [f"line {number:03d}\n".encode() for number in range(100)]
    path = tmp_path / "text.txt"
    path.write_bytes(b"".join(lines))
    assert contents(path) == {
        "train": [b"".join(lines[:90])],
        "valid": [b"".join(lines[90:95])],
        "test": [b"".join(lines[95:])],
    }


def expected_cuts(documents: list[bytes]) -> list[int]:
    """Worked out differently: every line end and document end, and the first of them at or after each aim."""
    whole = b"".join(documents)
    breaks = {place + 1 for place, byte in enumerate(whole) if byte == ord("\n")}
    breaks |= {sum(map(len, documents[:count])) for count in range(1, len(documents) + 1)}
    return [min(one for one in breaks if one >= len(whole) * share // 20) for share in (18, 19)]


@given(st.lists(st.lists(st.binary(max_size=8), max_size=12).map(b"\n".join), min_size=1, max_size=6))
def test_a_cut_loses_nothing_and_falls_on_line_breaks(documents: list[bytes]) -> None:
    cut = CutText("text", lambda: iter(documents), ("valid", "test"))
    whole = b"".join(documents)
    first, second = expected_cuts(documents)
    if not 0 < first < second < len(whole):
        with pytest.raises(UserError, match="too few"):
            list(cut.documents("train"))
        return
    parts = [b"".join(cut.documents(split)) for split in SPLITS]
    assert parts == [whole[:first], whole[first:second], whole[second:]]


def test_a_folder_is_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    text = b"some line of text\n"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_bytes(text * 20)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"A" + text * 20))
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(text * 20))
    (tmp_path / ".hidden").write_bytes(b"secret\n" * 500)
    found = contents(tmp_path)
    assert found["train"][0] == b"A" + text * 20
    assert len(found["train"]) == 3
    assert b"".join(document for split in SPLITS for document in found[split]) == b"A" + text * 60


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("train.txt", "validation.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ],
)
def test_split_files_are_taken_as_they_are(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "README.md").write_bytes(b"not data")
    assert contents(tmp_path) == {split: [name.encode()] for split, name in zip(SPLITS, names, strict=True)}


def test_a_missing_held_out_split_is_cut_from_the_training_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"0123456789\n" * 40)
    (tmp_path / "valid.txt").write_bytes(b"held out\n")
    found = contents(tmp_path)
    assert found["valid"] == [b"held out\n"]
    assert (len(found["train"][0]), len(found["test"][0])) == (38 * 11, 2 * 11)


@pytest.mark.parametrize("text", [b"", b"one line", b"one\ntwo\n"])
def test_too_little_text_is_one_line_with_its_size(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(text)
    with pytest.raises(UserError, match=rf"short\.txt: {len(text)} bytes, too few") as caught:
        contents(path)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_and_two_files_for_a_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an empty folder"):
        find_corpus(str(tmp_path))
    for name in ("train.txt", "train.txt.gz"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=r"both train\.txt and train\.txt\.gz"):
        find_corpus(str(tmp_path))
