"""Every architecture is built alike: the same four fields, the same seed giving the same model."""

from __future__ import annotations

import torch

from lockstep.config.spec import validate
from lockstep.laws.comparison import shape
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import Subject


def common_fields(subject: Subject) -> None:
    """vocab_size, dim, depth and heads are enough, and are what the model then has."""
    fields = {"vocab_size": 23, "dim": 32, "depth": 3, "heads": 4}
    spec = validate(subject.kind, fields, subject.name)
    model = spec.build().eval()
    logits = model(subject.tokens(2, 5))
    if shape(logits) != "2×5×23":
        raise LawBroken(f"logits for 2×5 tokens of 23 are {shape(logits)}")
    blocks, width = len(list(model.layers)), model.embedding.embedding_dim
    if (blocks, width) != (3, 32):
        raise LawBroken(f"depth 3 and dim 32 gave {blocks} blocks of {width}")
    if model.causal != subject.kind.causal:
        raise LawBroken(f"the model says causal is {model.causal}, the specification {subject.kind.causal}")


def same_seed_same_model(subject: Subject) -> None:
    """Initialisation draws from torch's generator alone, and the forward pass draws nothing."""
    one, other = subject.fresh(seed=3), subject.fresh(seed=3)
    for (name, left), (_, right) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        if not torch.equal(left, right):
            raise LawBroken(f"{name} differs between two models built with one seed")
    tokens = subject.tokens(2, 9)
    if not torch.equal(one(tokens), other(tokens)):
        raise LawBroken("two models built with one seed give different logits")
