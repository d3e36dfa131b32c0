"""Random numbers that are a pure function of what they are for.

Philox's raw output is fixed by its definition; numpy's samplers built on it may change between versions. Orders and
masks are therefore made from the raw output alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def raw_numbers(count: int, *purpose: int | str) -> NDArray[np.uint64]:
    """`count` random 64-bit numbers that depend on `purpose` and on nothing else."""
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8")
    return np.asarray(np.random.Philox(key=key).random_raw(count), dtype=np.uint64)


def uniform(shape: tuple[int, ...], *purpose: int | str) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1)."""
    raw = raw_numbers(int(np.prod(shape)), *purpose)
    return (raw >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53


def permutation(count: int, *purpose: int | str) -> NDArray[np.int64]:
    """A random order of range(count)."""
    return np.argsort(raw_numbers(count, *purpose), kind="stable")
