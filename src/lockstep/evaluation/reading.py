"""Reading a text of any length in pieces: memory holds one piece and the state, whatever came before."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lockstep.models.language_model import LanguageModel

PIECE = 1024
"""Tokens read at once. A piece's logits are the largest thing held, and pieces this long cost no speed."""


@torch.inference_mode()
def read_in_pieces(model: LanguageModel, tokens: Tensor, piece: int = PIECE) -> Iterator[tuple[int, Tensor]]:
    """The place of each piece's first token, and the logits [batch, piece, vocab] after each of its tokens.

    tokens [batch, time] may lie on another device than the model. The same as one forward over all of them.
    """
    device = model.embedding.weight.device
    state = model.initial_state(tokens.shape[0], capacity=tokens.shape[1])
    for start in range(0, tokens.shape[1], piece):
        logits, state = model.step(tokens[:, start : start + piece].to(device), state)
        yield start, logits
        del logits  # whoever asked has had it; the next piece must not lie beside it
