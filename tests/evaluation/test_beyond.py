"""Losses beyond the training length, against one forward pass and against a model whose losses are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.config.data import DataSpec
from lockstep.config.lengths import LengthsSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.corpus import Corpus
from lockstep.data.prepare import Prepared, open_prepared, prepare, write_prepared
from lockstep.evaluation.beyond import losses_by_context, losses_by_position, measure_beyond
from lockstep.evaluation.detail import Bucket
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.models.registry import build, specify
from lockstep.models.state import State
from tests.evaluation.memory_models import SMALL, VOCABULARY, random_model, random_tokens

CPU = torch.device("cpu")
PERIOD, SURE = 12, 5.0
UNKNOWN = math.log(VOCABULARY)
KNOWN = math.log(math.exp(SURE) + VOCABULARY - 1) - SURE


class Echo(LanguageModel):
    """Expects what stood PERIOD tokens earlier, and everything alike as long as nothing did."""

    def initial_state(self, batch: int, capacity: int | None = None) -> State:
        return torch.full((batch, PERIOD), -1)

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        assert state is not None
        assert not self.training
        logits = torch.zeros(*tokens.shape, VOCABULARY)
        for place in range(tokens.shape[1]):
            state = torch.cat((state[:, 1:], tokens[:, place : place + 1]), dim=1)
            for row, word in enumerate(state[:, 0].tolist()):
                if word >= 0:
                    logits[row, place, word] = SURE
        return logits, state


def echo() -> Echo:
    return Echo(specify("rnn", SMALL))


def periodic(time: int) -> Tensor:
    """Two texts, each of which repeats itself."""
    return random_tokens(2, PERIOD).repeat(1, time // PERIOD + 1)[:, :time]


def by_hand(losses: Tensor) -> dict[tuple[int, int], tuple[int, float]]:
    """Of losses [n, time]: tokens and sum by the ends of their bucket."""
    found: dict[tuple[int, int], tuple[int, float]] = {}
    for place in range(losses.shape[1]):
        last = 1
        while last < place + 1:
            last *= 2
        ends = (last // 2 + 1 if last > 1 else 1), min(last, losses.shape[1])
        tokens, nats = found.get(ends, (0, 0.0))
        found[ends] = tokens + len(losses), nats + float(losses[:, place].sum())
    return found


def as_sums(buckets: Sequence[Bucket]) -> dict[tuple[Any, Any], tuple[int, Any]]:
    return {(one.first, one.last): (one.tokens, pytest.approx(one.nats, rel=1e-9)) for one in buckets}


def forward_losses(model: LanguageModel, texts: Tensor) -> Tensor:
    with torch.no_grad():
        return token_losses(model(texts[:, :-1]), texts[:, 1:])


@pytest.mark.parametrize("architecture", ["titans-lmm", "titans-mac", "gated-deltanet", "transformer++"])
def test_buckets_are_those_of_one_forward(architecture: str) -> None:
    # Pieces are shorter for more texts: 21 of them make pieces of 48, which 99 is no multiple of.
    model, texts = random_model(architecture), random_tokens(21, 100)
    told: list[int] = []
    buckets = losses_by_position(model, texts, told.append)
    assert by_hand(forward_losses(model, texts)) == as_sums(buckets)
    assert sum(told) == sum(bucket.tokens for bucket in buckets) == 21 * 99


def test_a_model_that_knows_after_a_period() -> None:
    buckets = losses_by_position(echo(), periodic(65))
    losses = {(bucket.first, bucket.last): bucket.loss for bucket in buckets}
    assert losses.keys() == {(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64)}
    for ends in ((1, 1), (2, 2), (3, 4), (5, 8)):
        assert losses[ends] == pytest.approx(UNKNOWN)
    # At position t so many tokens have been read: the first three of the bucket are too few.
    assert losses[9, 16] == pytest.approx((3 * UNKNOWN + 5 * KNOWN) / 8)
    for ends in ((17, 32), (33, 64)):
        assert losses[ends] == pytest.approx(KNOWN)


def test_the_same_targets_after_more_context() -> None:
    tokens, places = periodic(200)[0].numpy(), np.array([40, 61, 150])
    contexts, scored = (1, 4, 10, 12, 16, 40, 41), 6
    found = losses_by_context(echo(), tokens, places, contexts, scored)
    assert [one.context for one in found] == [1, 4, 10, 12, 16, 40], "before the first place stand 40 tokens"
    assert {one.tokens for one in found} == {18}
    for one in found:
        too_early = sum(one.context + later < PERIOD for later in range(scored))
        assert one.loss == pytest.approx((too_early * UNKNOWN + (scored - too_early) * KNOWN) / scored)
        assert one.as_dict()["perplexity"] == pytest.approx(math.exp(one.loss))


@pytest.mark.parametrize("architecture", ["titans-lmm", "titans-mac", "mamba2", "transformer++"])
def test_a_context_is_a_cold_start(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(1, 90)[0].numpy()
    places, scored = np.array([70, 75]), 9
    for one in losses_by_context(model, tokens, places, (1, 8, 33, 70), scored):
        texts = torch.stack([torch.from_numpy(tokens[at - one.context : at + scored]) for at in places])
        expected = forward_losses(model, texts)[:, -scored:]
        assert one.tokens == expected.numel()
        assert one.nats == pytest.approx(float(expected.sum()), rel=1e-9)


@pytest.fixture(scope="module")
def prepared(tiny_corpus: Path) -> Prepared:
    """One long document of bytes."""
    return prepare(DataSpec(training_corpus=str(tiny_corpus)), TokenizerSpec())


def small(architecture: str, **fields: Any) -> LanguageModel:
    torch.manual_seed(0)
    return build(architecture, **{**SMALL, "vocab_size": 258, **fields}).double().eval()


def test_the_last_tokens_of_each_text(prepared: Prepared) -> None:
    model, tokens = small("gated-deltanet"), prepared.tokens("test").astype(np.int64)
    found = measure_beyond(model, prepared, 16, LengthsSpec(times=8, texts=3, scored=20), CPU)
    assert found is not None
    assert (found["longest"], found["texts"]) == (128, 3)
    assert [one["context"] for one in found["contexts"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {one["tokens"] for one in found["contexts"]} == {60}
    assert [(one["first"], one["last"]) for one in found["positions"]][-1] == (65, 128)
    # The texts are the first tokens, the last, and those in the middle; the whole of a text is the longest context.
    room = 128 + 20
    starts = [0, (len(tokens) - room) // 2, len(tokens) - room]
    texts = torch.stack([torch.from_numpy(tokens[start : start + room]) for start in starts])
    losses = forward_losses(model, texts)
    assert found["contexts"][-1]["loss"] == pytest.approx(float(losses[:, -20:].mean()), rel=1e-9)
    first = by_hand(losses[:, :128])[65, 128]
    assert found["positions"][-1]["loss"] == pytest.approx(first[1] / first[0], rel=1e-9)


def test_texts_are_cut_to_what_there_is(prepared: Prepared) -> None:
    there = len(prepared.tokens("test"))
    found = measure_beyond(small("lstm"), prepared, 256, LengthsSpec(contexts=(3, 100, 10**6)), CPU)
    assert found is not None
    assert (found["longest"], found["texts"]) == (there - 64, 1)
    assert [one["context"] for one in found["contexts"]] == [3, 100]
    assert sum(one["tokens"] for one in found["positions"]) == there - 64


def test_learned_positions_end(prepared: Prepared) -> None:
    found = measure_beyond(small("gpt2", max_length=40), prepared, 40, LengthsSpec(texts=2, scored=8), CPU)
    assert found is not None
    assert found["longest"] == 40
    assert [one["context"] for one in found["contexts"]] == [1, 2, 4, 8, 16, 32]
    assert found["positions"][-1]["last"] == 40


def test_a_masked_model_has_no_such_measure(prepared: Prepared) -> None:
    assert measure_beyond(small("bert"), prepared, 16, LengthsSpec(), CPU) is None


def test_numbers_that_overflow_are_missing(prepared: Prepared) -> None:
    model = small("lstm")
    with torch.no_grad():
        model.head.weight[7] = torch.inf
    found = measure_beyond(model, prepared, 16, LengthsSpec(times=2, texts=1, scored=4), CPU)
    assert found is not None
    assert {one["loss"] for one in found["positions"]} == {None}
    assert {(one["loss"], one["perplexity"]) for one in found["contexts"]} == {(None, None)}


def test_texts_go_on_over_the_end_of_a_document(tmp_path: Path) -> None:
    documents = [b"a few words", b"b", b"and others", b"abc " * 9]
    write_prepared(tmp_path, Corpus("few", "", lambda split: iter(documents)), ByteTokenizer(), None)
    short, model = open_prepared(tmp_path), small("mamba2")
    tokens = torch.from_numpy(short.tokens("test").astype(np.int64))
    assert int((tokens == short.tokenizer.eos_id).sum()) == 4
    found = measure_beyond(model, short, 1000, LengthsSpec(scored=10), CPU)
    assert found is not None
    losses = forward_losses(model, tokens[None])
    assert found["longest"] == len(tokens) - 10
    sums = sum(one["tokens"] * one["loss"] for one in found["positions"])
    assert sums == pytest.approx(float(losses[:, : len(tokens) - 10].sum()), rel=1e-9)
