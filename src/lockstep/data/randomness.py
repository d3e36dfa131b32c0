"""Random numbers that are a pure function of what they are for.

Philox's raw output is fixed by its definition; numpy's samplers built on it may change between versions. Orders and
masks are therefore made from the raw output alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def source(*purpose: int | str) -> np.random.Philox:
    """What numbers for this purpose come from."""
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    return np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))


def raw_numbers(count: int, *purpose: int | str) -> NDArray[np.uint64]:
    """`count` random 64-bit numbers that depend on `purpose` and on nothing else."""
    return np.asarray(source(*purpose).random_raw(count), dtype=np.uint64)


def uniform(shape: tuple[int, ...], *purpose: int | str) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1)."""
    raw = raw_numbers(int(np.prod(shape)), *purpose)
    return (raw >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53


def permutation(count: int, *purpose: int | str) -> NDArray[np.int64]:
    """A random order of range(count)."""
    return np.argsort(raw_numbers(count, *purpose), kind="stable")


class Draws:
    """Draws one after another, all of them a function of `purpose`."""

    def __init__(self, *purpose: int | str) -> None:
        self._source = source(*purpose)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """In [0, 1)."""
        raw = np.asarray(self._source.random_raw(count), dtype=np.uint64)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Whole numbers from 0 on, with repetition."""
        return (self.uniform(count) * limit).astype(np.int64)

    def one_below(self, limit: int) -> int:
        return int(self.below(limit, 1)[0])

    def order(self, count: int) -> NDArray[np.int64]:
        """range(count) in a random order."""
        return np.argsort(np.asarray(self._source.random_raw(count), dtype=np.uint64), kind="stable")

    def distinct(self, limit: int, count: int) -> NDArray[np.int64]:
        """Different whole numbers below `limit`, in a random order."""
        return self.order(limit)[:count]
