"""What has run, for the record: no figure means much without it."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Package = Literal["triton", "fla-core"]
Ran = set[tuple[Package, str]]
"""Operations, and whose kernels they were."""

_ran: Ran = set()


def record(operation: str, package: Package = "triton") -> None:
    """A kernel ran: one of our own, which Triton compiled, or one of fla's."""
    _ran.add((package, operation))


@contextmanager
def recorded_in(ran: Ran) -> Iterator[None]:
    """What runs inside is recorded there, and there alone; `backend` is of it then."""
    global _ran
    before, _ran = _ran, ran
    try:
        yield
    finally:
        _ran = before


def backend() -> str:
    """What computed recurrences and memories."""
    parts = ["torch"]
    for package in ("triton", "fla-core"):
        operations = sorted(operation for owner, operation in _ran if owner == package)
        if operations:
            parts.append(f"{package} {version(package)} ({', '.join(operations)})")
    return "; ".join(parts)


def version(package: Package) -> str:
    """Of Triton's module itself: builds of torch's own bring it under another name."""
    if package == "triton":
        return str(importlib.import_module("triton").__version__)
    return importlib.metadata.version(package)
