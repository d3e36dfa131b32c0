"""Whose kernels may run: what has several forms is computed by one of those that are allowed here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from lockstep.config.training import Backend

PACKAGES = {"triton": ("triton",), "fla": ("fla", "triton")}
"""That must be installed."""

_chosen: Backend = "auto"


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Inside, none run but these: torch, and with it ours ("triton"), fla-core's, neither, or both ("auto")."""
    global _chosen
    before, _chosen = _chosen, backend
    try:
        yield
    finally:
        _chosen = before


def allows(backend: Literal["triton", "fla"]) -> bool:
    return _chosen in ("auto", backend)


def missing(backend: Backend) -> str | None:
    """Why a choice cannot be had here; None if it can."""
    for package in PACKAGES.get(backend, ()):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    return None
