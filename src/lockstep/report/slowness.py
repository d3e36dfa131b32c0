"""Why a contestant is slower than the baseline: the measured answer, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.report.outcome import baseline_of, groups, measured_of, training_speed
from lockstep.report.results import Contestant, Inference, Measured, Measurements, Profile, Results
from lockstep.report.wording import joined, milliseconds, sentence, signed, times

SAID_FROM = 0.05
"""Share of the difference below which a part is not named."""


@dataclass(frozen=True)
class Part:
    """How much longer one part takes than the baseline's."""

    name: str
    seconds: float
    share: float
    """Of the whole difference; parts that are shorter have negative shares."""


def parts_of_difference(ours: Profile, theirs: Profile) -> list[Part]:
    """Every part that either has, the largest first; the shares add up to 1."""
    whole = sum(ours.seconds.values()) - sum(theirs.seconds.values())
    names = dict.fromkeys([*ours.seconds, *theirs.seconds])
    gaps = {name: ours.seconds.get(name, 0.0) - theirs.seconds.get(name, 0.0) for name in names}
    parts = [Part(name, gap, gap / whole if whole else 0.0) for name, gap in gaps.items()]
    return sorted(parts, key=lambda part: -part.seconds)


def slower_because(results: Results, measurements: Measurements) -> list[str]:
    """For each contestant that decodes or trains slower than its group's baseline."""
    told = []
    for group in groups(results).values():
        base = baseline_of(results, group)
        theirs = None if base is None else measured_of(measurements, base)
        if base is None or theirs is None:
            continue
        for one in group:
            ours = measured_of(measurements, one)
            if ours is not None and one.name != base.name:
                told += _decoding(one, base, ours, theirs) + _training(one, base, ours, theirs)
    return [sentence(text) for text in told]


def _decoding(one: Contestant, base: Contestant, ours: Measured, theirs: Measured) -> list[str]:
    """After the context at which it falls behind most; how that changes with the context is told with it."""
    faster = {at.length: at.decode_seconds.median for at in theirs.inference}
    slower = {at.length: at.decode_seconds.median for at in ours.inference if at.length in faster}
    length = max(slower, key=lambda at: slower[at] / faster[at], default=None)
    if length is None or slower[length] <= faster[length]:
        return []
    head = (
        f"Decoding after {length:,} tokens, {one.name} takes {milliseconds(slower[length])} per token against "
        f"{milliseconds(faster[length])} of {base.name}, {times(slower[length] / faster[length])} times"
    )
    told = [f"{head}. {_parts(base, ours, theirs, 'decode')}{_computed(one, base)}"]
    return told + _growth(one, base, ours, theirs)


def _training(one: Contestant, base: Contestant, ours: Measured, theirs: Measured) -> list[str]:
    own, other = training_speed(ours), training_speed(theirs)
    if own is None or other is None or own.median >= other.median:
        return []
    head = (
        f"Training, {one.name} reads {own.median:,.0f} tokens/s against {other.median:,.0f} of {base.name}, "
        f"{times(other.median / own.median)} times as long"
    )
    flops = one.training_flops_per_token / base.training_flops_per_token
    return [f"{head}. {_parts(base, ours, theirs, 'training')}. It computes {times(flops)} times the FLOPs per token"]


def _parts(base: Contestant, ours: Measured, theirs: Measured, what: str) -> str:
    """Which parts account for it."""
    own = next((profile for profile in ours.profiles if profile.what == what), None)
    other = next((profile for profile in theirs.profiles if profile.what == what), None)
    if own is None or other is None:
        return "No profile was taken, so that no part can be named"
    whole = sum(own.seconds.values()) - sum(other.seconds.values())
    if whole <= 0:
        return f"Its profile adds up to {milliseconds(-whole)} less than that of {base.name}: no part can be named"
    parts = parts_of_difference(own, other)
    named = [part for part in parts if abs(part.share) >= SAID_FROM]
    told = [f"{part.name} {_gap(part.seconds)} ({signed(100 * part.share, 0)} %)" for part in named]
    return f"Of the {milliseconds(whole)} that the profiles differ by: {joined(told)}"


def _gap(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{milliseconds(abs(seconds))}"


def _computed(one: Contestant, base: Contestant) -> str:
    if not one.decoding_flops_per_token or not base.decoding_flops_per_token:
        return ""
    return (
        f". It computes {times(one.decoding_flops_per_token / base.decoding_flops_per_token)} times the FLOPs per token"
    )


def _growth(one: Contestant, base: Contestant, ours: Measured, theirs: Measured) -> list[str]:
    """Whether time per token grows with what came before."""
    told = [
        f"{each.name} from {_ends(found.inference)}"
        for each, found in ((one, ours), (base, theirs))
        if len(found.inference) > 1
    ]
    return [f"Time per token over the context: {joined(told)}"] if told else []


def _ends(inference: tuple[Inference, ...]) -> str:
    ordered = sorted(inference, key=lambda at: at.length)
    first, last = ordered[0], ordered[-1]
    return (
        f"{milliseconds(first.decode_seconds.median)} after {first.length:,} tokens "
        f"to {milliseconds(last.decode_seconds.median)} after {last.length:,}"
    )
