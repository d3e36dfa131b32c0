"""What has run in this process, for the record: no figure means much without it."""

from __future__ import annotations

import importlib
import importlib.metadata

from lockstep.kernels import fla

_ran: set[str] = set()


def record(operation: str) -> None:
    """One of our own Triton kernels ran."""
    _ran.add(operation)


def backend() -> str:
    """What computed this process's recurrences and memories."""
    parts = ["torch"]
    if _ran:
        # Of the module itself: builds of torch's own bring it under another name.
        parts.append(f"triton {importlib.import_module('triton').__version__} ({', '.join(sorted(_ran))})")
    if fla.ran():
        parts.append(f"fla-core {importlib.metadata.version('fla-core')} ({', '.join(fla.ran())})")
    return "; ".join(parts)
