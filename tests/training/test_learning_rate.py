"""The learning rate: the schedules of torch where torch has them, the papers' formulas elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.training.learning_rate import Cooling, cooling_branches, learning_rate_at, warmup_length

PEAK = 3e-4


def spec(**fields: Any) -> TrainingSpec:
    return TrainingSpec(**{"learning_rate": PEAK, "warmup_steps": 0, **fields})


def rates(training: TrainingSpec, steps: int, cooling: Cooling | None = None) -> list[float]:
    last = steps if cooling is None else cooling.end
    return [learning_rate_at(step, training, steps, cooling) for step in range(last)]


def torch_rates(build: Callable[[torch.optim.Optimizer], LRScheduler], steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = build(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if len(seen) < steps:
            scheduler.step()
    return seen


def test_cosine_is_torchs_cosine() -> None:
    ours = rates(spec(schedule="cosine", min_learning_rate_ratio=0.1), 40)
    theirs = torch_rates(lambda one: CosineAnnealingLR(one, T_max=40, eta_min=0.1 * PEAK), 40)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_warm_up_then_cosine_is_torchs_lambda() -> None:
    def share(step: int) -> float:
        if step < 8:
            return (step + 1) / 8
        return 0.2 + 0.4 * (1 + math.cos(math.pi * (step - 8) / 32))

    ours = rates(spec(schedule="cosine", warmup_steps=8, min_learning_rate_ratio=0.2), 40)
    assert ours == pytest.approx(torch_rates(lambda one: LambdaLR(one, share), 40), rel=1e-12)


@pytest.mark.parametrize(("warmup", "steps"), [(2, 10), (30, 100), (9, 37), (99, 100), (0, 25)])
def test_one_cycle_is_torchs_one_cycle(warmup: int, steps: int) -> None:
    ours = rates(spec(schedule="one-cycle", warmup_steps=warmup), steps)
    theirs = torch_rates(
        # torch divides the initial rate, not the peak, by final_div_factor: 25 × 400 = 10 000.
        lambda one: OneCycleLR(
            one, PEAK, total_steps=steps, pct_start=warmup / steps, div_factor=25, final_div_factor=400
        ),
        steps,
    )
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_one_cycle_starts_peaks_and_ends_on_steps() -> None:
    seen = rates(spec(schedule="one-cycle", warmup_steps=30), 100)
    assert [seen[0], seen[29], seen[99]] == pytest.approx([PEAK / 25, PEAK, PEAK / 1e4])


def test_wsd_holds_and_then_decays_by_one_minus_the_root() -> None:
    seen = rates(spec(schedule="wsd", warmup_steps=10, decay_ratio=0.2), 100)
    assert seen[9:81] == [PEAK] * 72
    assert seen[80:] == pytest.approx([PEAK * (1 - math.sqrt(k / 20)) for k in range(20)])
    assert seen[-1] > 0


def test_wsd_without_decay_is_constant() -> None:
    assert rates(spec(schedule="wsd", decay_ratio=0), 10) == [PEAK] * 10


def test_a_decay_longer_than_the_trunk_starts_when_warm_up_ends() -> None:
    seen = rates(spec(schedule="wsd", warmup_steps=50, decay_ratio=0.9), 100)
    assert seen[:50] == pytest.approx([PEAK * (k + 1) / 50 for k in range(50)])
    assert seen[50:] == pytest.approx([PEAK * (1 - math.sqrt(k / 50)) for k in range(50)])


def test_polynomial_of_power_one_is_a_line_to_the_floor() -> None:
    seen = rates(spec(schedule="polynomial", min_learning_rate_ratio=0.5), 10)
    assert seen == pytest.approx([PEAK * (1 - 0.05 * k) for k in range(10)])
    squared = rates(spec(schedule="polynomial", min_learning_rate_ratio=0, polynomial_power=2), 10)
    assert squared == pytest.approx([PEAK * (1 - k / 10) ** 2 for k in range(10)])


def test_constant_stays_at_the_peak() -> None:
    assert rates(spec(schedule="constant", warmup_steps=4), 8) == pytest.approx(
        [PEAK / 4, PEAK / 2, PEAK * 0.75, PEAK, PEAK, PEAK, PEAK, PEAK]
    )


def test_warm_up_steps_win_over_the_ratio() -> None:
    assert warmup_length(TrainingSpec(warmup_steps=7, warmup_ratio=0.5), 100) == 7
    assert warmup_length(TrainingSpec(warmup_steps=0, warmup_ratio=0.5), 100) == 0
    assert warmup_length(TrainingSpec(warmup_ratio=0.5), 100) == 50


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_outside_the_run_has_no_rate(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is not one of 0 to 9"):
        learning_rate_at(step, spec(), 10)


SCHEDULES = st.sampled_from(["cosine", "wsd", "polynomial", "one-cycle", "constant"])


@settings(deadline=None)
@given(
    schedule=SCHEDULES,
    steps=st.integers(1, 300),
    warmup=st.integers(0, 320),
    floor=st.floats(0, 1),
    decay=st.floats(0, 1),
    power=st.floats(0.1, 4),
)
def test_every_rate_is_positive_and_at_most_the_peak(
    schedule: str, steps: int, warmup: int, floor: float, decay: float, power: float
) -> None:
    training = spec(
        schedule=schedule,
        warmup_steps=warmup,
        min_learning_rate_ratio=floor,
        decay_ratio=decay,
        polynomial_power=power,
    )
    seen = rates(training, steps)
    assert all(0 < rate <= PEAK * (1 + 1e-12) for rate in seen)
    top = min(warmup, steps)
    assert seen[:top] == sorted(seen[:top])
    assert seen[top:] == sorted(seen[top:], reverse=True)
    if 0 < warmup <= steps:
        assert seen[warmup - 1] == pytest.approx(PEAK)
    if warmup and schedule != "one-cycle":
        assert seen[0] == pytest.approx(PEAK / warmup)


@settings(deadline=None)
@given(schedule=st.sampled_from(["cosine", "wsd", "polynomial", "constant"]), warmup=st.integers(1, 100))
def test_warm_up_meets_what_follows_at_the_peak(schedule: str, warmup: int) -> None:
    seen = rates(spec(schedule=schedule, warmup_steps=warmup, decay_ratio=0.2), 200)
    assert seen[warmup - 1] == seen[warmup] == PEAK


@settings(deadline=None)
@given(share=st.floats(0.01, 0.99), steps=st.integers(20, 500), decay=st.floats(0.05, 0.9))
def test_a_branch_is_the_trunk_until_it_leaves(share: float, steps: int, decay: float) -> None:
    training = spec(schedule="wsd", warmup_steps=0, decay_ratio=decay, cooled_at=(share,))
    branches = cooling_branches(training, steps)
    assume(branches)
    [branch] = branches
    assert branch.end == max(1, round(share * steps))
    seen = rates(training, steps, branch)
    assert seen[: branch.start + 1] == [PEAK] * (branch.start + 1)
    length = branch.end - branch.start
    assert seen[branch.start :] == pytest.approx([PEAK * (1 - math.sqrt(k / length)) for k in range(length)])
    assert seen[-1] > 0


def test_branches_are_sorted_and_each_given_once() -> None:
    training = spec(schedule="wsd", decay_ratio=0.2, cooled_at=(0.5, 0.25, 0.501, 0.5))
    assert cooling_branches(training, 100) == (Cooling(20, 25), Cooling(40, 50))


def test_the_end_of_the_run_needs_no_branch() -> None:
    assert cooling_branches(spec(schedule="wsd", cooled_at=(0.999,)), 100) == ()
    whole, cut = spec(schedule="wsd", decay_ratio=0.3), Cooling(70, 100)
    assert rates(whole, 100) == rates(whole, 100, cut)


def test_a_branch_inside_warm_up_is_refused_with_both_numbers() -> None:
    training = spec(schedule="wsd", warmup_steps=30, decay_ratio=0.5, cooled_at=(0.5,))
    with pytest.raises(UserError, match=r"share 0\.5 .* at step 25, but warm-up lasts until step 30") as caught:
        cooling_branches(training, 100)
    assert "\n" not in str(caught.value)
