"""One run: trunk and decay branches, resumed by itself from the newest sound checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator
from pathlib import Path

import torch

from lockstep.config.run import RunSpec
from lockstep.errors import UserError
from lockstep.progress import showing
from lockstep.training.checkpoint import DamagedCheckpoint, checkpoint_steps, open_checkpoint
from lockstep.training.context import Context, make_context
from lockstep.training.distribution import join_world
from lockstep.training.loop import Trainer
from lockstep.training.run_folder import locked, store_config, store_tokenizer, sweep
from lockstep.training.stopping import StopRequest, listening


def train(run: RunSpec, folder: Path) -> Context:
    """Train to the last step of the plan, whatever was already done in `folder`."""
    with join_world(run.training.device) as world:
        context = make_context(run, folder, world)
        torch.set_float32_matmul_precision("high" if run.training.use_tf32 else "highest")
        with locked(folder) if world.is_main else contextlib.nullcontext(), listening(world.size == 1) as request:
            _refuse_if_asked(run, folder)
            _train_in(context, request)
            for branch in context.plan.branches:
                below = folder / f"cooled-{branch.end}"
                _train_in(dataclasses.replace(context, folder=below, cooling=branch), request)
        return context


def _train_in(context: Context, request: StopRequest) -> None:
    """Train the trunk, or a branch of it, in the context's folder."""
    trunk, branch = None, context.cooling
    if context.world.is_main:
        with _disk_errors(context.folder):
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
    with _disk_errors(context.folder):
        trainer = Trainer(context, trunk)
        tokens = context.plan.tokens_per_step
        steps, done, visible = trainer.last_step, trainer.ledger.step, context.world.is_main
        with showing(context.name, "steps", steps, done, tokens, visible) as progress:
            trainer.run(request, progress)


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
