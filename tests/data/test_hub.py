"""Datasets of the Hugging Face hub, read by its own library from a local folder: the network is never asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.data.corpora import find_corpus
from lockstep.errors import UserError

pytest.importorskip("datasets", reason="the hub extra is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def rows(count: int) -> list[str]:
    return [f"row {number} of the table\n" for number in range(count)]


def dataset(folder: Path, column: str = "text", **splits: int) -> str:
    """A folder of JSON lines that the library reads as a dataset."""
    folder.mkdir()
    for split, count in splits.items():
        lines = [json.dumps({column: text}) for text in rows(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"hub:{folder}"


def test_each_row_is_a_document(tmp_path: Path) -> None:
    corpus = find_corpus(dataset(tmp_path / "whole", train=30, validation=4, test=5))
    for split, count in (("train", 30), ("valid", 4), ("test", 5)):
        assert list(corpus.documents(split)) == [text.encode() for text in rows(count)]


def test_missing_splits_are_cut_from_the_training_rows(tmp_path: Path) -> None:
    corpus = find_corpus(dataset(tmp_path / "half", train=100, test=7))
    assert len(list(corpus.documents("test"))) == 7
    kept, held_out = (b"".join(corpus.documents(split)) for split in ("train", "valid"))
    assert kept + held_out == "".join(rows(100)).encode()
    assert 0 < len(held_out) < len(kept) / 10


def test_a_table_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no column text"):
        find_corpus(dataset(tmp_path / "other", column="body", train=3))
    with pytest.raises(UserError, match="has no train split"):
        find_corpus(dataset(tmp_path / "short", test=3))


def test_a_dataset_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not loaded") as refused:
        find_corpus(f"hub:{tmp_path}/nothing")
    assert "\n" not in str(refused.value)
