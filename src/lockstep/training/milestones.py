"""When scheduled checkpoints are taken: the same steps for every architecture that trains on the same budget."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError


def milestones(training: TrainingSpec, steps: int, steps_per_epoch: float, tokens_per_step: int) -> tuple[int, ...]:
    """The numbers of completed steps after which a checkpoint is kept, in order, each once.

    The last step is always one of them; so is the first as soon as any schedule is asked for. Steps that a
    user lists are taken as they are. Generated ones keep `min_checkpoint_interval` from every other milestone,
    even where an epoch is then left with fewer than `min_checkpoints_per_epoch`: the interval wins.
    """
    listed = training.checkpoint_schedule
    beyond = [step for step in listed if step > steps]
    if beyond:
        raise UserError(
            f"training.checkpoint_schedule: step {beyond[0]} lies beyond the last step {steps};"
            " remove it, or train longer (training.train_steps or training.epochs)"
        )
    generated: set[int] = set()
    if training.auto_generate_checkpoints and not listed:
        generated.update(_by_epoch(training, steps, steps_per_epoch))
    if training.checkpoint_every_tokens is not None:
        generated.update(_by_tokens(training.checkpoint_every_tokens, steps, tokens_per_step))
    if not (listed or training.auto_generate_checkpoints or training.checkpoint_every_tokens):
        return (steps,)
    return _thinned(generated, {1, *listed, steps}, training.min_checkpoint_interval)


def _by_epoch(training: TrainingSpec, steps: int, steps_per_epoch: float) -> Iterator[int]:
    epochs = _epochs(steps, steps_per_epoch)
    _, first_end = next(epochs)
    yield from _evenly(0, first_end, training.first_epoch_checkpoints)
    if training.linear_interval is not None:
        yield from range(first_end + training.linear_interval, steps + 1, training.linear_interval)
        return
    for start, end in epochs:
        if training.subsequent_epochs_spacing == "linear":
            yield from _evenly(start, end, training.min_checkpoints_per_epoch)
        else:
            yield from _logarithmically(start, end, training.log_base, training.min_checkpoints_per_epoch)


def _epochs(steps: int, steps_per_epoch: float) -> Iterator[tuple[int, int]]:
    """Each epoch as the completed steps at its start and at its end; the budget may cut the last one short."""
    # An epoch of less than a step has no inside: then each step counts as an epoch.
    length = max(1.0, steps_per_epoch)
    epoch, start = 1, 0
    while start < steps:
        end = min(steps, round(epoch * length))
        if end > start:
            yield start, end
        epoch, start = epoch + 1, end


def _evenly(start: int, end: int, count: int) -> list[int]:
    """`count` steps at equal distances, the last of them `end`; every step where there are fewer than that."""
    count = min(count, end - start)
    return [start + round((end - start) * (i + 1) / count) for i in range(count)]


def _logarithmically(start: int, end: int, base: float, at_least: int) -> list[int]:
    """Steps whose distance from `start`, not from step 0, grows by the factor `base`, the last of them `end`."""
    length = end - start
    offsets = set()
    offset = float(length)
    while offset >= 1:
        offsets.add(round(offset))
        offset /= base
    if len(offsets) < min(at_least, length):
        offsets = set(_geometric(length, min(at_least, length)))
    return [start + offset for offset in sorted(offsets)]


def _geometric(length: int, count: int) -> Iterator[int]:
    """`count` different whole numbers, growing from 1 to `length` by a constant factor as nearly as they can."""
    previous = 0
    for i in range(count):
        ideal = length ** (i / (count - 1)) if count > 1 else length
        room = length - (count - 1 - i)
        previous = min(max(round(ideal), previous + 1), room)
        yield previous


def _by_tokens(every: int, steps: int, tokens_per_step: int) -> Iterable[int]:
    """The first step that has reached each multiple of `every` tokens."""
    if every <= tokens_per_step:
        return range(1, steps + 1)
    multiples = range(every, steps * tokens_per_step + 1, every)
    return (-(-tokens // tokens_per_step) for tokens in multiples)


def _thinned(generated: set[int], fixed: set[int], interval: int) -> tuple[int, ...]:
    """`fixed`, and those of `generated` that come no nearer than `interval` to what is kept."""
    anchors = sorted(fixed)
    kept: set[int] = set(anchors)
    previous = 0
    for step in sorted(generated - fixed):
        place = bisect.bisect(anchors, step)
        before = max(previous, anchors[place - 1])
        if step - before >= interval and anchors[place] - step >= interval:
            kept.add(step)
            previous = step
    return tuple(sorted(kept))
