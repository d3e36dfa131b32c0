"""fla-core's Triton kernels, where they can be used: the same recurrences, computed in 16 bits with 32-bit sums.

They take the place of the torch forms in `lockstep.models.recurrences` under bfloat16 autocast on a CUDA device.
Whatever is computed in full precision stays with torch, and so does float16, in which sums over a sequence would
overflow. What ran is recorded, because no figure means much without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.kernels.backends import allows, missing
from lockstep.kernels.record import record

Operation = Literal["decayed", "channel-decayed", "delta-rule", "gated-delta-rule"]

FUNCTIONS: dict[Operation, tuple[str, str]] = {
    "decayed": ("fla.ops.simple_gla", "chunk_simple_gla"),
    "channel-decayed": ("fla.ops.gla", "chunk_gla"),
    "delta-rule": ("fla.ops.delta_rule", "chunk_delta_rule"),
    "gated-delta-rule": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
}
WIDEST = 256
"""Of a head, in these kernels."""
MISCOMPILED: tuple[Operation, ...] = ("decayed", "gated-delta-rule")
"""Operations whose derivative goes through a product that Triton 3.4 to 3.7.0 gets wrong on Hopper."""


def takes(operation: Operation, *rows: Tensor) -> bool:
    """Whether these kernels should run an operation on rows [batch, heads, time, width], all on one device."""
    device, time = rows[0].device, rows[0].shape[2]
    if device.type != "cuda" or time == 1 or not torch.is_autocast_enabled("cuda") or not allows("fla"):
        return False
    if max(row.shape[-1] for row in rows) > WIDEST or torch.get_autocast_dtype("cuda") is not torch.bfloat16:
        return False
    return unusable(operation) is None


@cache
def unusable(operation: Operation) -> str | None:
    """Why an operation cannot be run here; None if it can."""
    lacking = missing("fla", torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if lacking is not None:
        return lacking
    triton = triton_version()
    hopper = torch.cuda.get_device_capability()[0] == 9
    wrong = operation in MISCOMPILED and hopper and (3, 4, 0) <= triton < (3, 7, 1)
    if wrong and importlib.util.find_spec("tilelang") is None:
        return "Triton 3.4 to 3.7.0 miscompiles its derivative on Hopper; newer Triton or tilelang helps"
    try:
        function(operation)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def triton_version() -> tuple[int, ...]:
    """Of the module itself: builds of torch's own bring it under another name."""
    found = re.match(r"(\d+)\.(\d+)\.?(\d*)", importlib.import_module("triton").__version__)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


@cache
def function(operation: Operation) -> Any:
    """The kernel's entry."""
    module, name = FUNCTIONS[operation]
    with warnings.catch_warnings():
        # It warns on machines whose driver it does not know, which is said by `unusable` where it matters.
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)


def run(operation: Operation, state: Tensor, queries: Tensor, **rows: Tensor) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, time, value_dim] and the state [batch, heads, key_dim, value_dim] after them.

    Rows are [batch, heads, time, width], gates [batch, heads, time], under the kernel's own names; gates stay exact.
    """
    lower = torch.get_autocast_dtype("cuda")
    gates = {"g", "beta"}
    moved = {
        name: row.transpose(1, 2).to(torch.float32 if name in gates else lower).contiguous()
        for name, row in {"q": queries, **rows}.items()
    }
    with torch.autocast("cuda", enabled=False):
        reads, after = function(operation)(
            **moved, scale=1.0, initial_state=state.to(torch.float32).contiguous(), output_final_state=True
        )
    record(operation, "fla-core")
    return reads.transpose(1, 2).float(), after
