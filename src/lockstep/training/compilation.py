"""torch.compile for training."""

from __future__ import annotations

import torch

from lockstep.models.language_model import LanguageModel

KINDS = 64
"""Of blocks, lengths and modes that torch compiles the same code for; beyond its own few it would give up unasked."""


def compile_blocks(model: LanguageModel) -> None:
    """Block by block: they are alike, so that one is compiled for all. A whole model takes several times as long."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
    for block in model.layers:
        block.compile()
