"""What is measured during training and by `lockstep evaluate`."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from lockstep.config.spec import Spec


class EvaluationSpec(Spec):
    """Held-out loss and samples."""

    interval: PositiveInt | None = None
    """Steps between evaluations during training; None evaluates at the last step only."""
    sequences: PositiveInt | None = 256
    """Sequences of the validation split per evaluation during training; None means all of it."""
    batch_size: PositiveInt | None = None
    """Sequences scored at once, the training batch size by default; it changes no result."""
    pseudo_sequences: PositiveInt = 16
    """Sequences scored position by position for a masked model's pseudo-perplexity."""
    sample_prompt: str | None = None
    """When given, each evaluation also stores a continuation of this text (causal models)."""
    sample_tokens: NonNegativeInt = 64
    """Length of that continuation."""
