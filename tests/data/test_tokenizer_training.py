"""The same text gives the same tokenizer in every process, whatever its hash seed and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.data.corpora import find_corpus
from lockstep.data.tokenizer_training import in_defined_order

PROGRAM = """
import sys
from lockstep.data.corpora import find_corpus
from lockstep.data.tokenizers import train_tokenizer
corpus = find_corpus(sys.argv[1])
for kind in ("unigram", "wordpiece", "bpe", "character", "word"):
    sys.stdout.write(f"{kind} {train_tokenizer(kind, 1500, corpus).fingerprint}\\n")
"""
SETTINGS = (
    {"PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "true"},
    {"PYTHONHASHSEED": "2", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
    {"PYTHONHASHSEED": "3", "TOKENIZERS_PARALLELISM": "true"},
)


@pytest.fixture
def library_text(tmp_path: Path) -> Path:
    text = tmp_path / "library.txt"
    documents = [document for document in find_corpus("pystdlib").documents("valid") if len(document) > 4000]
    text.write_bytes(b"".join(documents)[:200_000] + "ünïcode 日本語 → λ\n".encode() * 3)
    return text


def test_fresh_processes_train_the_same_tokenizers(library_text: Path) -> None:
    outputs = set()
    for settings in SETTINGS:
        command = [sys.executable, "-c", PROGRAM, str(library_text)]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1, outputs


def test_scores_that_differ_by_noise_give_the_same_order() -> None:
    one = {"the": -2.0, "sea": -3.0 + 1e-11, "was": -3.0, "x": -9.0, "y": -8.9999, "z": -8.9998}
    other = {"was": -3.0 + 1e-11, "sea": -3.0, "the": -2.0 - 1e-11, "z": -9.0, "y": -8.9998, "x": -8.9999}
    assert in_defined_order(one) == in_defined_order(other)
    assert [token for token, _ in in_defined_order(one)] == ["the", "sea", "was", "x", "y", "z"]
