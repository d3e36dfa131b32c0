"""Continuing a text with a run's model."""

from __future__ import annotations

from pathlib import Path

from lockstep.config.files import load_run
from lockstep.evaluation.samples import continue_text
from lockstep.models.sampling import Sampling
from lockstep.study.evaluate import open_same_corpus
from lockstep.training.checkpoint import load, resolve_checkpoint
from lockstep.training.distribution import World, find_device


def continue_from(path: Path, prompt: str, tokens: int, sampling: Sampling) -> str:
    """The continuation that the newest checkpoint of a run folder, or one checkpoint, gives to `prompt`."""
    is_checkpoint = (path / "metadata.json").exists()
    checkpoint = resolve_checkpoint(path.parent if is_checkpoint else path, path.name if is_checkpoint else None)
    run = load_run(checkpoint.folder.parent / "config.yaml")
    tokenizer = open_same_corpus(run, checkpoint).tokenizer
    model = load(checkpoint.folder).to(find_device(run.training.device, World()))
    return continue_text(model, tokenizer, prompt, tokens, sampling)
