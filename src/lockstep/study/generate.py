"""Continuing a text with a run's model."""

from __future__ import annotations

from pathlib import Path

from lockstep.config.files import load_run
from lockstep.data.prepared import TOKENIZER
from lockstep.data.tokenizers import load_tokenizer
from lockstep.evaluation.samples import continue_text
from lockstep.models.sampling import Sampling
from lockstep.training.checkpoint import load, resolve_checkpoint
from lockstep.training.context import check_same_code
from lockstep.training.distribution import World, find_device


def continue_from(path: Path, prompt: str, tokens: int, sampling: Sampling) -> str:
    """The continuation that the newest checkpoint of a run folder, or one checkpoint, gives to `prompt`."""
    checkpoint = resolve_checkpoint(path)
    run = load_run(checkpoint.folder.parent / "config.yaml")
    tokenizer = load_tokenizer(checkpoint.folder.parent / TOKENIZER)
    check_same_code(checkpoint, run.model.architecture)
    model = load(checkpoint.folder).to(find_device(run.training.device, World()))
    return continue_text(model, tokenizer, prompt, tokens, sampling)
