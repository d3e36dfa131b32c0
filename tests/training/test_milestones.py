"""When checkpoints are taken, and three ways in which the schedule that inspired ours went wrong."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.training.milestones import milestones


def at(steps: int, steps_per_epoch: float = 100, tokens_per_step: int = 10, **fields: Any) -> tuple[int, ...]:
    return milestones(TrainingSpec(**fields), steps, steps_per_epoch, tokens_per_step)


def test_without_a_schedule_only_the_last_step_is_kept() -> None:
    assert at(77) == (77,)


def test_listed_steps_gain_the_first_and_the_last() -> None:
    assert at(1526, checkpoint_schedule=(500, 100, 500)) == (1, 100, 500, 1526)


def test_listed_steps_keep_their_places_whatever_the_interval() -> None:
    assert at(50, checkpoint_schedule=(10, 11), min_checkpoint_interval=20) == (1, 10, 11, 50)


def test_a_list_wins_over_generated_steps() -> None:
    assert at(300, checkpoint_schedule=(7,), auto_generate_checkpoints=True) == (1, 7, 300)


def test_a_step_beyond_the_run_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match="step 5000 lies beyond the last step 1526") as caught:
        at(1526, checkpoint_schedule=(1000, 5000, 50000))
    assert str(caught.value).startswith("training.checkpoint_schedule: ")
    assert "\n" not in str(caught.value)


def test_the_last_listed_step_may_be_the_last_step() -> None:
    assert at(1526, checkpoint_schedule=(1526,)) == (1, 1526)


def test_the_first_epoch_is_divided_evenly() -> None:
    assert at(100, auto_generate_checkpoints=True, first_epoch_checkpoints=4) == (1, 25, 50, 75, 100)


def test_a_run_shorter_than_an_epoch_divides_what_it_has() -> None:
    assert at(40, steps_per_epoch=1e6, auto_generate_checkpoints=True, first_epoch_checkpoints=4) == (1, 10, 20, 30, 40)


def test_log_spacing_is_logarithmic_within_each_later_epoch() -> None:
    """The origin multiplied the absolute step: from the second epoch on its "log" spacing was even."""
    steps = at(300, auto_generate_checkpoints=True, first_epoch_checkpoints=1)
    offsets = (2, 3, 6, 12, 25, 50, 100)
    assert steps == (1, 100, *(100 + one for one in offsets), *(200 + one for one in offsets))


def test_the_interval_is_applied() -> None:
    """The origin read min_checkpoint_interval and never used it."""
    steps = at(300, auto_generate_checkpoints=True, first_epoch_checkpoints=20, min_checkpoint_interval=30)
    assert steps == (1, 35, 65, 95, 125, 200, 250, 300)


def test_the_last_step_is_kept() -> None:
    """The origin's loop ended before it could save its last scheduled step."""
    assert at(1526, steps_per_epoch=152.6, auto_generate_checkpoints=True)[-1] == 1526
    assert at(1499, checkpoint_schedule=(1000,))[-1] == 1499


def test_a_large_base_still_gives_the_minimum_per_epoch() -> None:
    steps = at(200, auto_generate_checkpoints=True, first_epoch_checkpoints=1, log_base=1000)
    assert steps == (1, 100, 101, 103, 110, 132, 200)


def test_linear_spacing_follows_its_interval() -> None:
    steps = at(
        310,
        auto_generate_checkpoints=True,
        first_epoch_checkpoints=2,
        subsequent_epochs_spacing="linear",
        linear_interval=60,
    )
    assert steps == (1, 50, 100, 160, 220, 280, 310)


def test_linear_spacing_without_an_interval_divides_each_epoch() -> None:
    steps = at(
        300,
        auto_generate_checkpoints=True,
        first_epoch_checkpoints=1,
        subsequent_epochs_spacing="linear",
        min_checkpoints_per_epoch=2,
    )
    assert steps == (1, 100, 150, 200, 250, 300)


def test_tokens_are_reached_at_the_first_step_that_has_them() -> None:
    assert at(10, tokens_per_step=10, checkpoint_every_tokens=25) == (1, 3, 5, 8, 10)
    assert at(4, tokens_per_step=10, checkpoint_every_tokens=3) == (1, 2, 3, 4)
    assert at(9, tokens_per_step=10, checkpoint_every_tokens=1000) == (1, 9)


def test_an_epoch_of_less_than_a_step_ends() -> None:
    assert at(5, steps_per_epoch=1e-9, auto_generate_checkpoints=True) == (1, 2, 3, 4, 5)


def test_a_run_of_one_step_has_one_checkpoint() -> None:
    assert at(1, auto_generate_checkpoints=True) == (1,)


STEPS = st.integers(1, 3000)
EPOCH = st.floats(0.5, 1500)
SPACING = st.sampled_from(["log", "linear"])


@settings(deadline=None)
@given(steps=STEPS, epoch=EPOCH, spacing=SPACING, interval=st.integers(1, 200), tokens=st.none() | st.integers(1, 9999))
def test_generated_milestones_are_ordered_bounded_and_apart(
    steps: int, epoch: float, spacing: str, interval: int, tokens: int | None
) -> None:
    found = at(
        steps,
        epoch,
        auto_generate_checkpoints=True,
        subsequent_epochs_spacing=spacing,
        min_checkpoint_interval=interval,
        checkpoint_every_tokens=tokens,
    )
    assert found[0] == 1
    assert found[-1] == steps
    gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert all(gap > 0 for gap in gaps)
    assert len(found) == 2 or all(gap >= interval for gap in gaps)


@settings(deadline=None)
@given(
    epochs=st.integers(2, 6),
    length=st.integers(1, 500),
    spacing=SPACING,
    base=st.floats(1.1, 1000),
    least=st.integers(1, 12),
)
def test_every_later_epoch_has_its_minimum_and_its_end(
    epochs: int, length: int, spacing: str, base: float, least: int
) -> None:
    found = at(
        epochs * length,
        length,
        auto_generate_checkpoints=True,
        subsequent_epochs_spacing=spacing,
        log_base=base,
        min_checkpoints_per_epoch=least,
    )
    for epoch in range(1, epochs):
        inside = [step for step in found if epoch * length < step <= (epoch + 1) * length]
        assert len(inside) >= min(least, length)
        assert inside[-1] == (epoch + 1) * length


@settings(deadline=None)
@given(length=st.integers(64, 5000), base=st.floats(1.5, 4), epoch=st.integers(1, 4))
def test_log_offsets_grow_by_the_base(length: int, base: float, epoch: int) -> None:
    found = at(5 * length, length, auto_generate_checkpoints=True, log_base=base, min_checkpoints_per_epoch=1)
    start = epoch * length
    offsets = [step - start for step in found if start < step <= start + length]
    for smaller, larger in itertools.pairwise(offsets):
        # Each is rounded to a whole step.
        assert abs(larger - base * smaller) <= (base + 1) / 2 + 1e-6
