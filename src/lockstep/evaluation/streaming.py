"""Reading a stream of a million tokens and more: how fast, and whether memory stays as it was at the beginning.

All lengths are measured on the way of one read. Its seconds are those of every piece. Its bytes are counted exactly,
but counting slows a CPU down: so pieces 1, 2, 3, 5, 9 and so on, and the last before each length, are read a first time
for the count alone, which `step` allows, since it leaves the state as it was. What the system says of the process is
followed through the whole read besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.evaluation.inference import WARM_UP, longest, time_decoding
from lockstep.evaluation.live_bytes import address, held_bytes, tensors
from lockstep.evaluation.process_memory import growth
from lockstep.evaluation.reading import PIECE
from lockstep.evaluation.timing import Spread, in_mode, now, spread
from lockstep.models.decoding import advanced, own
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import as_in_training
from lockstep.models.state import State, map_state, state_bytes
from lockstep.progress import showing

DECODED = 8
"""Tokens written after each length, besides those that warm up."""


@dataclass(frozen=True, slots=True)
class StreamedTime:
    """One sequence, read up to some length."""

    length: int
    seconds: float
    """Of the whole read up to here."""
    tokens_per_second: float
    peak_bytes: int
    """The most tensors that were held at once beyond the weights, up to here; the state is a part of it."""
    process_peak_bytes: int | None
    """The most that the process (on a GPU: its share of the GPU) grew by, up to here, since it had read a piece to warm
    up; None where the system does not tell."""
    state_bytes: int
    """Of the state at this length."""
    decode_seconds: Spread
    """Per token, right after it."""
    decode_peak_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def has_bounded_state(model: LanguageModel) -> bool:
    """Whether a sequence of any length can be read with the memory of a short one."""
    if not model.causal or longest(model) is not None:
        return False
    few, many = (state_bytes(model.initial_state(1, capacity=capacity)) for capacity in (PIECE, 2 * PIECE))
    return few == many


@torch.inference_mode()
def measure_streaming(
    model: LanguageModel, lengths: Sequence[int], device: torch.device, piece: int = PIECE
) -> list[StreamedTime] | None:
    """At each length, in ascending order, of one stream of random tokens; None for a model whose state grows."""
    if not has_bounded_state(model):
        return None
    found: list[StreamedTime] = []
    marks = sorted(set(lengths))
    if not marks:
        return found
    title = f"{model.spec.architecture}, {marks[-1]:,} tokens"
    with in_mode(model, training=False), showing(title, "share", marks[-1]) as progress:
        reader = Reader(model, device, min(piece, marks[0]))
        for mark in marks:
            while reader.place < mark:
                size = min(piece, mark - reader.place)
                reader.read(size, last=reader.place + size == mark)
                progress.add(size)
            found.append(reader.measured())
    return found


class Reader:
    """Reads on from piece to piece; the tokens of a piece are made when it is read."""

    def __init__(self, model: LanguageModel, device: torch.device, warm_up: int) -> None:
        """So many tokens are read once before anything counts: libraries are loaded, and memory for them is found."""
        self.model, self.device = model, device
        self.generator = torch.Generator().manual_seed(0)
        self.state: State = model.initial_state(1)
        self.place = self.pieces = self.peak = 0
        self.seconds = 0.0
        self._held(self._tokens(warm_up))
        self._follow(self._tokens(warm_up))
        self.process = growth(device)

    def read(self, size: int, last: bool) -> None:
        tokens = self._tokens(size)
        if last or self.pieces & (self.pieces - 1) == 0:
            self.peak = max(self.peak, self._held(tokens))
        began = now(self.device)
        self.state = self._follow(tokens)
        self.seconds += now(self.device) - began
        self.place += size
        self.pieces += 1

    def measured(self) -> StreamedTime:
        """As things stand at this place; reading goes on from here afterwards."""
        # Asked first: what decoding takes is not a part of it.
        process_peak = None if self.process is None else self.process.peak
        following = self._tokens(WARM_UP + DECODED)
        return StreamedTime(
            length=self.place,
            seconds=self.seconds,
            tokens_per_second=self.place / self.seconds,
            peak_bytes=self.peak,
            process_peak_bytes=process_peak,
            state_bytes=state_bytes(self.state),
            decode_seconds=spread(time_decoding(self.model, following, self.state, self.device)),
            decode_peak_bytes=self._held_writing(following[:, :1]),
        )

    def _follow(self, tokens: Tensor) -> State:
        """The state after these tokens; the one before is left as it is."""
        with as_in_training(self.model):
            return self.model.step(tokens, self.state)[1]

    def _held(self, tokens: Tensor) -> int:
        """The most that is held while these tokens follow the state."""
        with held_bytes(self.device) as counted:
            self._follow(tokens)
            return self._held_by_state() + counted.peak

    def _held_writing(self, tokens: Tensor) -> int:
        """The same where a decoder takes them, which writes over a state of its own."""
        state = map_state(own, self.state)
        with held_bytes(self.device) as counted:
            advanced(self.model, state, tokens)
            return self._held_by_state() + counted.peak

    def _held_by_state(self) -> int:
        """Less than the bytes of its tensors where two of them, or one and a weight, are the same."""
        weights = {address(weight) for weight in (*self.model.parameters(), *self.model.buffers())}
        stored = {address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors(self.state)}
        return sum(size for place, size in stored.items() if place not in weights)

    def _tokens(self, count: int) -> Tensor:
        words = self.model.embedding.num_embeddings
        return torch.randint(words, (1, count), generator=self.generator).to(self.device)
