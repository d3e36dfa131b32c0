"""Where a number comes from: code, versions, device."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lockstep.kernels.record import backend

RECORDED = ("torch", "numpy", "safetensors", "tokenizers", "transformers", "triton", "fla-core", "adam-atan2-pytorch")


def provenance(device: torch.device) -> dict[str, Any]:
    """Code revision, versions, device and kernel backend."""
    return {
        "git_commit_hash": code_revision(),
        "versions": versions(),
        "device": device_name(device),
        "kernel_backend": backend(),
    }


@functools.cache
def code_revision() -> str | None:
    """The commit of the code, marked `-dirty` when files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=True, cwd=folder)
        revision = run(["git", "rev-parse", "HEAD"]).stdout.strip()
        # An installed package inside somebody else's checkout has no revision of its own.
        run(["git", "ls-files", "--error-unmatch", "provenance.py"])
        return revision + ("-dirty" if run(["git", "status", "--porcelain", "--", "."]).stdout else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python, of Lockstep and of the libraries that can change a number."""
    found = {"python": platform.python_version()}
    for name in ("lockstep-lm", *RECORDED):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {threads()})"


def threads() -> str:
    """How many torch uses."""
    count = torch.get_num_threads()
    return "1 thread" if count == 1 else f"{count} threads"
