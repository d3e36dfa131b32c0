"""What every test stands on: a cache of its own, one thread, and a small text to train on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported, and inherited by every process that a test starts: tests run side by side, and sums over
# another number of threads may differ in their last bit.
os.environ["OMP_NUM_THREADS"] = "1"
# Runs are compared bit for bit, which only the CPU promises.
if not os.environ.get("LOCKSTEP_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

torch.set_num_threads(1)
# Without a GPU our kernels are interpreted. Triton asks for this when it is imported, which torch has not done yet.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# So that what fails inside a helper that many tests share says what it compared.
pytest.register_assert_rewrite("tests.memory", "tests.study", "tests.training")


def pytest_configure() -> None:
    """Who asks for a GPU is told that there is none, instead of that everything passed."""
    if os.environ.get("LOCKSTEP_TEST_GPU") and not torch.cuda.is_available():
        raise pytest.UsageError("LOCKSTEP_TEST_GPU is set, but torch sees no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or fills the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of about 12 kB: sentences drawn from a few words, the same on every machine."""
    draw = random.Random(7)
    words = ["the", "a", "cat", "dog", "bird", "sees", "hears", "finds", "small", "old", "grey", "river", "then", "too"]
    lines = (" ".join(draw.choice(words) for _ in range(draw.randint(4, 9))).capitalize() + "." for _ in range(330))
    path = tmp_path_factory.mktemp("corpus") / "tiny.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
