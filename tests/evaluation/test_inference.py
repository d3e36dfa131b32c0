"""Inference measures: what they say of bytes can be checked, of seconds only that there are some."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.evaluation.inference import (
    BatchTime,
    InferenceTime,
    longest,
    measure_batch,
    measure_inference,
    measure_training_peak,
)
from lockstep.evaluation.timing import spread
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import architectures, build, find
from tests.evaluation.memory_models import random_tokens

CPU = torch.device("cpu")
FLOAT = 4
CAUSAL = [name for name in architectures() if find(name).causal and name != "hf"]
SIZE: dict[str, Any] = {"vocab_size": 32, "dim": 16, "depth": 2, "heads": 2}


def small(architecture: str, **more: Any) -> LanguageModel:
    torch.manual_seed(0)
    return build(architecture, **{**SIZE, **more})


@pytest.mark.parametrize("architecture", CAUSAL)
def test_every_causal_architecture_is_measured(architecture: str) -> None:
    model = small(architecture)
    found = measure_inference(model, 24, CPU, decoded=3, rounds=2)
    assert (found.length, found.prefill_seconds.count, found.decode_seconds.count) == (24, 2, 3)
    for times in (found.prefill_seconds, found.decode_seconds):
        assert 0 < times.low <= times.median <= times.high
    assert found.state_bytes == model.cost(24).state_bytes
    assert min(found.prefill_peak_bytes, found.decode_peak_bytes) >= found.state_bytes
    assert model.training, "the model is left in the mode it was in"


def test_the_same_bytes_every_time() -> None:
    model = small("titans-mac", chunk=4, segment=8)
    one, two = (measure_inference(model, 20, CPU, decoded=2, rounds=1) for _ in range(2))
    assert (one.prefill_peak_bytes, one.decode_peak_bytes) == (two.prefill_peak_bytes, two.decode_peak_bytes)


def test_a_cache_grows_with_the_context_and_a_recurrence_does_not() -> None:
    attention = [measure_inference(small("transformer++"), length, CPU, 2, 1) for length in (16, 128)]
    recurrence = [measure_inference(small("gru"), length, CPU, 2, 1) for length in (16, 128)]
    per_token = 2 * SIZE["depth"] * SIZE["dim"] * FLOAT
    assert attention[1].state_bytes - attention[0].state_bytes == (128 - 16) * per_token
    assert attention[1].decode_peak_bytes - attention[0].decode_peak_bytes >= (128 - 16) * per_token
    assert recurrence[1].state_bytes == recurrence[0].state_bytes
    assert recurrence[1].decode_peak_bytes == recurrence[0].decode_peak_bytes
    assert recurrence[1].prefill_peak_bytes > recurrence[0].prefill_peak_bytes, "logits of every token at least"


def test_learned_positions_end() -> None:
    model = small("gpt2", max_length=16)
    assert longest(model) == 16
    assert longest(small("transformer++")) is None
    assert measure_inference(model, 15, CPU, decoded=4, rounds=1).decode_seconds.count == 4
    assert measure_inference(model, 10, CPU, decoded=9, rounds=1).decode_seconds.count == 9
    with pytest.raises(ValueError, match="no position is left after 16 tokens: max_length is 16"):
        measure_inference(model, 16, CPU)


def test_a_bidirectional_model_is_measured_by_batches_only() -> None:
    model = small("bert", max_length=16)
    with pytest.raises(ValueError, match="bert is bidirectional"):
        measure_inference(model, 8, CPU)
    found = measure_batch(model, 16, 3, CPU, rounds=4)
    assert (found.length, found.batch, found.seconds.count) == (16, 3, 4)
    assert found.seconds.median > 0


@pytest.mark.parametrize("architecture", ["transformer++", "titans-mag", "lstm", "bert"])
def test_the_training_peak_holds_gradients_and_activations(architecture: str) -> None:
    model = small(architecture).eval()
    weights = sum(parameter.numel() * FLOAT for parameter in model.parameters())
    short, long = (measure_training_peak(model, random_tokens(2, time)) for time in (8, 32))
    assert short > weights * 0.9
    activations = 2 * 24 * SIZE["dim"] * FLOAT * SIZE["depth"]
    assert long - short > 3 * activations
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_gradients_that_were_there_stay() -> None:
    model = small("gru")
    kept = torch.ones_like(model.head.weight)
    model.head.weight.grad = kept
    measure_training_peak(model, random_tokens(1, 8))
    assert model.head.weight.grad is kept
    assert bool((kept == 1).all())


def test_a_known_share_of_the_peak() -> None:
    """At the end of a backward pass, each word of the vocabulary has a row of two gradients, and nothing else."""
    counts = []
    for words in (1000, 3000):
        model = small("gru", depth=1, vocab_size=words, tie_embeddings=False)
        counts.append(measure_training_peak(model, random_tokens(1, 2)))
    assert counts[1] - counts[0] == 2000 * 2 * SIZE["dim"] * FLOAT


def test_quantiles() -> None:
    values = np.random.default_rng(0).permutation(np.arange(101.0)).tolist()
    assert spread(values).as_dict() == {"median": 50.0, "low": 5.0, "high": 95.0, "count": 101}


def test_the_fields_are_those_of_the_report() -> None:
    from lockstep.report import results

    for ours, theirs in ((InferenceTime, results.Inference), (BatchTime, results.BatchTime)):
        assert {field.name for field in fields(ours)} == set(theirs.model_fields)
    found = measure_inference(small("rnn"), 4, CPU, 1, 1).as_dict()
    assert results.Inference(**found).model_dump() == found
    assert results.BatchTime(**measure_batch(small("rnn"), 4, 1, CPU, 1).as_dict()).batch == 1
