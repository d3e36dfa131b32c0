"""A saved model is the same model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model

from lockstep.laws.comparison import gap
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject


def save_and_load(subject: Subject) -> None:
    """Through a file into a model built with another seed: whatever is not in the file would differ."""
    model, other = subject.model(seed=0), subject.model(seed=1)
    tokens = subject.tokens(2, LENGTH)
    expected = model(tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(model, str(path))
        load_model(other, path)
    logits = other(tokens)
    if not torch.equal(logits, expected):
        raise LawBroken(
            f"logits after loading differ by {float(gap(logits, expected).amax()):.1e}, not bit for bit equal"
        )
