"""Whose kernels may run: what has several forms is computed by one of those that are allowed here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from lockstep.config.training import Backend

PACKAGES = {"triton": {"triton": "triton"}, "fla": {"fla": "fla-core", "triton": "triton"}}
"""Modules that there must be, and what installs them."""
INSTALLED = importlib.util.find_spec("triton") is not None

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


def ours_may_run(x: Tensor) -> bool:
    """Whether kernels of ours may run on it at all: on a CUDA device, with Triton, where they are allowed."""
    return x.device.type == "cuda" and INSTALLED and allows("triton")


def ours_may_decode(x: Tensor, time: int) -> bool:
    """The same for kernels of single tokens, which have no derivative."""
    return time == 1 and not torch.is_grad_enabled() and ours_may_run(x)


def missing(backend: Backend, device: torch.device) -> str | None:
    """Why a choice cannot be had on a device; None if it can."""
    for module, package in PACKAGES.get(backend, {}).items():
        if importlib.util.find_spec(module) is None:
            return f"{package} is not installed (extra: gpu)"
    if backend in PACKAGES and device.type != "cuda":
        return f"its kernels need a CUDA device, not {device.type}"
    return None
