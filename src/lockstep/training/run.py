"""Runs, alone or side by side: trunk and decay branches, resumed from the newest sound checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lockstep.config.run import RunSpec
from lockstep.errors import UserError
from lockstep.kernels.record import recorded_in
from lockstep.progress import Board, showing_runs
from lockstep.training.checkpoint import DamagedCheckpoint, checkpoint_steps, open_checkpoint
from lockstep.training.context import Context, make_context
from lockstep.training.distribution import join_world
from lockstep.training.learning_rate import Cooling
from lockstep.training.loop import Trainer
from lockstep.training.run_folder import locked, store_config, store_tokenizer, sweep
from lockstep.training.stopping import Diverged, Interrupted, StopRequest, listening


def train(run: RunSpec, folder: Path) -> Context:
    """Train to the last step of the plan, whatever was already done in `folder`."""
    (context,), stopped = train_side_by_side([(run, folder)])
    if stopped:
        raise stopped[folder]
    return context


def train_side_by_side(runs: Sequence[tuple[RunSpec, Path]]) -> tuple[list[Context], dict[Path, Diverged]]:
    """Train all runs in one process, each a few steps at a time; every one of them ends as if it had been alone.

    One that diverges leaves the others to go on: returned are also those that did, by folder.
    """
    first, _ = runs[0]
    with join_world(first.training.device) as world, contextlib.ExitStack() as held:
        contexts = [make_context(run, folder, world) for run, folder in runs]
        for run, folder in runs if world.is_main else ():
            held.enter_context(locked(folder))
            _refuse_if_asked(run, folder)
        request = held.enter_context(listening(world.size == 1))
        stopped = _train_in_turns(contexts, request)
        for number in range(max(len(context.plan.branches) for context in contexts)):
            going = [one for one in contexts if one.folder not in stopped and number < len(one.plan.branches)]
            branches = [_branch(context, context.plan.branches[number]) for context in going]
            stopped |= {folder.parent: why for folder, why in _train_in_turns(branches, request).items()}
        return contexts, stopped


def _branch(context: Context, cooling: Cooling) -> Context:
    return dataclasses.replace(context, folder=context.folder / f"cooled-{cooling.end}", cooling=cooling)


def _train_in_turns(contexts: Sequence[Context], request: StopRequest) -> dict[Path, Diverged]:
    """Train trunks, or branches of them, each in its context's folder; those that diverged, by folder."""
    stopped: dict[Path, Diverged] = {}
    interrupted: Interrupted | None = None
    if not contexts:
        return stopped  # all trunks diverged, and have no branches
    with contextlib.ExitStack() as opened:
        trainers = []
        for context in contexts:
            with _disk_errors(context.folder):
                trainers.append(_open(context))
            opened.callback(trainers[-1].close)
        board = opened.enter_context(_board(trainers))
        going = [(place, trainer) for place, trainer in enumerate(trainers) if not trainer.done]
        while going and interrupted is None:
            for place, trainer in going:
                try:
                    with _disk_errors(trainer.context.folder), recorded_in(trainer.ran):
                        trainer.advance(request)
                except Diverged as diverged:
                    stopped[trainer.context.folder] = diverged
                except Interrupted as asked:
                    interrupted = asked  # the others stop too, each after a step and a checkpoint of its own
                recorder = trainer.recorder
                board.reach(place, trainer.ledger.step, recorder.latest_loss, recorder.latest_rate)
            going = [(n, one) for n, one in going if not one.done and one.context.folder not in stopped]
    if interrupted is not None:
        raise interrupted
    return stopped


def _open(context: Context) -> Trainer:
    """The trainer of a trunk, or of a branch of one, where its folder stands."""
    trunk, branch = None, context.cooling
    if context.world.is_main:
        context.folder.mkdir(parents=True, exist_ok=True)
        store_config(context.folder, context.resolved)
        store_tokenizer(context.folder, context.prepared.tokenizer)
        sweep(context.folder)
    if branch is not None and branch.start > 0:
        source = context.folder.parent / f"checkpoint-{branch.start}"
        try:
            trunk = open_checkpoint(source)
        except DamagedCheckpoint as damage:
            raise UserError(f"{source}: the cooled point needs it, but it is damaged: {damage}") from None
    return Trainer(context, trunk)


def _board(trainers: Sequence[Trainer]) -> contextlib.AbstractContextManager[Board]:
    names = [trainer.context.name for trainer in trainers]
    done = [trainer.ledger.step for trainer in trainers]
    return showing_runs(names, trainers[0].last_step, done, trainers[0].context.world.is_main)


def _refuse_if_asked(run: RunSpec, folder: Path) -> None:
    if run.training.resume_from_checkpoint is False and checkpoint_steps(folder):
        raise UserError(
            f"training.resume_from_checkpoint is false, but {folder} already holds checkpoints;"
            " use another --output-dir"
        )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """A disk that is full, or a device that is out of memory, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            raise UserError(f"{folder}: {error.strerror}; earlier checkpoints are intact") from None
        raise
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
            raise UserError(
                "out of memory; lower data.batch_size and raise training.gradient_accumulation_steps to match,"
                " or make the model smaller"
            ) from None
        raise
