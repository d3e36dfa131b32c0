"""Streams: what is said of memory against a count of the whole read, and against a model that leaks."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.evaluation.live_bytes import live_bytes
from lockstep.evaluation.process_memory import ResidentBytes, growth
from lockstep.evaluation.streaming import DECODED, has_bounded_state, measure_streaming
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build, specify
from lockstep.models.state import State, state_bytes
from tests.evaluation.memory_models import SMALL, TITANS, random_tokens

CPU = torch.device("cpu")
PIECE = 32
MEGABYTE = 1_000_000


def small(architecture: str, **fields: Any) -> LanguageModel:
    torch.manual_seed(0)
    return build(architecture, **{**SMALL, **TITANS.get(architecture, {}), **fields})


@pytest.mark.parametrize("architecture", ["titans-lmm", "titans-mac", "gated-deltanet", "mamba2", "lstm"])
def test_two_lengths_of_one_read(architecture: str) -> None:
    model = small(architecture)
    found = measure_streaming(model, (512, 96), CPU, PIECE)
    assert found is not None
    short, long = found
    assert (short.length, long.length) == (96, 512)
    assert 0 < short.seconds < long.seconds
    assert long.tokens_per_second == pytest.approx(512 / long.seconds)
    assert short.state_bytes == long.state_bytes == state_bytes(model.initial_state(1))
    assert short.peak_bytes == long.peak_bytes > short.decode_peak_bytes == long.decode_peak_bytes >= short.state_bytes
    assert long.decode_seconds.count == DECODED
    assert model.training, "the model is left in the mode it was in"


@pytest.mark.parametrize("architecture", ["titans-lmm", "gated-deltanet", "mamba2", "gru"])
def test_counted_pieces_say_what_a_count_of_all_says(architecture: str) -> None:
    model = small(architecture).eval()
    found = measure_streaming(model, (10 * PIECE,), CPU, PIECE)
    assert found is not None
    pieces = random_tokens(1, 10 * PIECE).split(PIECE, dim=1)
    with torch.inference_mode(), live_bytes() as counted:
        state = model.initial_state(1)
        for piece in pieces:
            state = model.step(piece, state)[1]
    assert found[0].peak_bytes == counted.peak


def test_models_whose_state_grows_are_not_measured() -> None:
    grows = [small("transformer++"), small("gpt2"), small("bert")]
    assert [has_bounded_state(model) for model in grows] == [False, False, False]
    assert [measure_streaming(model, (64,), CPU) for model in grows] == [None, None, None]
    assert measure_streaming(small("lstm"), (), CPU) == []
    windowed = measure_streaming(small("transformer++", window=8), (64,), CPU)
    assert windowed is not None
    assert windowed[0].length == 64


class Leaking(LanguageModel):
    """Keeps a megabyte of each step, where no state shows it."""

    def __init__(self) -> None:
        super().__init__(specify("rnn", SMALL))
        self.kept: list[Tensor] = []

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        self.kept.append(torch.ones(MEGABYTE // 4))
        return super().step(tokens, state)


@pytest.mark.skipif(growth(CPU) is None, reason="the system does not tell how much memory a process has")
def test_the_process_shows_what_the_state_does_not() -> None:
    # In a process of its own: what earlier tests gave back would be taken again, and nothing would grow.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sound, few, many = pool.apply(process_peaks)
    assert many - few > 85 * MEGABYTE
    assert sound < 20 * MEGABYTE


def process_peaks() -> tuple[int, int, int]:
    """Of a sound model over many pieces, and of a leaking one over few and over many."""
    sound = measure_streaming(small("rnn"), (10 * PIECE, 100 * PIECE), CPU, PIECE)
    leaking = measure_streaming(Leaking(), (10 * PIECE, 100 * PIECE), CPU, PIECE)
    assert sound is not None
    assert leaking is not None
    few, many = (at.process_peak_bytes or 0 for at in leaking)
    return sound[1].process_peak_bytes or 0, few, many


@pytest.mark.skipif(growth(CPU) is None, reason="the system does not tell how much memory a process has")
def test_a_peak_is_remembered_and_then_forgotten() -> None:
    gc.collect()  # what earlier tests left must not go in between
    before = ResidentBytes()
    large = torch.ones(25 * MEGABYTE)
    del large
    assert 95 * MEGABYTE < before.peak < 150 * MEGABYTE
    assert ResidentBytes().peak < 20 * MEGABYTE
