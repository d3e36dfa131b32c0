"""Compiles what a memory would launch, for a GPU that need not be there; prints the names of the kernels as JSON.

    python -m tests.kernels.compiled mlp 90

The interpreter lets pass what a compiler does not: names that change their type in a loop, shapes that do not fit.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.memory import Gates, Memory, MemorySpec, Outer, memorize

HEADS, TIME, WIDTH, HIDDEN = 2, 128, 64, 128
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}
SPECS = {
    "mlp": MemorySpec(norm=True, residual=True, decay_to="initial", chunk=64),
    "stale": MemorySpec(structure="linear", norm=True, residual=True, decay_to="initial", chunk=64),
    "exact": MemorySpec(structure="linear", chunk=1, tile=64),
}


def compile_instead(target: GPUTarget, seen: set[str]) -> Any:
    """What stands for a launch."""

    def launch(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        names = [parameter.name for parameter in kernel.params]
        given = dict(zip(names, arguments, strict=False)) | {name: named[name] for name in names if name in named}
        options = {name: value for name, value in named.items() if name not in names}
        constants = {name: value for name, value in given.items() if is_constant(kernel, name, value)}
        signature = {name: "constexpr" if name in constants else typed(given[name]) for name in names}
        triton.compile(ASTSource(kernel, signature, constexprs=constants), target=target, options=options)
        seen.add(kernel.fn.__name__)

    return launch


def is_constant(kernel: Any, name: str, value: Any) -> bool:
    return value is None or any(one.name == name and one.is_constexpr for one in kernel.params)


def typed(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    return f"*{TYPES[value.dtype]}" if isinstance(value, Tensor) else "i32"


def run(spec: MemorySpec) -> None:
    """A memory in bfloat16, there and back; the numbers mean nothing."""
    rows = [torch.randn(1, HEADS, TIME, WIDTH).bfloat16().requires_grad_() for _ in range(3)]
    gates = Gates(*(torch.rand(1, HEADS, TIME).requires_grad_() for _ in range(3)))
    shapes = [(WIDTH, WIDTH)] if spec.structure == "linear" else [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    weights = tuple(torch.randn(1, HEADS, *shape) for shape in shapes)
    memory = Memory(weights, tuple(torch.zeros_like(matrix) for matrix in weights))
    gain, shift = torch.ones(HEADS, WIDTH).requires_grad_(), torch.zeros(HEADS, WIDTH).requires_grad_()
    initial = tuple(matrix[0].clone().requires_grad_() for matrix in weights)
    reads, _ = memorize(rows[0], rows[1], rows[2], gates, memory, spec, "kernel", Outer(gain, shift, initial))
    reads.float().sum().backward()


def main() -> None:
    seen: set[str] = set()
    JITFunction.run = compile_instead(GPUTarget("cuda", int(sys.argv[2]), 32), seen)
    run(SPECS[sys.argv[1]])
    sys.stdout.write(json.dumps(sorted(seen)))


if __name__ == "__main__":
    main()
