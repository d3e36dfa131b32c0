"""Breakdowns of a score against plain loops; each adds up to the score."""

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
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.corpus import Corpus
from lockstep.data.prepare import Prepared, open_prepared, prepare, write_prepared
from lockstep.evaluation.detail import Bucket, Ends, joined, repeat_distances, repeated_tokens, score_in_detail
from lockstep.evaluation.language import HeldOut, score_causal

CPU = torch.device("cpu")
LENGTH, BATCH = 24, 3
DOCUMENTS = ["abcabcabc abcabcabc", "b", "zażółć gęślą jaźń", "ab" * 40, "the cat sees the dog, the cat hears"]


@pytest.fixture(scope="module")
def prepared(tiny_corpus: Path) -> Prepared:
    """One long document."""
    return prepare(DataSpec(training_corpus=str(tiny_corpus)), TokenizerSpec())


def predict(tokens: Tensor) -> Tensor:
    """Logits that differ from token to token and depend on the one before."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(300, 300, generator=generator)
    return table[tokens][..., :258] + torch.linspace(0, 1, tokens.shape[1])[:, None]


def nats_of(windows: list[list[int]]) -> list[list[float]]:
    """Of each target, from plain softmax."""
    losses = []
    for window in windows:
        logits = predict(torch.tensor([window[:-1]]))[0].double().log_softmax(dim=-1)
        losses.append([-float(logits[place, target]) for place, target in enumerate(window[1:])])
    return losses


def windows_of(data: HeldOut) -> list[list[int]]:
    return [row for windows, _, _ in data.read() for row in windows.tolist()]


def bucket_of(number: int, longest: int) -> Ends:
    """By doubling; 0 stands for none."""
    if not number:
        return None, None
    last = 1
    while last < number:
        last *= 2
    return last // 2 + 1 if last > 1 else 1, min(last, longest)


def distance_by_hand(window: list[int], place: int, ngram: int) -> int:
    """Of the n-gram that ends at `place`; 0 where it is new."""
    if place - ngram + 1 < 0:
        return 0
    wanted = window[place - ngram + 1 : place + 1]
    for earlier in range(place - 1, ngram - 2, -1):
        if window[earlier - ngram + 1 : earlier + 1] == wanted:
            return place - earlier
    return 0


@pytest.mark.parametrize("ngram", [2, 3, 5, 8, 40])
@pytest.mark.parametrize("vocabulary", [2, 4, 60000])
def test_distances_are_those_of_a_double_loop(ngram: int, vocabulary: int) -> None:
    windows = np.random.default_rng(ngram).integers(vocabulary, size=(4, 33))
    by_hand = [[distance_by_hand(row, place, ngram) for place in range(1, 33)] for row in windows.tolist()]
    assert repeat_distances(windows, ngram).tolist() == by_hand
    assert vocabulary > 4 or ngram > 3 or np.any(by_hand), "nothing was repeated: the test would be empty"


def test_a_repetition_may_overlap_itself_but_not_cross_rows() -> None:
    windows = np.array([[7, 7, 7, 7, 7], [7, 7, 8, 7, 7]])
    assert repeat_distances(windows, 2).tolist() == [[0, 1, 1, 1], [0, 0, 0, 3]]


@pytest.mark.parametrize("length", [LENGTH, 23, 150])
def test_every_breakdown_is_that_of_plain_loops(prepared: Prepared, length: int) -> None:
    data = HeldOut(prepared, "valid", length, BATCH)
    found, windows = score_in_detail(predict, data, CPU), windows_of(data)
    assert found.score == score_causal(predict, data, CPU)
    assert found.ngram == 8
    positions: dict[Ends, list[float]] = {}
    repeats: dict[Ends, list[float]] = {}
    for window, losses in zip(windows, nats_of(windows), strict=True):
        for place, loss in enumerate(losses, start=1):
            positions.setdefault(bucket_of(place, length), []).append(loss)
            distance = distance_by_hand(window, place, found.ngram)
            repeats.setdefault(bucket_of(distance, length), []).append(loss)
    for buckets, expected in ((found.positions, positions), (found.repeats, repeats)):
        assert {(one.first, one.last): one.tokens for one in buckets} == {k: len(v) for k, v in expected.items()}
        for one in buckets:
            assert one.nats == pytest.approx(sum(expected[one.first, one.last]), rel=1e-6)


@pytest.mark.parametrize("sequences", [None, 5])
def test_every_breakdown_adds_up(prepared: Prepared, sequences: int | None) -> None:
    data = replace(HeldOut(prepared, "valid", LENGTH, BATCH), sequences=sequences)
    found = score_in_detail(predict, data, CPU)
    for buckets in (found.positions, found.repeats):
        assert sum(one.tokens for one in buckets) == found.score.tokens
        assert sum(one.nats for one in buckets) == pytest.approx(found.score.nats, rel=1e-12)
        assert all(one.tokens for one in buckets)
    assert found.documents.nats.sum() == pytest.approx(found.score.nats, rel=1e-12)
    assert (found.documents.tokens.sum(), found.documents.bytes.sum()) == (found.score.tokens, found.score.bytes)


@pytest.fixture(scope="module", params=[None, 0, 4], ids=["as written", "empty first", "empty later"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Documents of known text; one place may be made a separator, so that a document is empty."""
    folder, tokenizer = tmp_path_factory.mktemp("documents"), ByteTokenizer()
    corpus = Corpus("documents", "known text", lambda split: iter([text.encode() for text in DOCUMENTS]))
    write_prepared(folder, corpus, tokenizer, None)
    found = open_prepared(folder)
    if request.param is not None:
        tokens = np.array(found.tokens("test"))
        tokens[request.param : request.param + 2] = tokenizer.eos_id
        (folder / "test.bin").write_bytes(tokens.tobytes())
    return found


@pytest.mark.parametrize("length", [1, 7, 24, 500])
def test_documents_are_counted_one_by_one(written: Prepared, length: int) -> None:
    data = HeldOut(written, "test", length, BATCH)
    tokens, eos = written.tokens("test").tolist(), written.tokenizer.eos_id
    found = score_in_detail(predict, data, CPU).documents
    losses = [0.0, *(loss for row in nats_of(windows_of(data)) for loss in row)]
    nats, counts, sizes, start = [], [], [], 0
    lengths = written.byte_lengths("test", np.arange(len(tokens))).tolist()
    while start < len(tokens):
        end = tokens.index(eos, start) + 1
        scored = range(max(start, 1), end)
        nats.append(sum(losses[place] for place in scored))
        counts.append(len(scored))
        sizes.append(sum(lengths[place] for place in scored))
        start = end
    assert len(nats) > 3
    assert found.tokens.tolist() == counts
    assert found.bytes.tolist() == sizes
    assert found.nats.tolist() == pytest.approx(nats, rel=1e-6)


def test_an_ngram_stands_for_eight_bytes(prepared: Prepared) -> None:
    facts = prepared.manifest.splits["valid"]
    for bytes_per_token, expected in ((1, 8), (2, 4), (2.7, 3), (3.5, 2), (5, 2), (9, 2)):
        changed = facts.model_copy(update={"bytes": int(facts.tokens * bytes_per_token)})
        manifest = prepared.manifest.model_copy(update={"splits": {"valid": changed}})
        assert repeated_tokens(Prepared(prepared.folder, manifest, prepared.tokenizer), "valid") == expected


def test_joining_adds_tokens_and_nats(prepared: Prepared) -> None:
    data = HeldOut(prepared, "valid", LENGTH, BATCH)
    one, two = (score_in_detail(predict, replace(data, sequences=count), CPU) for count in (4, 9))
    both = joined([one.repeats, two.repeats])
    assert both[0].first is None
    assert [bucket.first for bucket in both[1:]] == sorted(bucket.first or 0 for bucket in both[1:])
    assert sum(bucket.tokens for bucket in both) == one.score.tokens + two.score.tokens
    assert math.fsum(bucket.nats for bucket in both) == pytest.approx(one.score.nats + two.score.nats)
    assert joined([[Bucket(1, 1, 2, 3.0)], [Bucket(1, 1, 4, 6.0)]])[0].as_dict() == {
        "first": 1,
        "last": 1,
        "tokens": 6,
        "loss": 1.5,
    }
