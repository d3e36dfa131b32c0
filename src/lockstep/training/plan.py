"""What a run will do, in numbers, before anything is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.config.run import RunSpec
from lockstep.errors import UserError
from lockstep.training.learning_rate import Cooling, cooling_branches
from lockstep.training.milestones import milestones

MOST_STEPS = 2**40
MOST_TOKENS_PER_STEP = 2**32
MOST_CHECKPOINTS = 100_000
"""Beyond these a number is a slip of the pen, and working it out would take for ever."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, tokens and the points at which checkpoints are taken."""

    steps: int
    steps_per_epoch: float
    tokens_per_step: int
    milestones: tuple[int, ...]
    """Completed steps after which a scheduled checkpoint is taken; the last step is always among them."""
    branches: tuple[Cooling, ...]
    """Decay branches off the trunk, one per cooled point before the end."""

    def epoch(self, step: int) -> int:
        """The epoch (counted from 0) that step number `step` (counted from 1) begins in."""
        return int(max(step - 1, 0) / self.steps_per_epoch)


def make_plan(run: RunSpec, windows: int, world_size: int = 1) -> Plan:
    """The plan of a run over a corpus of `windows` sequences, or one line that says which numbers disagree."""
    batch_size = run.data.batch_size
    if batch_size % world_size:
        raise UserError(f"data.batch_size {batch_size} is not divisible by the {world_size} processes that share it")
    steps_per_epoch = windows / run.effective_batch_size
    steps = run.training.train_steps or steps_of_epochs(run, windows)
    check_size(run, steps, steps_per_epoch)
    branches = cooling_branches(run.training, steps)
    scheduled = milestones(run.training, steps, steps_per_epoch, run.tokens_per_step)
    # A branch starts from a checkpoint of the trunk.
    starts = {branch.start for branch in branches if branch.start > 0}
    return Plan(steps, steps_per_epoch, run.tokens_per_step, tuple(sorted({*scheduled, *starts})), branches)


def steps_of_epochs(run: RunSpec, windows: int) -> int:
    """How many whole steps the epochs fill."""
    # Clamped before it is divided: infinity // n is not a number.
    filled = min(run.training.epochs * windows, 2.0**63 * MOST_STEPS) // run.effective_batch_size
    if filled < 1:
        raise UserError(
            f"training.epochs: {run.training.epochs:g} epochs of {windows} sequences do not fill one step of"
            f" {run.effective_batch_size} sequences (batch_size × gradient_accumulation_steps)"
        )
    return int(filled)


def check_size(run: RunSpec, steps: int, steps_per_epoch: float) -> None:
    """Numbers that no run can have are refused before anything is computed from them."""
    if steps > MOST_STEPS:
        raise UserError(
            f"training.train_steps (or training.epochs): {steps:,} steps are no run; {MOST_STEPS:,} are the most"
        )
    if run.tokens_per_step > MOST_TOKENS_PER_STEP:
        raise UserError(
            f"data.batch_size × gradient_accumulation_steps × max_sequence_length is {run.tokens_per_step:,} tokens"
            f" per step; {MOST_TOKENS_PER_STEP:,} are the most"
        )
    checkpoints = most_checkpoints(run, steps, steps_per_epoch)
    if checkpoints > MOST_CHECKPOINTS:
        raise UserError(
            f"training: the checkpoint schedule asks for up to {round(checkpoints):,} checkpoints in {steps:,}"
            f" steps; {MOST_CHECKPOINTS:,} are the most"
        )


def most_checkpoints(run: RunSpec, steps: int, steps_per_epoch: float) -> float:
    """An upper bound on the generated checkpoints."""
    training, count = run.training, 0.0
    if training.checkpoint_every_tokens is not None:
        count += steps * min(1.0, run.tokens_per_step / training.checkpoint_every_tokens)
    if training.auto_generate_checkpoints and not training.checkpoint_schedule:
        in_epoch = min(steps, max(1.0, steps_per_epoch))
        by_log = math.log(in_epoch) / math.log(training.log_base) + 1
        later = max(by_log, training.min_checkpoints_per_epoch)
        if training.linear_interval is not None:
            later = in_epoch / training.linear_interval
        count += min(in_epoch, training.first_epoch_checkpoints) + steps / in_epoch * min(in_epoch, later)
    return count
