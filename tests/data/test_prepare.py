"""Prepared folders: complete or absent, the same wherever prepared, and checked when opened."""

from __future__ import annotations

import filecmp
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpora import SPLITS, find_corpus
from lockstep.data.locations import appearing_whole
from lockstep.data.prepare import open_prepared, prepare
from lockstep.data.tokenizers import canonical_kind
from lockstep.errors import UserError

KINDS = ("bytes", "character", "word", "bpe", "unigram", "wordpiece")


def spec_of(kind: str) -> TokenizerSpec:
    size = {"bpe": 300, "unigram": 320, "wordpiece": 120}.get(kind)
    return TokenizerSpec.model_validate({"tokenizer_type": kind, "vocab_size": size})


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    lines = [f"In year {year} the café saw {year % 7} storms, and {year % 3} calm days.\n" for year in range(400)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def data(path: Path | str) -> DataSpec:
    return DataSpec(training_corpus=str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_lengths_are_those_of_the_documents(kind: str, text: Path) -> None:
    prepared = prepare(data(text), spec_of(kind))
    corpus = find_corpus(str(text))
    assert prepared.corpus_digest == corpus.digest
    for split in SPLITS:
        expected: list[int] = []
        for document in corpus.documents(split):
            expected += [*prepared.tokenizer.encode(document).tolist(), prepared.tokenizer.eos_id]
        tokens = prepared.tokens(split)
        assert tokens.tolist() == expected
        assert tokens.dtype == np.uint16
        assert not tokens.flags.writeable
        lengths = prepared.byte_lengths(split, np.arange(len(tokens)))
        assert lengths.shape == tokens.shape
        assert int(lengths.sum()) == prepared.split_bytes(split) == corpus.contents.bytes[split]
        assert lengths[-1] == 0
    prepared.verify()


@pytest.mark.parametrize("kind", KINDS)
def test_two_caches_get_the_same_bytes(kind: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    for cache in ("one", "two"):
        monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / cache))
        folders.append(prepare(data(text), spec_of(kind)).folder)
    first, second = folders
    assert first.name == second.name
    names = sorted(path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(second).as_posix() for path in second.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(first, second, names, shallow=False)[0] == names


def test_what_is_prepared_is_not_prepared_again(text: Path) -> None:
    first = prepare(data(text), spec_of("bytes"))
    stamp = first.folder.stat().st_mtime_ns
    assert prepare(data(text), spec_of("bytes")).folder.stat().st_mtime_ns == stamp
    text.write_bytes(text.read_bytes() + b"one more line\n")
    assert prepare(data(text), spec_of("bytes")).folder != first.folder


def test_a_document_without_tokens_keeps_its_bytes(tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_bytes(b"   ")
    prepared = prepare(data(tmp_path), spec_of("word"))
    assert prepared.tokens("valid").tolist() == [prepared.tokenizer.eos_id]
    assert prepared.byte_lengths("valid", np.arange(1)).tolist() == [3]


def test_a_prepared_folder_is_opened_as_it_is(text: Path, own_cache: Path, tmp_path: Path) -> None:
    prepared = prepare(data(text), spec_of("unigram"))
    moved = tmp_path / "moved"
    prepared.folder.rename(moved)
    before = {path: path.stat().st_mtime_ns for path in [moved, *moved.rglob("*")]}
    for tokenizer in (TokenizerSpec(), spec_of("unigram"), TokenizerSpec(tokenizer_type="sentencepiece")):
        opened = prepare(data(moved), tokenizer)
        assert opened.folder == moved
        assert opened.manifest == prepared.manifest
    assert {path: path.stat().st_mtime_ns for path in [moved, *moved.rglob("*")]} == before
    with pytest.raises(UserError, match=r"tokenizer_type is gpt2, but .*moved was prepared with unigram"):
        prepare(data(moved), TokenizerSpec(tokenizer_type="gpt2"))
    with pytest.raises(UserError, match=r"vocab_size is 999"):
        prepare(data(moved), TokenizerSpec(vocab_size=999, tokenizer_type="unigram"))


def test_the_source_corpus_is_the_fallback(text: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    prepared = prepare(DataSpec(training_corpus=absent, source_corpus=str(text)), TokenizerSpec())
    assert prepared.manifest.corpus == "story"
    with pytest.raises(UserError, match=r"absent and data\.source_corpus .*gone: neither") as caught:
        prepare(DataSpec(training_corpus=absent, source_corpus=str(tmp_path / "gone")), TokenizerSpec())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train.bin", "test.lengths.bin"])
def test_a_truncated_file_is_named_with_its_remedy(name: str, text: Path) -> None:
    folder = prepare(data(text), spec_of("word")).folder
    with (folder / name).open("r+b") as stream:
        stream.truncate(10)
    complaint = rf"{name}: 10 bytes where .* delete the folder"
    with pytest.raises(UserError, match=complaint) as caught:
        open_prepared(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=complaint):
        prepare(data(text), spec_of("word"))


@pytest.mark.parametrize("name", ["valid.bin", "manifest.json", "tokenizer/definition.json"])
def test_a_missing_file_is_named(name: str, text: Path) -> None:
    folder = prepare(data(text), spec_of("bytes")).folder
    (folder / name).unlink()
    with pytest.raises(UserError, match=Path(name).name) as caught:
        open_prepared(folder)
    assert "\n" not in str(caught.value)


def test_a_changed_byte_is_found_by_verify(text: Path) -> None:
    prepared = prepare(data(text), spec_of("bytes"))
    path = prepared.folder / "valid.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"valid\.bin: sha256"):
        open_prepared(prepared.folder).verify()


@pytest.mark.parametrize("given", ["text", "folder"])
def test_asked_to_verify_it_looks_at_every_byte_of_what_was_there(given: str, text: Path) -> None:
    folder = prepare(data(text), spec_of("bytes"), verify=True).folder
    source = data(text if given == "text" else folder)
    prepare(source, spec_of("bytes"), verify=True)
    (folder / "train.bin").write_bytes(bytes((folder / "train.bin").stat().st_size))
    prepare(source, spec_of("bytes"))
    with pytest.raises(UserError, match=r"train\.bin: sha256 is not the manifest's; delete the folder"):
        prepare(source, spec_of("bytes"), verify=True)


KILLED = """
import sys
from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.prepare import prepare
prepare(DataSpec(training_corpus=sys.argv[1]), TokenizerSpec(tokenizer_type="word"))
"""


def test_a_killed_preparation_leaves_nothing_that_is_taken_as_whole(own_cache: Path, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.mkdir()
    for number in range(200):
        (long / f"{number:03d}.txt").write_text(f"word{number} and more of it\n" * 400)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(long)], env=os.environ)
    begun = False
    while not begun and process.poll() is None:
        begun = any(path.stat().st_size for path in own_cache.glob("prepared/.long-*/train.bin"))
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the preparation ended before it could be killed"
    assert [path for path in (own_cache / "prepared").iterdir() if not path.name.startswith(".")] == []
    prepare(data(long), spec_of("word")).verify()


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made" / "folder"

    def write(content: str, interrupted: bool) -> None:
        with appearing_whole(target) as aside:
            (aside / "file").write_text(content)
            if interrupted:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("half", interrupted=True)
    assert list(target.parent.iterdir()) == []
    write("first", interrupted=False)
    write("second", interrupted=False)
    assert (target / "file").read_text() == "first"
    assert list(target.parent.iterdir()) == [target]


def test_a_cache_that_cannot_be_written_is_told_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    complaint = r"file: cannot be written \(.*\); set LOCKSTEP_CACHE to another folder"
    with pytest.raises(UserError, match=complaint), appearing_whole(tmp_path / "file" / "folder"):
        pytest.fail("there is no such folder")


def test_what_goes_wrong_inside_is_not_blamed_on_the_cache(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), appearing_whole(tmp_path / "folder"):
        (tmp_path / "absent").read_text()
    assert list(tmp_path.iterdir()) == []


RealData = Callable[[str], Path]


def test_enwik8_is_prepared_in_seconds_and_opened_at_once(real_data: RealData) -> None:
    real_data("enwik8.xz")
    prepared = prepare(data("enwik8"), TokenizerSpec())
    assert {split: prepared.manifest.splits[split].tokens for split in SPLITS} == {
        "train": 90_000_001,
        "valid": 5_000_001,
        "test": 5_000_001,
    }
    assert prepared.tokenizer.decode(prepared.tokens("train")[:10].tolist()) == "<mediawiki"
    start = time.monotonic()
    prepare(data("enwik8"), TokenizerSpec())
    assert time.monotonic() - start < 1.0


def test_canonical_names() -> None:
    assert canonical_kind("sentencepiece") == canonical_kind("unigram") == "unigram"
