"""Registered corpora: where they are found, how they are split, and that nothing is lost."""

from __future__ import annotations

import lzma
import os
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.data.corpora import CORPORA, SPLITS, find_corpus, is_corpus, names
from lockstep.data.stdlib import split_of
from lockstep.data.wikitext import articles, is_title
from lockstep.errors import UserError

RealData = Callable[[str], Path]


def joined(name: str, split: str) -> bytes:
    return b"".join(find_corpus(name).documents(split))


def test_enwik8_is_cut_at_90_and_95_million_bytes(real_data: RealData) -> None:
    with lzma.open(real_data("enwik8.xz")) as stream:
        whole = stream.read()
    corpus = find_corpus("enwik8")
    splits = [list(corpus.documents(split)) for split in SPLITS]
    assert [len(documents) for documents in splits] == [1, 1, 1]
    edges = (0, 90_000_000, 95_000_000, 100_000_000)
    for (document,), start, end in zip(splits, edges, edges[1:], strict=False):
        assert document == whole[start:end]


def test_wikitext_joins_back_to_the_published_files(real_data: RealData) -> None:
    with tarfile.open(real_data("wikitext-2-raw.tar.xz")) as tar:
        for split in SPLITS:
            member = tar.extractfile(f"wikitext-2-raw/wiki.{split}.raw")
            assert member is not None
            assert joined("wikitext-2", split) == member.read()


def test_wikitext_2_has_its_600_60_and_60_articles(real_data: RealData) -> None:
    real_data("wikitext-2-raw.tar.xz")
    assert find_corpus("wikitext-2").contents.documents == {"train": 600, "valid": 60, "test": 60}


def test_word_level_wikitext_has_the_published_token_counts(real_data: RealData) -> None:
    real_data("wikitext-2.tar.xz")
    texts = [joined("wikitext-2-word", split) for split in SPLITS]
    assert [len(text.split()) + text.count(b"\n") for text in texts] == [2_088_628, 217_646, 245_569]


def test_an_unpacked_folder_gives_the_same_corpus(
    real_data: RealData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(real_data("wikitext-2-raw.tar.xz")) as tar:
        # Python before 3.11.4 has no filters, and Python from 3.12 on warns of their absence.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(tmp_path / "unpacked")
    packed = find_corpus("wikitext-2-raw").digest
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "unpacked"))
    assert find_corpus("wikitext-2-raw").digest == packed


def test_wikitext_103_lacks_its_training_set_in_one_line(real_data: RealData) -> None:
    real_data("wikitext-2-raw.tar.xz")
    with pytest.raises(UserError, match=r"wikitext-103-raw-v1\.zip") as caught:
        find_corpus("wikitext-103")
    assert "\n" not in str(caught.value)


def test_novels_are_split_by_whole_books(real_data: RealData) -> None:
    real_data("english-novels.tar.xz")
    corpus = find_corpus("english-novels")
    assert corpus.contents.documents == {"train": 18, "valid": 2, "test": 2}
    assert sum(corpus.contents.bytes.values()) == 21_240_578
    assert next(corpus.documents("valid")).lstrip().startswith(b"TREASURE ISLAND")


def test_tiny_shakespeare_keeps_the_customary_training_part(real_data: RealData) -> None:
    real_data("tinyshakespeare.txt.xz")
    assert find_corpus("tinyshakespeare").contents.bytes == {"train": 1_003_854, "valid": 55_770, "test": 55_770}


def test_earlier_folders_of_the_search_path_win(
    real_data: RealData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = real_data("tinyshakespeare.txt.xz")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        shutil.copy(packed, folder)
    monkeypatch.setenv("LOCKSTEP_DATA", os.pathsep.join([str(first), str(second)]))
    assert find_corpus("tinyshakespeare").sources == (first / packed.name,)
    (first / packed.name).unlink()
    assert find_corpus("tinyshakespeare").sources == (second / packed.name,)


def test_altered_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "enwik8").write_bytes(b"not Wikipedia")
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"enwik8: sha256 is .*, not 2b49720e") as caught:
        _ = find_corpus("enwik8").digest
    assert "\n" not in str(caught.value)


def test_the_digest_is_remembered_until_a_file_changes(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"a line\n" * 40)
    before = find_corpus(str(text)).digest
    moved = tmp_path / "elsewhere" / "text.txt"
    moved.parent.mkdir()
    shutil.copy(text, moved)
    assert find_corpus(str(moved)).digest == before
    text.write_bytes(b"b line\n" * 40)
    assert find_corpus(str(text)).digest != before


def test_the_standard_library_is_about_ninety_five_five() -> None:
    corpus = find_corpus("pystdlib")
    root = Path(sysconfig.get_paths()["stdlib"])
    counts = corpus.contents.documents
    total = sum(counts.values())
    assert total > 300
    assert 0.85 < counts["train"] / total < 0.95
    assert min(counts.values()) > 5
    names = [path.relative_to(root).as_posix() for path in corpus.sources]
    assert names == sorted(names)
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    assert split_of("json/decoder.py") == split_of("json/decoder.py")


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"enwik9.*did you mean enwik8\?") as caught:
        find_corpus("enwik9")
    assert "\n" not in str(caught.value)
    assert not is_corpus("enwik9")
    assert all(is_corpus(name) for name in names())


def test_what_is_present_is_known_without_reading_it(real_data: RealData) -> None:
    assert [name for name, corpus in CORPORA.items() if corpus.is_present()] == ["pystdlib"]
    real_data("enwik8.xz")
    assert CORPORA["enwik8"].is_present()
    assert not CORPORA["wikitext-103-raw"].is_present()


def test_the_hub_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'lockstep-lm\[hub\]'"):
        find_corpus("hub:someone/something:config")


def test_only_top_level_headings_are_titles() -> None:
    assert is_title(b" = Homarus gammarus = \n")
    assert not is_title(b" = = Description = = \n")
    assert not is_title(b" Text with = inside = \n")
    assert not is_title(b" = \n")


def test_articles_lose_nothing_even_without_a_title() -> None:
    lines = [b" \n", b" = A = \n", b" \n", b" = not a title = \n", b" x\n", b" \n", b" = B = \n", b" \n", b" y"]
    assert list(articles(lines)) == [b"".join(lines[:6]), b"".join(lines[6:])]
    assert list(articles([b"no title\n", b"at all"])) == [b"no title\nat all"]
    assert list(articles([])) == []
