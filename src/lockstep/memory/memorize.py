"""The one function: write a sequence into a memory and read it back, token by token in effect."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lockstep.memory.checks import check
from lockstep.memory.kernel import unsuited
from lockstep.memory.rows import Rows
from lockstep.memory.sequential import sequential
from lockstep.memory.spec import MemorySpec
from lockstep.memory.streaming import begin, stream
from lockstep.memory.types import Gates, Memory, Outer, arithmetic, exactly

Form = Literal["sequential", "chunked", "kernel"]


def memorize(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Memory,
    spec: MemorySpec,
    form: Form = "chunked",
    outer: Outer | None = None,
) -> tuple[Tensor, Memory]:
    """Reads [batch, heads, time, value_dim] and the memory after the last token.

    queries, keys, values [batch, heads, time, dim]; the memory stands at a chunk's start, and with `decay_to` initial
    is itself where forgetting leads unless `outer` says otherwise. "sequential" is the definition; "chunked" gives the
    same by matrix products, and "kernel" by Triton, which knows some memories only.
    """
    check(queries, keys, values, gates, memory, spec)
    outer = outer or Outer()
    if spec.decay_to == "initial" and outer.initial is None:
        outer = outer._replace(initial=memory.weights)
    if form == "kernel" and (reason := unsuited(queries, memory.weights, spec)):
        raise ValueError(reason)
    if form in ("chunked", "kernel"):
        reads, state = stream(
            queries, keys, values, gates, begin(memory), spec, outer, position=0, by_kernel=form == "kernel"
        )
        return reads, Memory(state.weights, state.velocity or None)
    if form != "sequential":
        raise ValueError(f"unknown form {form}; valid: sequential, chunked, kernel")
    rows = Rows(keys.shape[0], keys.shape[1], arithmetic(keys.dtype))
    tokens = rows.tokens(queries, keys, values, gates, slice(None), keys.shape[2])
    held = Memory(rows.weights(memory.weights), rows.weights(memory.velocity or ()) or None)
    with exactly(keys.device):
        reads, held = sequential(tokens, held, spec, rows.affine(outer), rows.anchor(outer, spec))
    velocity = None if held.velocity is None else rows.apart(held.velocity)
    return rows.joined(reads).to(queries.dtype), Memory(rows.apart(held.weights), velocity)
