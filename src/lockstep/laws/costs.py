"""`cost` says what is measured."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lockstep.laws.law import LawBroken
from lockstep.laws.subject import Subject

BATCH = 2
LENGTHS = (32, 48)
"""Long enough that a recurrence's first token, which has no past to differentiate, is below the tolerance."""
WIDER = 4
"""Measured at four times the small width, where matrix products dominate as they do in use."""
TOLERANCE = 0.01


def product_in_place(total: torch.Size, left: torch.Size, right: torch.Size, **others: Any) -> int:
    """total += left @ right, which torch's counter would overlook."""
    return 2 * left.numel() * right[-1]


UNCOUNTED = {torch.ops.aten.baddbmm_: product_in_place}


def training_flops(subject: Subject) -> None:
    """Counted on the meta device: only there does the counter see every product of fused layers."""
    model = subject.fresh(dim=WIDER * subject.spec().dim, max_length=max(LENGTHS)).to("meta").train()
    for length in LENGTHS:
        model.zero_grad()
        tokens = torch.zeros(BATCH, length, dtype=torch.int64, device="meta")
        with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
            model(tokens).sum().backward()
        cost = model.cost(length)
        claimed = (cost.training_flops - 3 * cost.recurrence_flops) * BATCH * length
        require_flops(claimed, counter, f"training FLOPs at {length} tokens")


def decoding_flops(subject: Subject) -> None:
    """One token after `length`, in a cache that holds them."""
    model = subject.fresh(dim=WIDER * subject.spec().dim, max_length=max(LENGTHS)).to("meta")
    for length in LENGTHS:
        state = model.initial_state(BATCH, capacity=length)
        with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
            model.step(torch.zeros(BATCH, 1, dtype=torch.int64, device="meta"), state)
        cost = model.cost(length)
        claimed = (cost.decoding_flops - cost.recurrence_flops) * BATCH
        require_flops(claimed, counter, f"decoding FLOPs after {length} tokens")


def require_flops(claimed: float, counter: FlopCounterMode, what: str) -> None:
    measured = counter.get_total_flops()
    if abs(claimed - measured) > TOLERANCE * measured:
        raise LawBroken(
            f"cost claims {claimed:.4g} {what} for {BATCH} sequences, but {measured:.4g} were counted "
            f"(ratio {claimed / max(measured, 1):.3f})"
        )


def parameter_counts(subject: Subject) -> None:
    """Embedding parameters are those that a larger vocabulary or more positions add to."""
    model = subject.fresh()
    counted = sum(parameter.numel() for parameter in model.parameters())
    small = model.cost(8)
    if small.parameters != counted:
        raise LawBroken(f"cost claims {small.parameters} parameters, but the model has {counted}")
    spec = model.spec
    more = subject.fresh(vocab_size=spec.vocab_size + 5, max_length=spec.max_length + 3).cost(8)
    biases = 5 if spec.output_bias else 0
    if more.non_embedding_parameters != small.non_embedding_parameters + biases:
        raise LawBroken(
            f"5 more tokens and 3 more positions changed the non-embedding parameters from "
            f"{small.non_embedding_parameters} to {more.non_embedding_parameters}"
        )
    if not spec.vocab_size * spec.dim <= small.embedding_parameters < small.parameters:
        raise LawBroken(f"cost claims {small.embedding_parameters} embedding parameters of {small.parameters}")
