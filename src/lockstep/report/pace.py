"""Speed, memory and the cost of a common loss, in words: always both numbers and the multiple."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.report.outcome import (
    common_length,
    common_loss,
    common_state_length,
    cost_of,
    diverged,
    inference_at,
    measured_of,
    peak_bytes,
    training_speed,
)
from lockstep.report.results import Contestant, Measured, Measurements, Spread
from lockstep.report.wording import Sentence, duration, joined, milliseconds, sentence, times
from lockstep.tables import in_bytes, in_short


def speed(group: Sequence[Contestant], measurements: Measurements) -> list[Sentence]:
    """Training, then decoding and prefill after the longest context that all were measured at."""
    length = common_length(measurements, group)
    reach = "" if length is None else f" after {length:,} tokens"

    def prefill(one: Measured) -> Spread | None:
        return found.prefill_seconds if (found := inference_at(one, length)) else None

    def decode(one: Measured) -> Spread | None:
        return found.decode_seconds if (found := inference_at(one, length)) else None

    texts = [
        _pace("Training speed", _spreads(group, measurements, training_speed), _rate, faster_is_more=True),
        _pace(f"Decoding{reach}", _spreads(group, measurements, decode), _per_token),
        _pace(f"Prefill of {length or 0:,} tokens", _spreads(group, measurements, prefill), duration),
    ]
    unmeasured = [one.name for one in group if measured_of(measurements, one) is None]
    texts.append(f"Not measured: {joined(unmeasured)}" if unmeasured else "")
    return [Sentence("speed", sentence(text)) for text in texts if text]


def _rate(amount: float) -> str:
    return f"{in_short(amount)} tokens/s"


def _per_token(seconds: float) -> str:
    return f"{milliseconds(seconds)} per token"


def _spreads(
    group: Sequence[Contestant], measurements: Measurements, read: Callable[[Measured], Spread | None]
) -> list[tuple[str, Spread]]:
    pairs = [(one.name, measured_of(measurements, one)) for one in group]
    return [(name, spread) for name, found in pairs if found and (spread := read(found))]


def _pace(
    what: str, entries: list[tuple[str, Spread]], show: Callable[[float], str], faster_is_more: bool = False
) -> str:
    """Who is fastest, or cannot be told apart from that by the spread, and how much longer the others take."""
    if not entries:
        return ""
    entries = sorted(entries, key=lambda entry: entry[1].median, reverse=faster_is_more)
    (first, best), *others = entries
    near = [name for name, one in others if one.low <= best.high and best.low <= one.high]
    if not others:
        return f"{what}: {first} {show(best.median)}"
    lead = f"{first} is fastest with {show(best.median)}"
    if near:
        alike = f"{joined([first, *near])} cannot be told apart by the spread of their times"
        lead = f"{alike}; medians: {first} {show(best.median)}"
    told = []
    for name, one in others:
        ratio = best.median / one.median if faster_is_more else one.median / best.median
        told.append(f"{name} {show(one.median)} ({times(ratio)} times as long)")
    return f"{what}: {lead} against {joined(told)}"


def memory(group: Sequence[Contestant], measurements: Measurements) -> list[Sentence]:
    """State at the longest length; the most that was held while decoding and while training."""
    reach, length = common_state_length(group), common_length(measurements, group)
    states = {one.name: one.state_bytes[reach] for one in group} if reach is not None else {}
    found = {one.name: measured_of(measurements, one) for one in group}
    decode = {name: peak_bytes(one, length) for name, one in found.items()}
    training = {name: one.training_peak_bytes if one else None for name, one in found.items()}
    texts = [
        _amounts(f"State per sequence at {reach or 0:,} tokens", states),
        _amounts(f"Peak memory beyond the weights while decoding after {length or 0:,} tokens", decode),
        _amounts("Peak memory beyond the weights while training", training),
    ]
    return [Sentence("memory", sentence(text)) for text in texts if text]


def _amounts(what: str, amounts: dict[str, int] | dict[str, int | None]) -> str:
    """The smallest first, the others with their multiple of it."""
    known = sorted(((size, name) for name, size in amounts.items() if size is not None))
    if not known:
        return ""
    (least, first), *others = known
    told = [f"{name} {in_bytes(size)}{_multiple(size, least)}" for size, name in others]
    return f"{what}: {first} {in_bytes(least)}" + (f" against {joined(told)}" if told else "")


def _multiple(size: int, least: int) -> str:
    return " (the same)" if size == least else f" ({times(size / least)} times)" if least else ""


def cost(group: Sequence[Contestant], measurements: Measurements) -> list[Sentence]:
    """Tokens, FLOPs and seconds to the worst of the last validation losses, which everybody reached."""
    sound = [one for one in group if not diverged(one)]
    loss = common_loss(sound)
    if loss is None or len(sound) < 2:
        return []
    told = []
    for one in sound:
        found = cost_of(loss, one, measured_of(measurements, one))
        if found is None:
            continue
        parts = [f"{in_short(found.tokens)} tokens", f"{in_short(found.flops)} FLOPs"]
        parts += [] if found.seconds is None else [duration(found.seconds)]
        told.append(f"{one.name} {joined(parts)}")
    head = f"To come to a validation loss of {loss:.4f}, the highest at the end of training, took"
    text = f"{head} {'; '.join(told)}"
    return [Sentence("cost", sentence(text))]
