"""Text that a model writes, and how repetitive it is."""

from __future__ import annotations

import torch

from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.models.sampling import Sampling


def continue_text(model: LanguageModel, tokenizer: Tokenizer, prompt: str, new_tokens: int, sampling: Sampling) -> str:
    """The continuation of `prompt`, without it."""
    if not model.causal:
        raise UserError(f"{model.spec.architecture} is bidirectional and cannot continue a text")
    ids = [int(token) for token in tokenizer.encode(prompt.encode("utf-8", "surrogateescape"))] or [tokenizer.eos_id]
    device = model.embedding.weight.device
    positions = model.spec.max_length if model.spec.learned_positions else None
    if positions is not None and len(ids) + new_tokens > positions:
        raise UserError(
            f"{len(ids)} prompt tokens and {new_tokens} new ones exceed the {positions} positions of the model"
        )
    written = model.generate(torch.tensor([ids], device=device), new_tokens, sampling, stop=tokenizer.eos_id)
    # A model may have been given a larger vocabulary than its tokenizer has.
    known = [token for token in written[0, len(ids) :].tolist() if token < tokenizer.vocab_size]
    return tokenizer.decode([token for token in known if token != tokenizer.eos_id])
