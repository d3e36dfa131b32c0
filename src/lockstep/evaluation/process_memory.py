"""How much memory a process has come to hold, as the system sees it: nothing is slowed down by asking."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Growth(Protocol):
    """Followed from when it was made."""

    @property
    def peak(self) -> int:
        """The most bytes at any moment since, beyond those at the beginning."""


class ResidentBytes:
    """Linux: what lies in memory of this process, code and what its allocator keeps for later included."""

    def __init__(self) -> None:
        RESET.write_text("5")  # the old peak is forgotten
        self.before = status_bytes("VmRSS")

    @property
    def peak(self) -> int:
        return max(0, status_bytes("VmHWM") - self.before)


class ReservedBytes:
    """Of a CUDA device: what torch's allocator took of it, and gives back only when told."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, torch.cuda.memory_reserved(device)

    @property
    def peak(self) -> int:
        return max(0, torch.cuda.memory_reserved(self.device) - self.before)


def growth(device: torch.device) -> Growth | None:
    """None where the system does not tell."""
    if device.type == "cuda":
        return ReservedBytes(device)
    try:
        return ResidentBytes()
    except (OSError, ValueError):
        return None


def status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{STATUS} has no {name}")
    return 1024 * int(found[1])
