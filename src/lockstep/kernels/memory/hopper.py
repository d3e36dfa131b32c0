"""When the kernels of Hopper are used, and tensors as they take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from lockstep.kernels.memory.hopper_chain import chain_backward_kernel, chain_kernel

if TYPE_CHECKING:
    from lockstep.kernels.memory.coefficients import Coefficients
    from lockstep.kernels.memory.mlp import Back, Chunks, Written

WIDTH, HIDDEN, CHUNK = 64, 128, 64
"""The one size they are written for: what an expansion of two makes of heads of 64."""


def suited(run: Chunks) -> bool:
    """Whether this call is for Hopper, in 16 bits, and of the size its kernels know."""
    keys = run.tokens.keys
    return (
        not triton.knobs.runtime.interpret
        and keys.is_cuda
        and torch.cuda.get_device_capability(keys.device)[0] == 9
        and keys.dtype == torch.bfloat16
        and (run.width, run.hidden, run.chunk) == (WIDTH, HIDDEN, CHUNK)
    )


def sheets(*tensors: Tensor | None) -> list[TensorDescriptor | None]:
    """The last dimension across, all others down, in tiles of a chunk or a matrix, which have as many rows."""
    return [None if x is None else sheet(x) for x in tensors]


def sheet(x: Tensor) -> TensorDescriptor:
    shape = [CHUNK, x.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(shape, gl.float32 if x.dtype == torch.float32 else gl.bfloat16)
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), shape, layout)


def constants(run: Chunks) -> dict[str, Any]:
    sizes = {"CHUNK": CHUNK, "WIDTH": WIDTH, "HIDDEN": HIDDEN, "MOMENTUM": run.tokens.momentum is not None}
    return run.memory | sizes | {"num_warps": 8}


def walk(
    run: Chunks,
    found: Coefficients,
    held: Tensor,
    copies: Tensor,
    inputs: Tensor,
    first_errors: Tensor,
    last_errors: Tensor,
) -> None:
    """From the first chunk to the last; `held` is replaced, what follows it is filled."""
    tokens = run.tokens
    chain_kernel[(run.rows,)](
        *sheets(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        *sheets(tokens.anchors, held, copies, inputs, first_errors, last_errors),
        *run.sizes,
        **constants(run),
    )


def walk_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Written,
    bars: Back,
    errors_bar: Tensor,
    copies_bar: Tensor,
    held_bar: Tensor,
) -> None:
    """From the last chunk to the first; the last three arguments, and some of `bars`, are filled."""
    tokens = run.tokens
    chain_backward_kernel[(run.rows,)](
        *sheets(tokens.queries, tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        *sheets(tokens.anchors, copies, made.inputs, made.slopes, made.bends, made.last_errors, made.normals),
        made.scales,
        *sheets(*bars, errors_bar, copies_bar, held_bar),
        *run.sizes,
        **constants(run),
    )
