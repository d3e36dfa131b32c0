"""Numbers as sentences tell them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.report.results import Comparison
from lockstep.tables import in_short, in_time

TOLD_AS_MULTIPLE = 1000.0
"""Percent, from which on a multiple is told too."""

ABSURD = 1e6
"""A perplexity whose digits nobody reads."""

UNITS = {"loss": "nats per token", "bits_per_byte": "bits per byte", "perplexity": "perplexity", "accuracy": "accuracy"}

Topic = Literal["quality", "speed", "memory", "cost", "recall", "commonsense", "certainty", "status"]


@dataclass(frozen=True)
class Sentence:
    """One finding in words."""

    topic: Topic
    text: str


def joined(parts: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def span(numbers: Sequence[float]) -> str:
    """4.2M to 4.3M, or the one that there is."""
    return " to ".join(dict.fromkeys((in_short(min(numbers)), in_short(max(numbers)))))


def sentence(text: str) -> str:
    """Ends with one full stop."""
    return f"{text.rstrip('. ')}."


def percent(change: float) -> str:
    """A signed change, given as a ratio minus 1; a great one as a multiple too."""
    amount = 100 * change
    if abs(amount) < 0.05:
        return "0.0 %"
    told = f"{signed(amount, 1)} %"
    return f"{told} ({times(1 + change)} times)" if amount > TOLD_AS_MULTIPLE else told


def times(ratio: float) -> str:
    """2.19, 215.1, 1,043,143, or for what is hardly more than nothing 0.0047."""
    if ratio >= 1000:
        return f"{ratio:,.0f}"
    return f"{ratio:,.1f}" if ratio >= 10 else f"{ratio:.2g}" if ratio < 0.1 else f"{ratio:.2f}"


def signed(amount: float, digits: int) -> str:
    """With a true minus, and no sign for what rounds to nothing."""
    text = f"{abs(amount):,.{digits}f}"
    return text if not text.strip("0.,") else f"{'−' if amount < 0 else '+'}{text}"


def in_tokens(length: int) -> str:
    """A length as tables name it: 4K is 4096, 1M is 1024K; others in full."""
    for suffix, unit in (("M", 2**20), ("K", 2**10)):
        if length and length % unit == 0:
            return f"{length // unit:,}{suffix}"
    return f"{length:,}"


def milliseconds(seconds: float) -> str:
    """2.15 ms, whatever the size: such numbers are read beside each other."""
    amount = 1000 * seconds
    return f"{amount:,.0f} ms" if amount >= 1000 else f"{amount:.3g} ms"


def duration(seconds: float) -> str:
    return in_time(seconds) if seconds >= 1 else milliseconds(seconds)


def amount_of(metric: str, value: float) -> str:
    """A score, without its unit; accuracy in percent."""
    if metric == "accuracy":
        return f"{100 * value:.2f} %"
    if metric == "perplexity":
        return f"{value:,.2f}" if value < ABSURD else f"{value:.3g}"
    return f"{value:.4f}"


def change_of(metric: str, value: float) -> str:
    """A signed difference of scores; accuracy in points."""
    if metric == "accuracy":
        return f"{signed(100 * value, 2)} points"
    if abs(value) >= ABSURD:
        return f"{'−' if value < 0 else '+'}{abs(value):.3g}"
    return signed(value, 2 if metric == "perplexity" else 4)


def interval(one: Comparison) -> str:
    """95 % interval −0.0120 to −0.0080, or that there is none."""
    if one.low is None or one.high is None:
        return "no interval"
    over = " over documents" if one.kind == "documents" else ""
    return f"95 % interval{over} {change_of(one.metric, one.low)} to {change_of(one.metric, one.high)}"


def difference(one: Comparison) -> str:
    """−0.0100 (−1.0 %; 95 % interval …), and that it cannot be told from none where it cannot."""
    relative = (
        "" if one.metric == "accuracy" or not one.baseline_mean else f"{percent(one.effect / one.baseline_mean)}; "
    )
    clear = one.low is not None and one.high is not None and not one.low <= 0 <= one.high
    apart = "" if one.separable else "; not separable" + (" after Holm's correction" if clear else "")
    return f"{change_of(one.metric, one.effect)} ({relative}{interval(one)}{apart})"
