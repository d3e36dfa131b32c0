"""Reading a context and writing after it on a GPU, side by side: milliseconds, tokens per second, bytes, bars."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from device import allocated, peak_bytes_of, release, seconds_of
from gpu_contestants import (
    BASELINE,
    GUESTS,
    LMM,
    LONGEST,
    MAC,
    MAG,
    MAL,
    MEMORIES,
    OTHERS,
    RIVALS,
    VOCABULARY,
    guest,
    specification,
)
from gpu_training import GUESTS_AT, emit_kernels, in_groups, tell, times, verdict
from guests import Outsider, OutsidersDecoder
from peer import PEER
from peer_writing import WritingPeer
from rehearsal import nothing_found_before
from side_by_side import emit, in_one_line, paired, say
from torch import Tensor

from lockstep.kernels.record import backend, recorded_in
from lockstep.models.decoding import Decoder
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import as_in_training
from lockstep.models.state import State, state_bytes
from lockstep.tables import aligned, in_bytes, in_short
from lockstep.training.compilation import compile_steps

LENGTHS = (1024, 16_384, LONGEST)
FAR = 1_048_576
"""Tokens of a context that only a state of fixed size has room for."""
PIECE = LONGEST
"""Tokens that are read at once, as everything is that a growing state has room for; outsiders, of which not all can
read on, read all in one piece."""
SEVERAL = 64
"""Sequences of a batch."""
DECODED = 64
"""Tokens of a turn: as many as a chunk has, so that every turn has one end of a chunk in it."""
FIXED = (*MEMORIES, *RIVALS)
"""Those whose state does not grow."""
OUTSIDERS = (*GUESTS, PEER)
NAMES = (BASELINE, *FIXED, *OTHERS, *OUTSIDERS)


class Case(NamedTuple):
    """A context, and how many sequences have one."""

    length: int
    batch: int = 1


class Bar(NamedTuple):
    """Milliseconds a token at most, beside another at the same context, or beside its own at the shortest."""

    contestant: str
    against: str
    limit: float
    cases: tuple[Case, ...]


ITSELF = "itself at 1024"
BARS = (
    *(Bar(name, BASELINE, 1.3, (Case(1024),)) for name in (LMM, MAC, MAG, MAL)),
    *(Bar(name, BASELINE, 1.0, (Case(LONGEST),)) for name in (LMM, MAC, MAG, MAL)),
    *(Bar(name, ITSELF, 1.1, (Case(LONGEST), Case(FAR))) for name in FIXED),
)


@dataclass
class Writer:
    """A model after its context."""

    decoder: Decoder | OutsidersDecoder
    latest: Tensor
    """[batch, 1]"""
    prefill_seconds: float
    facts: dict[str, Any]
    seconds_per_token: list[float] = field(default_factory=list)
    """Round by round."""

    def write(self) -> None:
        """The likeliest next token; nothing waits for the device."""
        self.latest = self.decoder.step(self.latest).argmax(dim=-1, keepdim=True)


Lines = dict[str, dict[str, Any]]
"""Of JSON, one for each contestant."""


def cases(lengths: Sequence[int] | None, several: bool) -> list[Case]:
    """Those asked for, or all."""
    if lengths or several:
        lengths = lengths or ()
        return [Case(length) for length in lengths] + [Case((*lengths, 1024)[0], SEVERAL)] * several
    # Outsiders in the last, as where they train.
    return [*map(Case, LENGTHS), Case(FAR), Case(1024, SEVERAL), Case(GUESTS_AT)]


def invited(case: Case) -> tuple[str, ...]:
    """Outsiders where they train too."""
    return FIXED if case.length > LONGEST else (BASELINE, *FIXED, *OUTSIDERS * (case == Case(GUESTS_AT)))


@torch.inference_mode()
def measure(case: Case, asked: argparse.Namespace, before: Mapping[str, float]) -> list[dict[str, Any]]:
    """A line for each contestant; `before` is what each took per token at the shortest context."""
    lines: Lines = {}
    ready: dict[str, Writer] = {}
    try:
        for group in in_groups(asked.contestants or invited(case), GUESTS, [PEER]):
            all_prepared(group, case, asked, lines, ready)
            for number in range(asked.rounds):
                take_turns(group, asked.device, lines, ready)
                say(f"{in_words(case)}: round {number + 1} of {asked.rounds}: {in_pace(group, ready)}")
    finally:
        tell(lines, ready, lambda name, measured: results(name, measured, case, before))
    return list(lines.values())


def take_turns(names: Sequence[str], device: torch.device, lines: Lines, ready: dict[str, Writer]) -> None:
    """One each of those who are ready; who fails is not any more."""
    for name in [name for name in names if name in ready]:
        one = ready[name]
        try:
            # One before the clock: the first replay after another's graph takes longer, the more kernels it has.
            one.write()
            one.seconds_per_token.append(seconds_of(one.write, DECODED, device))
        except Exception as error:
            lines[name]["error"] = in_one_line(error)
            del ready[name]


def in_pace(names: Sequence[str], ready: Mapping[str, Writer]) -> str:
    still = {name: ready[name].seconds_per_token[-1] for name in names if name in ready}
    return ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in still.items())


def all_prepared(
    names: Sequence[str], case: Case, asked: argparse.Namespace, lines: Lines, ready: dict[str, Writer]
) -> None:
    """Those that can be are ready then; the lines say what became of each."""
    for name in names:
        lines[name] = line = {"name": "decoding", "contestant": name, **case._asdict()}
        started = time.perf_counter()
        try:
            with recorded_in(set()):
                ready[name] = prepared(name, case, asked)
                line["backend"] = backend()
        except Exception as error:
            line["error"] = in_one_line(error)
            say(f"{in_words(case)}: {name}: {line['error']}")
        else:
            line["warm_up_seconds"] = time.perf_counter() - started
            say(f"{in_words(case)}: {name} is warm after {line['warm_up_seconds']:.1f} s")
        release(asked.device)


@torch.inference_mode()
def show_kernels(name: str, case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    """One contestant's kernels, those that take the longest first; times and counts are per token. Its own line."""
    say(f"{in_words(case)}: {name} warms up")
    line: dict[str, Any] = {"name": "profile", "contestant": name, **case._asdict()}
    try:
        writer = prepared(name, case, asked)
    except Exception as error:
        line["error"] = in_one_line(error)
        emit(line)
        return line
    emit_kernels(line | {"backend": backend()}, writer.write, DECODED, asked.top, asked.device)
    return line


@torch.inference_mode()
def rehearsed(name: str, case: Case, asked: argparse.Namespace) -> None:
    """All that reading and writing will compile has been then."""
    with nothing_found_before():
        prepared(name, case, asked)


def prepared(name: str, case: Case, asked: argparse.Namespace) -> Writer:
    """Its context read, and first tokens decoded, which are then read as a text too, to see whether both say the same.

    They are drawn, as the context is: what an untrained model writes is one token all the time, of which little noise
    makes much.

    Before that some pieces are read to warm up: the first two, of which the second takes as much memory as any later
    one, and the last, which may be shorter.
    """
    model = built(name, asked)
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(VOCABULARY, (case.batch, case.length + DECODED), generator=generator).to(asked.device)
    context, following = text.split([case.length, DECODED], dim=1)
    room = case.length + DECODED + max(asked.rounds * (DECODED + 1), 2 * DECODED)  # rounds, or a profile
    others = allocated(asked.device)
    pieces = context.split(case.length if isinstance(model, Outsider) else PIECE, dim=1)
    peak = peak_bytes_of(lambda: read(model, (*pieces[:2], *pieces[2:][-1:]), room), others, asked.device)
    found: list[tuple[Tensor, State]] = []
    seconds = seconds_of(lambda: found.append(read(model, pieces, room)), 1, asked.device)
    _, state = found.pop()
    facts = {"prefill_peak_bytes": peak, **told(model, state, case.batch)}
    # Read before steps are compiled, which a compiler would do anew for a text of this length.
    wanted = as_text(model, following, state) if isinstance(model, LanguageModel) else None
    writing = decoder(model, state, asked)
    logits = torch.stack([writing.step(token) for token in following.split(1, dim=1)], dim=1)
    if wanted is not None:
        facts["apart_from_reading"] = float((logits - wanted).norm() / wanted.norm())
    return Writer(writing, logits[:, -1].argmax(dim=-1, keepdim=True), seconds, facts)


def as_text(model: LanguageModel, tokens: Tensor, state: State) -> Tensor:
    """Logits [batch, time, vocab] after each token [batch, time], in 32 bits."""
    with as_in_training(model):
        return model.step(tokens, state)[0].float()


def built(name: str, asked: argparse.Namespace) -> LanguageModel | Outsider:
    """On the device, in bfloat16 but for the peer."""
    torch.manual_seed(0)
    # Not in inference mode: the peer's memory takes derivatives by its weights.
    with torch.inference_mode(False):
        model: LanguageModel | Outsider
        if name == PEER:
            model = WritingPeer()
        elif name in GUESTS:
            model = guest(name, asked.size)
        else:
            model = specification(name, asked.size, asked.one_of_each).build()
        lowered = not isinstance(model, Outsider) or model.lowered
        return model.to(asked.device, torch.bfloat16 if lowered else None).eval()


def told(model: LanguageModel | Outsider, state: State, batch: int) -> dict[str, Any]:
    """Bytes of one sequence's state, and what an outsider's line says of it."""
    if isinstance(model, Outsider):
        return {"state_bytes": state_bytes(model.tensors(state)) // batch, **model.facts}
    return {"state_bytes": state_bytes(state) // batch}


def decoder(model: LanguageModel | Outsider, state: State, asked: argparse.Namespace) -> Decoder | OutsidersDecoder:
    """Outsiders' kernels are started one by one: their states move from tensor to tensor, as no recording does."""
    if isinstance(model, Outsider):
        return OutsidersDecoder(model, state)
    if asked.compiled != "nothing":
        compile_steps(model)
    return Decoder(model, state)


def read(model: LanguageModel | Outsider, pieces: Sequence[Tensor], room: int) -> tuple[Tensor, State]:
    """Logits [batch, vocab] after the last token, and the state there, by the kernels that train under autocast."""
    state = model.initial_state(len(pieces[0]), capacity=room)
    logits = torch.empty(0)
    with as_in_training(model):
        for piece in pieces:
            said, state = model.step(piece, state)
            logits = said[:, -1]
    return logits, state


def results(name: str, ready: Mapping[str, Writer], case: Case, before: Mapping[str, float]) -> dict[str, Any]:
    one, baseline = ready[name], ready.get(BASELINE)
    seconds = statistics.median(one.seconds_per_token)
    return {
        "milliseconds_per_token": 1e3 * seconds,
        "tokens_per_second": case.batch / seconds,
        "ratio": None if baseline is None else paired(one.seconds_per_token, baseline.seconds_per_token),
        "prefill_seconds": one.prefill_seconds,
        "prefill_tokens_per_second": case.batch * case.length / one.prefill_seconds,
        "replayed": one.decoder.recording is not None,
        **one.facts,
        "milliseconds_by_round": [1e3 * found for found in one.seconds_per_token],
        "bars": judged(name, ready, case, before),
    }


def judged(name: str, ready: Mapping[str, Writer], case: Case, before: Mapping[str, float]) -> list[dict[str, Any]]:
    """The bars that apply, where the other one ran too."""
    verdicts = []
    for bar in BARS:
        if bar.contestant != name or case not in bar.cases:
            continue
        ours = ready[name].seconds_per_token
        if bar.against == ITSELF and name in before:
            ratio = statistics.median(ours) / before[name]
        elif bar.against in ready:
            ratio = paired(ours, ready[bar.against].seconds_per_token)
        else:
            continue
        verdicts.append({"against": bar.against, "ratio": ratio, "bar": f"<= {bar.limit}", "met": ratio <= bar.limit})
    return verdicts


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    heading = ("contestant", "context", "batch", "ms/token", "tokens/s", "ratio", "prefill, tokens/s", "state", "bars")
    return aligned([heading, *(row(line) for line in lines)])


def row(line: Mapping[str, Any]) -> tuple[str, ...]:
    place = (line["contestant"], str(line["length"]), str(line["batch"]))
    if "error" in line:
        return (*place, "error", *[""] * 5)
    return (
        *place,
        f"{line['milliseconds_per_token']:.3g}",
        in_short(line["tokens_per_second"]),
        times(line["ratio"]),
        in_short(line["prefill_tokens_per_second"]),
        in_bytes(line["state_bytes"]),
        ", ".join(verdict("time", bar) for bar in line["bars"]),
    )


def in_words(case: Case) -> str:
    return f"{case.length}" if case.batch == 1 else f"{case.batch} × {case.length}"
