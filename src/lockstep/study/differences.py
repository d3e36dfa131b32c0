"""A difference between runs, in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 200
"""Characters that one value may take in a message."""
HASH_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that makes a comparison unfair, or a run untrustworthy."""

    field: str
    values: Mapping[str, Any]
    """By the run's name."""
    message: str


def difference(field: str, values: Mapping[str, Any]) -> Finding | None:
    """A finding that names the runs by value, or None where all values are equal."""
    distinct: list[Any] = []
    for value in values.values():
        if value not in distinct:
            distinct.append(value)
    if len(distinct) < 2:
        return None
    # The runs that agree with most others come first: the odd one out is at the end of the line.
    groups = [(one, [run for run, value in values.items() if value == one]) for one in distinct]
    groups.sort(key=lambda group: -len(group[1]))
    said = "; ".join(f"{in_words(value, distinct)} in {', '.join(runs)}" for value, runs in groups)
    return Finding(field, dict(values), f"{field}: {said}")


def in_words(value: Any, distinct: Sequence[Any]) -> str:
    """A value so that it can be told from the other `distinct` ones."""
    if value is None:
        return "not set"
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:HASH_SHOWN] + "…"
    text = str(value).replace("\n", " ")
    if len(text) <= LONGEST:
        return text
    return own_entries(value, distinct) if isinstance(value, list) else f"{text[:LONGEST]}…"


def own_entries(value: list[Any], distinct: Sequence[Any]) -> str:
    """A long list by its length and the entries that some other value lacks."""
    others = [other for other in distinct if isinstance(other, list) and other != value]
    own = [entry for entry in value if any(entry not in other for other in others)]
    shown = str(own)[:LONGEST]
    return f"{len(value)} entries" + (f" (not everywhere: {shown})" if own else "")
