"""Training on a GPU, side by side: turns, ratios, bars, and where one contestant's time goes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from device import allocated, kernels_of, peak_bytes_of, release, seconds_of
from gpu_contestants import (
    BASELINE,
    FLA,
    GUESTS,
    LMM,
    LONGEST,
    MAC,
    MAG,
    MAL,
    MAMBA_SSM,
    MEMORIES,
    PEERS,
    PLAIN,
    RIVALS,
    Contestant,
    Setting,
    contestant,
)
from side_by_side import emit, in_one_line, paired, say
from torch._dynamo.utils import counters

from lockstep.kernels.record import backend, recorded_in
from lockstep.tables import aligned, in_bytes, in_short

TOKENS, MORE_TOKENS, LONG = 65_536, 262_144, 16_384
"""Tokens of a step; there are more from a length on."""
GUESTS_AT = 4096
"""Where those that are not Lockstep's compete unless they are named: a step of the peer takes seconds."""
PEER_TOKENS = 4096
"""Of a step of the peer, at most: twice as many as in its own script."""
TURN_SECONDS, SLOW_SECONDS = 3.0, 5.0
"""How long a turn of several steps may be, and from when on a step is too long to warm up every turn with one."""
TOP_KERNELS = 25
CUT_OFF = "cut off before its first turn had ended"
FAST = ("gated-deltanet", "mamba2")
"""Rivals that bars are set for."""


class Case(NamedTuple):
    """A length, with as many sequences as a step has tokens for, or with one alone."""

    length: int
    alone: bool = False

    def batch(self, tokens: int | None) -> int:
        tokens = tokens or (MORE_TOKENS if self.length >= LONG else TOKENS)
        return 1 if self.alone else max(tokens // self.length, 1)


ALONE = Case(LONGEST, alone=True)
CASES = (Case(1024), Case(16_384), Case(LONGEST), ALONE, Case(GUESTS_AT))
"""Peers compete in the last of them, and would leave the device to nobody if they brought it down."""


class Bar(NamedTuple):
    """What a contestant is to reach beside another: tokens per second at least, or peak memory at most."""

    contestant: str
    against: str
    of: Literal["speed", "memory"]
    limit: float
    cases: tuple[Case, ...] | None = None
    """None is everywhere."""


BARS = (
    Bar(LMM, BASELINE, "speed", 0.6, (Case(4096),)),
    Bar(LMM, BASELINE, "speed", 1.2, (Case(16_384),)),
    Bar(LMM, BASELINE, "speed", 2.0, (Case(LONGEST),)),
    Bar(LMM, BASELINE, "speed", 1.0, (ALONE,)),
    *(Bar(LMM, peer, "speed", 200.0, (Case(4096),)) for peer in PEERS),
    *(Bar(name, LMM, "speed", 0.85) for name in (MAG, MAL)),
    Bar(MAC, LMM, "speed", 0.65, (Case(4096), Case(16_384))),
    *(Bar(name, BASELINE, "memory", 1.5) for name in MEMORIES),
    *(Bar(name, BASELINE, "speed", 0.8, (Case(4096),)) for name in FAST),
    *(Bar(name, BASELINE, "speed", 1.5, (Case(16_384),)) for name in FAST),
    *(Bar(name, BASELINE, "speed", 4.0, (Case(LONGEST),)) for name in FAST),
    *(Bar(name, guest, "speed", 1.0) for name, guest in zip(FAST, (FLA, MAMBA_SSM), strict=True)),
)


Lines = dict[str, dict[str, Any]]
"""Of JSON, one for each contestant."""


def measure(case: Case, asked: argparse.Namespace, tflops: float) -> list[dict[str, Any]]:
    """A line for each contestant, printed as soon as the case is done, or cut off."""
    lines: Lines = {}
    ready: dict[str, Contestant] = {}
    try:
        for group in in_groups(asked.contestants or invited(case), GUESTS, PEERS):
            all_warmed(group, case, asked, lines, ready)
            for number in range(asked.rounds):
                take_turns(group, asked, lines, ready)
                say(f"{in_words(case)}: round {number + 1} of {asked.rounds}: {in_pace(group, ready)}")
    finally:
        tell(lines, ready, lambda name, measured: results(name, measured, case, tflops))
    return list(lines.values())


def tell(lines: Lines, ready: Mapping[str, Any], results: Callable[[str, Any], dict[str, Any]]) -> None:
    """Print what became of everybody, who may not have come to a turn; `results` are of one beside all who did."""
    measured = {name: one for name, one in ready.items() if one.seconds_per_token}
    for name, line in lines.items():
        line |= results(name, measured) if name in measured else {"error": line.get("error", CUT_OFF)}
        emit(line)


def in_groups(names: Sequence[str], *later: Collection[str]) -> list[list[str]]:
    """Those who take turns with each other. Later ones cost earlier ones no turn.

    Guests may try out kernels for minutes before they are warm, and a peer that fails may leave the device to nobody.
    """
    first = [name for name in names if not any(name in group for group in later)]
    groups = [first, *([name for name in names if name in group] for group in later)]
    return [group for group in groups if group]


def take_turns(names: Sequence[str], asked: argparse.Namespace, lines: Lines, ready: dict[str, Contestant]) -> None:
    """One each of those who are ready; who fails is not any more."""
    for name in [name for name in names if name in ready]:
        try:
            take_turn(ready[name], asked)
        except Exception as error:
            lines[name]["error"] = in_one_line(error)
            del ready[name]


def all_warmed(
    names: Sequence[str], case: Case, asked: argparse.Namespace, lines: Lines, ready: dict[str, Contestant]
) -> None:
    """Those that can be are ready then; the lines say what became of each."""
    for name in names:
        started, (graphs, breaks) = time.perf_counter(), compilations()
        lines[name] = line = {"name": "training", "contestant": name, "length": case.length}
        line["batch"] = sequences(name, case, asked)
        try:
            with recorded_in(set()):
                ready[name] = warmed(name, case, asked)
                line["backend"] = backend()
        except Exception as error:
            line["error"] = in_one_line(error)
            say(f"{in_words(case)}: {name}: {line['error']}")
        else:
            seconds, (more_graphs, more_breaks) = time.perf_counter() - started, compilations()
            line |= {"batch": ready[name].batch, "warm_up_seconds": seconds}
            line |= {"graphs": more_graphs - graphs, "graph_breaks": more_breaks - breaks}
            say(f"{in_words(case)}: {name} is warm after {seconds:.1f} s")
        release(asked.device)


def invited(case: Case) -> tuple[str, ...]:
    return (BASELINE, *MEMORIES, *RIVALS, *(PLAIN, *GUESTS, *PEERS) * (case == Case(GUESTS_AT)))


def sequences(name: str, case: Case, asked: argparse.Namespace) -> int:
    """Of a step: few for a peer."""
    return case.batch(min(asked.tokens or PEER_TOKENS, PEER_TOKENS) if name in PEERS else asked.tokens)


def warmed(name: str, case: Case, asked: argparse.Namespace) -> Contestant:
    """Ready for its turns. Guests get as many sequences as fit, half by half; everybody else all of them."""
    batch = sequences(name, case, asked)
    while True:
        try:
            return tried(name, setting_of(case, batch, asked))
        except torch.OutOfMemoryError:
            if name not in GUESTS or batch == 1:
                raise
        batch //= 2
        release(asked.device)
        say(f"{in_words(case)}: {name} does not fit; once more with {batch}")


def setting_of(case: Case, batch: int, asked: argparse.Namespace) -> Setting:
    return Setting(asked.size, case.length, batch, asked.compiled, asked.device, asked.one_of_each)


def rehearsed(name: str, case: Case, asked: argparse.Namespace) -> None:
    """All that a step will compile has been then."""
    one = contestant(name, setting_of(case, sequences(name, case, asked), asked))
    one.learn(one.tokens)


def tried(name: str, setting: Setting) -> Contestant:
    """Built, compiled by its first step, measured by its second, maybe recorded by one more, and timed by its last."""
    others = allocated(setting.device)
    one = contestant(name, setting)
    one.step()
    one.peak_bytes = peak_bytes_of(one.step, others, setting.device)
    if one.replayed:
        one.step()
    one.seconds_per_step = seconds_of(one.step, 1, setting.device)
    one.rest()
    return one


def take_turn(one: Contestant, asked: argparse.Namespace) -> None:
    """Several steps. What others cached is given back first, and one step takes memory and records before the clock."""
    release(asked.device)
    if one.replayed or one.seconds_per_step < SLOW_SECONDS:
        one.step()
    one.recorded = bool(one.gradients.recordings)
    steps = max(min(asked.steps, int(TURN_SECONDS / one.seconds_per_step)), 1)
    tokens = one.tokens[:, 1:].numel()
    one.seconds_per_token.append(seconds_of(one.step, steps, asked.device) / tokens)
    one.rest()


def results(name: str, ready: Mapping[str, Contestant], case: Case, tflops: float) -> dict[str, Any]:
    one, baseline = ready[name], ready.get(BASELINE)
    seconds = statistics.median(one.seconds_per_token)
    return {
        "tokens_per_second": 1 / seconds,
        "replayed": one.recorded,
        "ratio": None if baseline is None else beside(one, baseline, "speed"),
        "peak_bytes": one.peak_bytes,
        "peak_ratio": None if baseline is None else beside(one, baseline, "memory"),
        "training_flops_per_token": one.flops,
        "share_of_peak": None if one.flops is None else one.flops / seconds / (tflops * 1e12),
        **one.facts,
        "tokens_per_second_by_round": [1 / found for found in one.seconds_per_token],
        "bars": judged(name, ready, case),
    }


def beside(one: Contestant, other: Contestant, of: Literal["speed", "memory"]) -> float | None:
    """How many times as fast, or how many times the memory; None where that was not measured, or of other batches."""
    if of == "speed":
        return paired(other.seconds_per_token, one.seconds_per_token)
    if one.batch != other.batch or not one.peak_bytes or not other.peak_bytes:
        return None
    return one.peak_bytes / other.peak_bytes


def judged(name: str, ready: Mapping[str, Contestant], case: Case) -> list[dict[str, Any]]:
    """The bars that apply, where the other one ran too."""
    verdicts = []
    for bar in BARS:
        if bar.contestant != name or bar.against not in ready or (bar.cases is not None and case not in bar.cases):
            continue
        ratio = beside(ready[name], ready[bar.against], bar.of)
        if ratio is not None:
            met, sign = (ratio >= bar.limit, ">=") if bar.of == "speed" else (ratio <= bar.limit, "<=")
            found = {"of": bar.of, "against": bar.against, "ratio": ratio}
            verdicts.append({**found, "bar": f"{sign} {bar.limit}", "met": met})
    return verdicts


def show_kernels(name: str, case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    """One contestant's kernels, those that take the longest first; times and counts are per step. Its own line."""
    say(f"{in_words(case)}: {name} warms up")
    line: dict[str, Any] = {"name": "profile", "contestant": name, "length": case.length}
    try:
        one = warmed(name, case, asked)
    except Exception as error:
        line["error"] = in_one_line(error)
        emit(line)
        return line
    one.step()
    emit_kernels(line | {"batch": one.batch, "backend": backend()}, one.step, asked.steps, asked.top, asked.device)
    return line


def emit_kernels(
    line: Mapping[str, Any], step: Callable[[], object], steps: int, top: int, device: torch.device
) -> None:
    """The line with the time of a step, and one for each of its longest kernels."""
    seconds, spent = seconds_of(step, steps, device), kernels_of(step, steps, device)
    busy, count = sum(kernel.seconds for kernel in spent), sum(kernel.calls for kernel in spent)
    facts = {"milliseconds": 1e3 * seconds, "milliseconds_busy": 1e3 * busy / steps, "kernels": count / steps}
    emit({**line, **facts})
    for kernel in spent[:top]:
        times = {"milliseconds": 1e3 * kernel.seconds / steps, "count": kernel.calls / steps}
        emit({"share": kernel.seconds / busy, **times, "kernel": kernel.name})


def compilations() -> tuple[int, int]:
    """Graphs that torch.compile has made in this process, and how often it had to break one."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    heading = ("contestant", "length", "batch", "tokens/s", "ratio", "peak memory", "ratio", "share of peak", "bars")
    rows = [heading, *(row(line) for line in lines)]
    return aligned(rows)


def row(line: Mapping[str, Any]) -> tuple[str, ...]:
    place = (line["contestant"], str(line["length"]), str(line["batch"]))
    if "error" in line:
        return (*place, "error", *[""] * 5)
    share, peak = line["share_of_peak"], line["peak_bytes"]
    return (
        *place,
        in_short(line["tokens_per_second"]),
        times(line["ratio"]),
        "" if peak is None else in_bytes(peak),
        times(line["peak_ratio"]),
        "" if share is None else f"{share:.1%}",
        ", ".join(verdict(bar["of"], bar) for bar in line["bars"]),
    )


def verdict(of: str, bar: Mapping[str, Any]) -> str:
    """Such as `speed 0.87 of titans-lmm >= 0.85 met`."""
    return f"{of} {times(bar['ratio'])} of {bar['against']} {bar['bar']} {'met' if bar['met'] else 'MISSED'}"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def in_words(case: Case) -> str:
    return f"{case.length} alone" if case.alone else str(case.length)


def in_pace(names: Sequence[str], ready: Mapping[str, Contestant]) -> str:
    still = {name: ready[name].seconds_per_token[-1] for name in names if name in ready}
    return ", ".join(f"{name} {in_short(1 / seconds)}" for name, seconds in still.items())
