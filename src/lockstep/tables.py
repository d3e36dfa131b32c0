"""Numbers and tables as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(["", first.ljust(widths[0]), *cells]).rstrip())
    return lines


def in_short(amount: float) -> str:
    """Such as 49.8M."""
    for suffix, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if amount >= unit:
            return f"{amount / unit:.4g}{suffix}"
    return f"{amount:.4g}"


def in_bytes(amount: float) -> str:
    """Such as 1.5 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount:.0f} B"


def in_time(seconds: float) -> str:
    """Such as 3.5 h."""
    for unit, size, least in (("days", 86_400, 172_800), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
