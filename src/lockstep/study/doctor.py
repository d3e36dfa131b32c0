"""What this machine has."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from lockstep.data.commonsense import find_commonsense
from lockstep.data.corpora import CORPORA
from lockstep.data.locations import cache_folder, search_folders
from lockstep.data.tasks.babi import find_babi
from lockstep.kernels import fla
from lockstep.kernels.backends import missing
from lockstep.training.provenance import code_revision, threads, versions

EXTRAS = {
    "hub": ("datasets", "transformers"),
    "gpu": ("triton", "fla-core"),
    "track": ("wandb", "tensorboard", "trackio"),
}


def report() -> str:
    """Versions, devices, backends, extras and data, as text."""
    return "\n".join([*_software(), *_devices(), *_backends(), *_extras(), *_data()])


def _software() -> list[str]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    facts = {"system": system, **versions(), "code": code_revision() or "not a checkout"}
    return ["software", *(_row(name, fact) for name, fact in facts.items())]


def _devices() -> list[str]:
    lines = ["devices", _row("cpu", f"{os.cpu_count()} cores, torch uses {threads()}")]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        lines.append(_row(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB"))
    return lines


def _backends() -> list[str]:
    lacking = missing("triton", torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    ours = "usable: memories, attention, recurrences, single tokens" if lacking is None else f"not usable: {lacking}"
    lines = ["kernel backends", _row("torch", "usable"), _row("triton", ours)]
    for operation in fla.FUNCTIONS:
        reason = fla.unusable(operation)
        lines.append(_row(f"fla {operation}", "usable" if reason is None else f"not usable: {reason}"))
    return lines


def _extras() -> list[str]:
    lines = ["optional packages"]
    for extra, packages in EXTRAS.items():
        for package in packages:
            try:
                lines.append(_row(package, version(package)))
            except PackageNotFoundError:
                lines.append(_row(package, f"not installed (extra: {extra})"))
    return lines


def _data() -> list[str]:
    searched = ", ".join(map(str, search_folders()))
    lines = ["data", _row("searched", searched), _row("cache", str(cache_folder()))]
    for name, corpus in CORPORA.items():
        lines.append(_row(name, "found" if corpus.is_present() else "not found here"))
    for name, find in (("bAbI", find_babi), ("common sense", find_commonsense)):
        lines.append(_row(name, "found" if find() is not None else "not found here"))
    return lines


def _row(name: str, fact: str) -> str:
    return f"  {name:21s} {fact}"
