"""What would otherwise fail far from its cause, or not at all."""

from __future__ import annotations

from torch import Tensor

from lockstep.memory.spec import MemorySpec
from lockstep.memory.types import Gates, Memory


def check(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Memory, spec: MemorySpec) -> None:
    """One clear line for arguments that do not belong together."""
    matrices = len(memory.weights)
    if matrices != spec.layers:
        raise ValueError(f"matrices: the specification has {spec.layers}, the memory {matrices}")
    if spec.has_momentum != (gates.momentum is not None) or spec.has_momentum != (memory.velocity is not None):
        raise ValueError(
            f"rule {spec.rule}: a momentum gate and a velocity belong to the momentum rule, and only to it"
        )
    if (spec.bias == "huber") != (gates.threshold is not None):
        raise ValueError(f"bias {spec.bias}: a threshold gate belongs to the Huber bias, and only to it")
    if spec.residual and keys.shape[-1] != values.shape[-1]:
        raise ValueError(f"a residual needs values as wide as keys, not {values.shape[-1]} and {keys.shape[-1]}")
    wide, out = memory.weights[0].shape[-2], memory.weights[-1].shape[-1]
    if (keys.shape[-1], values.shape[-1]) != (wide, out):
        raise ValueError(
            f"keys and values are {keys.shape[-1]} and {values.shape[-1]} wide, the memory {wide} and {out}"
        )
    if keys.shape[2] == 0:
        raise ValueError("no tokens")
    shapes = {x.shape[:3] for x in (queries, keys, values)} | {gate.shape for gate in gates if gate is not None}
    if len(shapes) > 1:
        shown = ", ".join("×".join(map(str, shape)) for shape in sorted(shapes))
        raise ValueError(f"queries, keys, values and gates must agree in batch, heads and time, not {shown}")
