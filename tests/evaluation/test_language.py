"""Held-out scores against plain loops, and against models whose scores are known beforehand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.prepare import Prepared, prepare
from lockstep.evaluation.language import HeldOut, LanguageScore, score_causal, score_masked, score_pseudo
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

CPU = torch.device("cpu")
LENGTH = 16
BATCH = 4


@pytest.fixture(scope="module")
def prepared(tiny_corpus: Path) -> Prepared:
    return prepare(DataSpec(training_corpus=str(tiny_corpus)), TokenizerSpec())


def held_out(prepared: Prepared, length: int = LENGTH, batch_size: int = BATCH) -> HeldOut:
    return HeldOut(prepared, "valid", length, batch_size)


def small_model(architecture: str, vocab_size: int) -> LanguageModel:
    """Random weights, larger than usual so that predictions differ clearly from one position to the next."""
    torch.manual_seed(5)
    model = build(architecture, vocab_size=vocab_size, dim=16, depth=1, heads=2, max_length=LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@torch.no_grad()
def plain_causal_score(model: LanguageModel, tokens: list[int], length: int) -> tuple[float, int, list[int]]:
    """Nats, hits and the positions that were predicted, one window after another and one token at a time."""
    nats, hits, predicted = 0.0, 0, []
    for start in range(0, len(tokens) - 1, length):
        window = tokens[start : start + length + 1]
        logits = model(torch.tensor([window[:-1]]))[0].double()
        for place, target in enumerate(window[1:]):
            probabilities = logits[place].exp() / logits[place].exp().sum()
            nats -= math.log(probabilities[target])
            hits += int(logits[place].argmax()) == target
            predicted.append(start + place + 1)
    return nats, hits, predicted


def test_the_loss_is_that_of_a_plain_loop(prepared: Prepared) -> None:
    model = small_model("gpt2", prepared.tokenizer.vocab_size)
    tokens = prepared.tokens("valid").tolist()
    assert (len(tokens) - 1) % LENGTH, "the last window should be a partial one"
    assert (len(tokens) - 1) // LENGTH % BATCH, "the last batch should be a partial one"
    nats, hits, predicted = plain_causal_score(model, tokens, LENGTH)
    score = score_causal(model, held_out(prepared), CPU)
    assert predicted == list(range(1, len(tokens)))
    assert score.tokens == len(tokens) - 1
    assert score.nats == pytest.approx(nats, rel=1e-6)
    assert score.correct == hits
    assert score.loss == pytest.approx(nats / (len(tokens) - 1), rel=1e-6)


@pytest.mark.parametrize("length", [1, 7, 16, 10_000])
@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_every_token_but_the_first_is_a_target_once(prepared: Prepared, length: int, batch_size: int) -> None:
    data = held_out(prepared, length, batch_size)
    batches = list(data.read())
    tokens = prepared.tokens("valid").astype(np.int64)
    targets = np.concatenate([batch.targets.ravel() for batch in batches])
    inputs = np.concatenate([batch.windows[:, :-1].ravel() for batch in batches])
    assert targets.tolist() == tokens[1:].tolist()
    assert inputs.tolist() == tokens[:-1].tolist()
    assert len(batches) == len(data.batches())
    assert all(len(windows) <= batch_size and windows.shape[1] <= length + 1 for windows, _, _ in batches)
    targets = np.arange(1, len(prepared.tokens("valid")))
    assert sum(int(batch.lengths.sum()) for batch in batches) == int(prepared.byte_lengths("valid", targets).sum())


def test_the_batch_size_does_not_change_the_score(prepared: Prepared) -> None:
    model = small_model("lstm", prepared.tokenizer.vocab_size)
    one = score_causal(model, held_out(prepared, batch_size=1), CPU)
    many = score_causal(model, held_out(prepared, batch_size=50), CPU)
    assert one.nats == pytest.approx(many.nats, rel=1e-6)
    assert (one.correct, one.tokens, one.bytes) == (many.correct, many.tokens, many.bytes)


def test_a_uniform_model_has_the_loss_of_a_fair_die(prepared: Prepared) -> None:
    vocabulary = prepared.tokenizer.vocab_size
    torch.manual_seed(0)
    model = build("gpt2", vocab_size=vocabulary, dim=16, depth=1, heads=2, tie_embeddings=False)
    torch.nn.init.zeros_(model.head.weight)
    scores = score_causal(model.eval(), held_out(prepared), CPU).as_dict()
    assert scores["loss"] == pytest.approx(math.log(vocabulary), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(vocabulary, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, BATCH, 1000])
def test_a_limit_scores_the_first_sequences_at_any_batch_size(prepared: Prepared, batch_size: int) -> None:
    model, sequences = small_model("gpt2", prepared.tokenizer.vocab_size), BATCH + 1
    tokens = prepared.tokens("valid").tolist()[: sequences * LENGTH + 1]
    nats, hits, _ = plain_causal_score(model, tokens, LENGTH)
    score = score_causal(model, replace(held_out(prepared, batch_size=batch_size), sequences=sequences), CPU)
    assert score.tokens == sequences * LENGTH
    assert score.nats == pytest.approx(nats, rel=1e-6)
    assert score.correct == hits


def test_progress_ends_at_one(prepared: Prepared) -> None:
    told: list[float] = []
    model = small_model("gpt2", prepared.tokenizer.vocab_size)
    score_causal(model, held_out(prepared), CPU, progress=told.append)
    assert told[-1] == 1
    assert told == sorted(told)
    assert len(told) == len(held_out(prepared).batches())


def test_masked_progress_ends_at_one_too(prepared: Prepared) -> None:
    told: list[float] = []
    model = small_model("bert", prepared.tokenizer.vocab_size)
    score_masked(model, held_out(prepared), CPU, 0.15, told.append)
    assert told[-1] == 1
    assert told == sorted(told)
    assert len(told) == len(held_out(prepared).batches())


UNEVEN = "aé€😀"
"""Characters of one, two, three and four bytes."""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A corpus of characters of unequal size, its validation text known by heart."""
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "train.txt").write_text(UNEVEN * 9, encoding="utf-8")
    (folder / "valid.txt").write_text("a€😀é", encoding="utf-8")
    (folder / "test.txt").write_text("é", encoding="utf-8")
    return prepare(DataSpec(training_corpus=str(folder)), TokenizerSpec(tokenizer_type="character"))


def test_bits_per_byte_by_hand(uneven: Prepared) -> None:
    """Scored are € (3 bytes), 😀 (4), é (2) and the separator (0), each at the price of a fair die."""
    vocabulary = uneven.tokenizer.vocab_size
    assert vocabulary == 3 + 4
    score = score_causal(lambda tokens: torch.zeros(*tokens.shape, vocabulary), held_out(uneven, length=3), CPU)
    scores = score.as_dict()
    assert (scores["tokens"], scores["bytes"]) == (4, 9)
    assert scores["bits_per_byte"] == pytest.approx(4 * math.log2(7) / 9, rel=1e-6)
    assert scores["loss"] == pytest.approx(math.log(7), rel=1e-6)


def test_no_bytes_give_no_bits_per_byte() -> None:
    assert LanguageScore(nats=1.0, correct=0, tokens=1, bytes=0).as_dict()["bits_per_byte"] is None


def test_a_hopeless_loss_still_has_a_finite_perplexity() -> None:
    scores = LanguageScore(nats=1e6, correct=0, tokens=1, bytes=1).as_dict()
    assert scores["loss"] == 1e6
    assert math.isfinite(scores["perplexity"] or math.inf)


def test_knowing_the_answer_costs_nothing(prepared: Prepared) -> None:
    """The targets are the next tokens: who knows the text scores zero nats, who repeats the input does not."""
    tokens = prepared.tokens("valid").astype(np.int64)
    following = iter(torch.from_numpy(windows[:, 1:]) for windows, _, _ in held_out(prepared).read())

    def oracle(inputs: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(next(following), prepared.tokenizer.vocab_size) * 1e4

    def parrot(inputs: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(inputs, prepared.tokenizer.vocab_size) * 1e4

    knowing, repeating = score_causal(oracle, held_out(prepared), CPU), score_causal(parrot, held_out(prepared), CPU)
    assert (knowing.nats, knowing.correct) == (0.0, len(tokens) - 1)
    assert repeating.correct == int((tokens[1:] == tokens[:-1]).sum())


def test_masked_scores_are_the_same_every_time(prepared: Prepared) -> None:
    model = small_model("bert", prepared.tokenizer.vocab_size)
    first = score_masked(model, held_out(prepared), CPU, 0.15)
    torch.manual_seed(99)
    assert score_masked(model, held_out(prepared), CPU, 0.15) == first
    share = first.tokens / (len(prepared.tokens("valid")) - 1)
    assert 0.1 < share < 0.2


def test_masked_scores_count_hidden_tokens_only(prepared: Prepared) -> None:
    """A model that is certain of its input is right exactly where a chosen token was left visible."""
    vocabulary = prepared.tokenizer.vocab_size
    shown: list[Tensor] = []

    def parrot(inputs: Tensor) -> Tensor:
        shown.append(inputs.flatten())
        return torch.nn.functional.one_hot(inputs, vocabulary) * 50.0

    score = score_masked(parrot, held_out(prepared), CPU, 0.5)
    inputs, tokens = torch.cat(shown), torch.from_numpy(prepared.tokens("valid")[1:].astype(np.int64))
    changed = int((inputs != tokens).sum())
    assert score.tokens == changed + score.correct
    assert score.nats == pytest.approx(50.0 * changed, rel=1e-4)
    assert score.bytes == score.tokens, "each byte token stands for one byte, and separators are never hidden"


@torch.no_grad()
def test_pseudo_perplexity_is_that_of_a_plain_loop(prepared: Prepared) -> None:
    model = small_model("bert", prepared.tokenizer.vocab_size)
    tokens, mask = prepared.tokens("valid").tolist(), prepared.tokenizer.mask_id
    nats, hits, scored, sequences = 0.0, 0, 0, 3
    for start in range(0, sequences * LENGTH, LENGTH):
        row = tokens[start + 1 : start + 1 + LENGTH]
        for place, target in enumerate(row):
            if target in prepared.tokenizer.special_ids:
                continue
            scored += 1
            hidden = torch.tensor([[*row[:place], mask, *row[place + 1 :]]])
            logits = model(hidden)[0, place].double()
            nats -= float(logits.log_softmax(dim=-1)[target])
            hits += int(logits.argmax()) == target
    score = score_pseudo(model, replace(held_out(prepared), sequences=sequences), CPU)
    assert score.tokens == scored
    assert score.nats == pytest.approx(nats, rel=1e-6)
    assert score.correct == hits
    assert score.as_dict("pseudo_perplexity")["pseudo_perplexity"] == pytest.approx(math.exp(nats / score.tokens))


def test_pseudo_perplexity_scores_a_last_partial_window(uneven: Prepared) -> None:
    vocabulary = uneven.tokenizer.vocab_size
    score = score_pseudo(lambda t: torch.zeros(*t.shape, vocabulary), held_out(uneven, length=2), CPU)
    assert (score.tokens, score.bytes) == (3, 9), "the separator at the end is seen but not scored"
    assert score.nats == pytest.approx(3 * math.log(vocabulary))


def test_masks_do_not_depend_on_the_batch_size(prepared: Prepared) -> None:
    model = small_model("bert", prepared.tokenizer.vocab_size)
    one, many = (score_masked(model, held_out(prepared, batch_size=size), CPU, 0.15) for size in (1, 50))
    assert (one.tokens, one.correct, one.bytes) == (many.tokens, many.correct, many.bytes)
    assert one.nats == pytest.approx(many.nats, rel=1e-6)
