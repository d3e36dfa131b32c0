"""What became of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockstep.report.results import Contestant, Results
from lockstep.tables import in_short

Outcome = Literal["reproduced", "not reproduced", "not testable here"]


@dataclass(frozen=True)
class Tested:
    """Of one claim by one pair."""

    ours: str | None
    verdict: Outcome
    reason: str


def untestable(reason: str, ours: str | None = None) -> Tested:
    return Tested(ours, "not testable here", reason)


def here(results: Results, one: Contestant) -> str:
    """Where our numbers hold."""
    size, tokens = in_short(one.parameters), in_short(results.study.tokens)
    runs = ", in one run" if len(results.study.seeds) == 1 else ""
    return f"at {size} parameters and {tokens} tokens of {results.study.corpus}{runs}"
