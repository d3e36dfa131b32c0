"""Intervals cover what they claim, and chance alone is seldom taken for a difference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lockstep.errors import UserError
from lockstep.study.statistics import holm, over_documents, over_seeds

STUDIES = 4000
"""Of each kind; 95 % of them have a standard error of 0.34 %."""


def drawn(seeds: int, difference: float, draw: np.random.Generator) -> tuple[dict[int, float], dict[int, float]]:
    """Scores in which a seed's luck, far larger than the difference, is common to both contestants."""
    luck = draw.normal(3, 0.5, seeds)
    ours = luck + difference + draw.normal(0, 0.02, seeds)
    theirs = luck + draw.normal(0, 0.02, seeds)
    return dict(enumerate(ours)), dict(enumerate(theirs))


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_over_seeds_cover_the_truth(seeds: int) -> None:
    draw, covered = np.random.default_rng(seeds), 0
    for _ in range(STUDIES):
        found = over_seeds(*drawn(seeds, 0.05, draw))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.05 <= found.high
    assert 0.93 < covered / STUDIES < 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_without_a_difference_alarms_are_rare(seeds: int) -> None:
    """Three rivals against one baseline: any of them declared different is a false alarm."""
    draw, alarms = np.random.default_rng(seeds), 0
    for _ in range(STUDIES):
        p_values = []
        baseline = dict(enumerate(draw.normal(3, 0.02, seeds)))
        for _ in range(3):
            p = over_seeds(dict(enumerate(draw.normal(3, 0.02, seeds))), baseline).p
            assert p is not None
            p_values.append(p)
        alarms += min(holm(p_values)) < 0.05
    assert alarms / STUDIES < 0.055, "0.05 and the error of this measurement"


def test_a_pair_is_scipys_paired_test() -> None:
    ours, theirs = drawn(7, 0.01, np.random.default_rng(0))
    found = over_seeds(ours, theirs)
    expected = stats.ttest_rel(list(ours.values()), list(theirs.values()))
    assert found.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.separable == (expected.pvalue < 0.05)


def test_one_seed_has_an_effect_and_no_interval() -> None:
    found = over_seeds({0: 1.5}, {0: 1.0})
    assert (found.effect, found.low, found.high, found.p) == (0.5, None, None, None)
    assert not found.separable


def test_equal_runs_are_not_separable() -> None:
    same = dict.fromkeys(range(3), 1.25)
    found = over_seeds(same, same)
    assert (found.effect, found.p) == (0, 1)
    assert not found.separable


def test_other_seeds_cannot_be_paired() -> None:
    with pytest.raises(UserError, match=r"seeds \[0, 1\] cannot be paired with those of \[0, 2\]"):
        over_seeds({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})


def test_documents_count_for_their_length() -> None:
    draw, covered = np.random.default_rng(1), 0
    weights = draw.integers(50, 2000, 60).astype(np.float64)
    for _ in range(300):
        difference = 0.1 + draw.normal(0, 0.3, 60)
        found = over_documents(difference, np.zeros(60), weights)
        assert found.effect == pytest.approx(float((difference * weights).sum() / weights.sum()))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.1 <= found.high
    assert 0.90 < covered / 300 < 0.98


@pytest.mark.parametrize("count", [1, 4, 9])
def test_holm_lies_between_none_and_bonferroni(count: int) -> None:
    p_values = np.random.default_rng(count).uniform(0, 0.3, count).tolist()
    adjusted = holm(p_values)
    for p, larger in zip(p_values, adjusted, strict=True):
        assert p <= larger <= min(1.0, count * p) + 1e-12
    in_order = [adjusted[index] for index in np.argsort(p_values)]
    assert in_order == sorted(in_order)
    assert min(adjusted) == pytest.approx(min(1.0, count * min(p_values)))
