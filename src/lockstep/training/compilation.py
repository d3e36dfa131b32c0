"""torch.compile, block by block."""

from __future__ import annotations

from typing import Any

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

    Torch's compiler then writes products with a single row itself, into one kernel with the norm before them
    (`single_rows`) and the sums that follow them, and tries out how they are best shared among programs: a library's
    are made for more rows. Its kernels begin early (`lockstep.kernels.succession`), here and not in a `Decoder` alone:
    the first of a graph waits before it loads anything, so that they know who wrote what.
    """
    from lockstep.training.single_rows import SINGLE_ROWS  # which imports torch's compiler

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
    options: dict[str, Any] = {
        "coordinate_descent_tuning": True,
        "triton.enable_pdl": succession.wanted(),
        "pre_grad_custom_pass": SINGLE_ROWS,
        "_post_fusion_custom_pass": in_turn_unless_all_load,
    }
    for block in model.layers:
        compiled = torch.compile(block.step, dynamic=False, options=options)
        # On the block itself, where `compile` of its forward would be too.
        object.__setattr__(block, "step", compiled)


def in_turn_unless_all_load(nodes: list[Any]) -> list[Any]:
    """The kernels of a graph, as they are: torch's compiler asks for this before it writes them.

    Its kernels wait for the one before them where they load: ahead of it, or behind it if that one wrote nothing of
    what is loaded. One that loads nothing ends without waiting, and who comes behind it would not know whether those
    ahead of it have ended. Where there is one, all of the graph start in turn. With a function here, newer versions of
    torch (2.13) keep kernels from one process to the next, but no graphs.
    """
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    kernels = (node for node in nodes if isinstance(node, (SchedulerNode, FusedSchedulerNode)))
    if not all(any(isinstance(read, MemoryDep) for read in kernel.read_writes.reads) for kernel in kernels):
        torch._inductor.config.triton.enable_pdl = False  # until this graph is written
    return nodes
