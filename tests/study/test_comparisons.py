"""The verdict's numbers: what chance alone brings about, and what a real difference looks like."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from lockstep.report.results import Comparison, Score
from lockstep.study.comparisons import PRIMARY, DocumentSums, Scored, compare_all

STUDIES = 1000
MANY = 200_000
"""Studies, where the standard error of a rate near 5 % must be far below what is asserted."""


def score(bits: float) -> Score:
    loss = bits * math.log(2)
    return Score(loss=loss, perplexity=math.exp(loss), bits_per_byte=bits, accuracy=0.5, tokens=1000, bytes=1000)


def studied(seeds: int, means: dict[str, float], draw: np.random.Generator, noise: float = 0.02) -> list[Comparison]:
    """One study of contestants with known means: the luck of a data seed is common to all of them."""
    luck = draw.normal(0, 0.3, seeds)
    contestants = [
        Scored(name, {seed: score(3 + mean + luck[seed] + draw.normal(0, noise)) for seed in range(seeds)})
        for name, mean in means.items()
    ]
    return compare_all({1.0: contestants}, next(iter(means)))


def primary(found: list[Comparison]) -> list[Comparison]:
    return [one for one in found if one.metric == PRIMARY and one.share == 1]


def any_alarm(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The verdict's rule for very many studies at once, scores [studies, contestants, seeds].

    Holm's first step decides whether anything at all is called a difference.
    """
    seeds, smallest = scores.shape[2], np.ones(len(scores))
    pairs = list(itertools.combinations(range(scores.shape[1]), 2))
    for one, other in pairs:
        difference = scores[:, one] - scores[:, other]
        t = difference.mean(axis=1) / (difference.std(axis=1, ddof=1) / math.sqrt(seeds))
        smallest = np.minimum(smallest, 2 * stats.t.sf(np.abs(t), seeds - 1))
    return np.asarray(len(pairs) * smallest < 0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_where_there_is_no_difference_a_verdict_is_rare(seeds: int) -> None:
    """Four contestants that are alike: any pair called separable is a false alarm of the study."""
    draw = np.random.default_rng(seeds)
    assert any_alarm(draw.normal(size=(MANY, 4, seeds))).mean() < 0.05


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_verdicts_follow_that_rule(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    scores = 3 + draw.normal(0, 0.1, (200, 4, seeds)) * draw.choice([0.1, 1, 10], (200, 4, 1))
    for alarm, study in zip(any_alarm(scores), scores, strict=True):
        contestants = [Scored(name, dict(enumerate(map(score, row)))) for name, row in zip("abcd", study, strict=True)]
        assert any(one.separable for one in primary(compare_all({1.0: contestants}, "a"))) == alarm


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_known_differences(seeds: int) -> None:
    draw, means, covered, count = np.random.default_rng(seeds), {"a": 0.0, "b": 0.05, "c": -0.1}, 0, 0
    for _ in range(STUDIES):
        for one in primary(studied(seeds, means, draw)):
            assert one.low is not None
            assert one.high is not None
            covered += one.low <= means[one.contestant] - means[one.baseline] <= one.high
            count += 1
    assert 0.93 < covered / count < 0.97


def test_a_large_difference_is_found() -> None:
    found = primary(studied(5, {"a": 0.0, "b": 1.0, "c": 1.0}, np.random.default_rng(0)))
    by_pair = {(one.contestant, one.baseline): one for one in found}
    assert by_pair["b", "a"].separable
    assert by_pair["c", "a"].separable
    assert not by_pair["b", "c"].separable
    assert by_pair["b", "a"].effect == pytest.approx(1, abs=0.1)


def test_only_the_chosen_metric_at_the_end_is_corrected() -> None:
    draw = np.random.default_rng(1)
    one, other = (Scored(name, {s: score(3 + draw.normal()) for s in range(3)}) for name in "ab")
    for found in compare_all({0.5: [one, other], 1.0: [one, other]}, "a"):
        corrected = found.metric == PRIMARY and found.share == 1
        assert (found.p_adjusted is not None) == corrected
        assert (found.contestant, found.baseline) == ("b", "a")


def documents(draw: np.random.Generator, shift: float) -> DocumentSums:
    tokens = np.full(50, 100.0)
    return DocumentSums((3 + shift + draw.normal(0, 0.1, 50)) * tokens, tokens, 2 * tokens)


def test_one_repeat_is_compared_over_its_documents() -> None:
    draw = np.random.default_rng(2)
    sums = [documents(draw, 0.0), documents(draw, 0.5)]
    scored = []
    for name, one in zip("ab", sums, strict=True):
        bits = one.nats.sum() / math.log(2) / one.bytes.sum()
        scored.append(Scored(name, {0: score(bits)}, one))
    (found,) = primary(compare_all({1.0: scored}, "a"))
    assert (found.kind, found.samples) == ("documents", 50)
    exact = (sums[1].nats.sum() - sums[0].nats.sum()) / math.log(2) / sums[0].bytes.sum()
    assert found.effect == pytest.approx(exact)
    assert found.separable


def test_without_documents_one_repeat_has_no_interval() -> None:
    (found,) = primary(compare_all({1.0: [Scored("a", {0: score(3)}), Scored("b", {0: score(2)})]}, "a"))
    assert (found.effect, found.low, found.p, found.separable) == (-1, None, None, False)


def test_only_common_repeats_are_paired() -> None:
    ours, theirs = Scored("b", {0: score(2), 1: score(2.5)}), Scored("a", {1: score(3), 2: score(9)})
    (found,) = primary(compare_all({1.0: [theirs, ours]}, "a"))
    assert (found.effect, found.samples) == (-0.5, 1)
    assert compare_all({1.0: [Scored("b", {0: score(2)}), Scored("a", {1: score(3)})]}, "a") == []
