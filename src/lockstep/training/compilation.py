"""torch.compile, block by block."""

from __future__ import annotations

import torch

from lockstep.kernels import succession
from lockstep.models.language_model import LanguageModel

KINDS = 64
"""Of blocks, lengths and modes that torch compiles the same code for; beyond its own few it would give up unasked."""


def compile_blocks(model: LanguageModel) -> None:
    """Block by block: they are alike, so that one is compiled for all. A whole model takes several times as long."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
    for block in model.layers:
        block.compile()


def compile_steps(model: LanguageModel) -> None:
    """The same for `step`, by which texts are read and written.

    Torch's compiler then writes products with a single row itself, into one kernel with the sums that follow them, and
    tries out how they are best shared among programs: a library's are made for more rows. Its kernels begin early, as
    ours do (`lockstep.kernels.succession`): they wait before they load what the kernel before them wrote, and behind
    an operator before they load anything.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
    for block in model.layers:
        compiled = torch.compile(
            block.step,
            dynamic=False,
            options={"coordinate_descent_tuning": True, "triton.enable_pdl": succession.wanted()},
        )
        # On the block itself, where `compile` of its forward would be too.
        object.__setattr__(block, "step", compiled)
