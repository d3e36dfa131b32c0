"""Checkpoint schedules in users' configuration files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.config.files import load_run, read_yaml
from lockstep.data.prepare import prepare
from lockstep.data.stream import TokenStream
from lockstep.errors import UserError
from lockstep.training.plan import make_plan
from lockstep.training.run_folder import flatten
from lockstep.training.schedule_file import read_schedule, write_schedule

DECIDE_STEPS = (
    "data.batch_size",
    "data.max_sequence_length",
    "data.task_sequences",
    "data.tasks",
    "data.training_corpus",
    "tokenizer.tokenizer_type",
    "tokenizer.vocab_size",
    "training.epochs",
    "training.gradient_accumulation_steps",
)


def generate_schedule(path: Path, overrides: Sequence[str]) -> tuple[int, ...]:
    """Work out a schedule from the corpus and the settings of a file, and write it into that file."""
    overrides = [*overrides, "training.checkpoint_schedule=[]", "training.auto_generate_checkpoints=true"]
    run = load_run(path, overrides)
    prepared = prepare(run.data, run.tokenizer)
    length = run.data.max_sequence_length
    stream = TokenStream(prepared.tokens("train"), length, run.effective_batch_size, run.seed_for_data)
    steps = make_plan(run, stream.windows).milestones
    write_schedule(path, steps)
    return steps


def sync_schedules(source: Path, targets: Sequence[Path]) -> tuple[tuple[int, ...], list[Path], list[str]]:
    """Give every target the schedule of `source`; nothing is written unless all of them can be read.

    A target need not be a whole run: a template or a shared training section takes a schedule too. Returned are the
    steps, the files that now have them (the source is not one), and what may keep a target from reaching them.
    """
    steps = read_schedule(source)
    if not steps:
        raise UserError(f"{source}: no training.checkpoint_schedule; run `lockstep schedule {source}` first")
    others = [target for target in targets if target.resolve() != source.resolve()]
    for target in others:
        read_schedule(target)
    for target in others:
        write_schedule(target, steps)
    return steps, others, [note for target in others for note in _other_lengths(source, target, steps[-1])]


def _other_lengths(source: Path, target: Path, last: int) -> list[str]:
    """What decides how many steps an epoch has, where it differs from the source's."""
    settings = [flatten(read_yaml(path)) for path in (source, target)]
    if "model.architecture" not in settings[1] or settings[1].get("training.train_steps"):
        return []
    differing = [key for key in DECIDE_STEPS if settings[0].get(key) != settings[1].get(key)]
    if not differing:
        return []
    return [
        f"{target} and {source} differ in {', '.join(differing)}, and so in the steps of an epoch;"
        f" training.train_steps: {last} in both makes them equally long"
    ]
