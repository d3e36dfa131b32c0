"""A memory never overflows: not over a long text, not over one key written again and again, not in rough training."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import textwrap
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

import lockstep
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.state import named_tensors

ATTENDING: dict[str, Any] = {"segment": 32, "window": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "titans-lmm": {},
    "titans-mac": ATTENDING,
    "titans-mag": ATTENDING,
    "titans-mal": ATTENDING,
    "yaad": {},
    "moneta": {},
    "memora": {},
    "memory": {},
}
VOCABULARY = 256
PIECE = 1024
"""Tokens in one call."""
TEXTS = ("one repeated token", "random tokens")
"""Rows of what is streamed. The first, which repeats one key, adds up the errors of every write."""

Beginning = Literal["initialised", "randomised", "gates open"]
"""Random gates forget at once; open ones never do, and write at the largest rate with all the momentum there is."""
OPEN = 20.0

TUNED_RATE = 3e-3
STEPS, BATCH, LENGTH = 500, 4, 128
MODULES = (argparse, inspect, json, textwrap)
"""Whose source is the text to train on: at hand wherever Python is."""

every_variant = pytest.mark.parametrize("architecture", VARIANTS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
every_beginning = pytest.mark.parametrize("beginning", get_args(Beginning))


def build(architecture: str, depth: int, length: int) -> LanguageModel:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": VOCABULARY, "max_length": length, "dim": 32, "depth": depth, "heads": 2}
    return lockstep.build(architecture, **size, chunk=16, **VARIANTS[architecture])


@torch.no_grad()
def begin(model: LanguageModel, beginning: Beginning) -> None:
    if beginning == "randomised":
        randomise(model, seed=0)
    if beginning == "gates open":
        for module in model.modules():
            if isinstance(module, NeuralMemory):
                module.gates.bias.fill_(OPEN)


def streamed_texts(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack((torch.full((length,), 7), torch.randint(VOCABULARY, (length,), generator=generator)))


@torch.inference_mode()
def assert_stays_finite(architecture: str, dtype: torch.dtype, beginning: Beginning, length: int) -> None:
    """Logits and every tensor of the state, after every piece of both texts."""
    model = build(architecture, depth=1, length=length)
    begin(model, beginning)
    model = model.to(dtype).eval()
    state = None
    for number, piece in enumerate(streamed_texts(length).split(PIECE, dim=1)):
        logits, state = model.step(piece, state)
        for name, tensor in (("logits", logits), *named_tensors(state)):
            for text, row in zip(TEXTS, tensor, strict=True):
                assert row.isfinite().all(), f"{name} in piece {number} of {text}"


@every_variant
@every_dtype
@every_beginning
def test_thousands_of_tokens(architecture: str, dtype: torch.dtype, beginning: Beginning) -> None:
    assert_stays_finite(architecture, dtype, beginning, length=4096)


@pytest.mark.slow
@every_variant
@every_dtype
@every_beginning
def test_sixty_five_thousand_tokens(architecture: str, dtype: torch.dtype, beginning: Beginning) -> None:
    assert_stays_finite(architecture, dtype, beginning, length=65_536)


@pytest.fixture(scope="module")
def source_code() -> Tensor:
    """Bytes of real text."""
    text = "".join(inspect.getsource(module) for module in MODULES)
    return torch.tensor(list(text.encode()))


@pytest.mark.slow
@every_variant
def test_training_too_fast(architecture: str, source_code: Tensor) -> None:
    """Three times the tuned rate, from the first step on: no loss and no gradient is lost."""
    model = build(architecture, depth=2, length=LENGTH).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3 * TUNED_RATE)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for step in range(STEPS):
        starts = torch.randint(len(source_code) - LENGTH, (BATCH, 1), generator=generator)
        text = source_code[starts + torch.arange(LENGTH + 1)]
        loss = token_losses(model(text[:, :-1]), text[:, 1:]).mean()
        assert loss.isfinite(), f"step {step}"
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("horizon", [1.0001, 64.0, 4096.0])
@pytest.mark.parametrize("chunk", [1, 8, 64])
@pytest.mark.parametrize("structure", ["linear", "mlp"])
@torch.no_grad()
def test_without_a_norm_no_gate_opens_too_far(structure: Literal["linear", "mlp"], chunk: int, horizon: float) -> None:
    """Nothing else bounds such a memory: at twice the stable rate, one repeated key already makes it overflow."""
    torch.manual_seed(0)
    spec = MemorySpec(structure=structure, residual=False, norm=False, rule="gradient-descent", chunk=chunk)
    memory = NeuralMemory(64, 2, spec, conv=0)
    memory.initialise()
    for name, logit in (("rate", OPEN), ("keep", math.log(horizon - 1))):
        first = memory.gate_names.index(name) * memory.heads
        memory.gates.bias[first : first + memory.heads] = logit
    text = torch.stack((torch.randn(64).expand(2048, 64), torch.randn(2048, 64)))
    reads, _ = memory.step(text, None)
    values = memory.rows(memory.qkv(text), (), torch.zeros(2))[2]
    assert reads.abs().max() < 10 * values.abs().max()
