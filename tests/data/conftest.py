"""A cache of its own for every test, and the real corpora where this machine has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.data.corpora import SPLITS, Corpus
from tests.data.sample_text import TEXT

REPOSITORY = Path(__file__).resolve().parents[2]
BESIDE = REPOSITORY.parent / "shared" / "data"
# Read before any test changes the environment.
DATA = os.environ.get("LOCKSTEP_DATA") or (str(BESIDE) if BESIDE.is_dir() else "")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees another's cache, or the user's, or the network."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LOCKSTEP_CACHE", str(cache))
    monkeypatch.delenv("LOCKSTEP_DATA", raising=False)
    # Downloads reach this machine's own servers only, whatever network there is.
    for protocol in ("http", "https"):
        monkeypatch.setenv(f"{protocol}_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return cache


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Points LOCKSTEP_DATA at the real corpora and gives the path of one file, or skips."""

    def need(file: str) -> Path:
        for folder in DATA.split(os.pathsep):
            if folder and (Path(folder) / file).exists():
                monkeypatch.setenv("LOCKSTEP_DATA", DATA)
                return Path(folder) / file
        pytest.skip(f"{file} is in no folder of LOCKSTEP_DATA")

    return need


@pytest.fixture(scope="session")
def tiny_corpus() -> Corpus:
    """A few kilobytes of mixed text, the same in every split."""
    documents = [
        TEXT.encode() * 3,
        b"odd bytes \xff\xfe\x80 here\n" + TEXT.encode(),
        TEXT.encode()[::2].replace(b"\n", b" "),
    ]
    return Corpus("tiny", "mixed text", lambda split: iter(documents if split in SPLITS else []))
