"""The form "kernel": whole chunks by Triton (`lockstep.kernels.memory`), for memories of one or two matrices.

Products are of the tokens' own precision, with sums, gates and the memory itself in 32 bits. The kernels know a memory
by its distance from the anchor, its matrices turned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run
from lockstep.memory.spec import MemorySpec
from lockstep.memory.types import Gates, Memory, Outer, Weights, arithmetic

SIZES = (16, 32, 64, 128)
"""Of chunks and heads: what a tile may measure."""
WIDEST = 512
"""Hidden units."""
LARGEST = {torch.bfloat16: 32_768, torch.float32: 8_192}
"""Numbers of a tile where one program walks a row with all of its hidden units: what Hopper has room for."""


def unsuited(queries: Tensor, weights: Weights, spec: MemorySpec) -> str | None:
    """Why the kernels do not know such a memory; None if they do."""
    if spec.layers > 2 or spec.clip is not None or spec.read != "after":
        return "the kernels know memories of one or two matrices, read after writing, without clip"
    if spec.layers == 1 and spec.retention != "l2":
        return f"the kernels know retention {spec.retention} for two matrices alone"
    if spec.bias == "dot" and (spec.layers == 2 or spec.norm):
        return "the kernels know the bias dot for one matrix without norm alone"
    width, out, span = weights[0].shape[-2], weights[-1].shape[-1], tokens_at_once(spec)
    if not {width, out, span} <= set(SIZES) or (spec.layers == 2 and width != out):
        return f"the kernels know heads and chunks of {SIZES}, not {width}, {out} and {span}"
    hidden = weights[0].shape[-1]
    if queries.dtype not in (torch.bfloat16, torch.float32):
        return f"the kernels know bfloat16 and float32, not {queries.dtype}"
    most = LARGEST[queries.dtype]
    if spec.retention != "l2" and max(width, span) * max(hidden, span) > most:
        return f"the kernels know retention {spec.retention} for tiles of {most} numbers of {queries.dtype}, not more"
    if spec.layers == 2 and hidden not in (*SIZES, 256, WIDEST):
        return f"the kernels know hidden widths that are powers of two up to {WIDEST}, not {hidden}"
    return None


def tokens_at_once(spec: MemorySpec) -> int:
    """A chunk, or a tile of tokens with a gradient each."""
    return spec.tile if spec.exact else spec.chunk


def pays(queries: Tensor, weights: Weights, spec: MemorySpec) -> bool:
    """Whether the kernels should run: on a GPU, in 16 bits. Whatever is computed in full precision stays with torch."""
    if queries.dtype is not torch.bfloat16 or not ours_may_run(queries):
        return False
    width, chunk = weights[0].shape[-2], spec.chunk
    fits = spec.layers == 2 and width <= 64 and chunk <= 64
    return fits and unsuited(queries, weights, spec) is None


def kernel(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Memory, spec: MemorySpec, outer: Outer
) -> tuple[Tensor, Memory]:
    """As `chunked`, for callers' shapes: tokens [batch, heads, time, dim] in whole chunks, memory [rows, in, out]."""
    if spec.layers == 1:
        return one_matrix(queries, keys, values, gates, memory, spec, outer)
    if spec.retention != "l2":
        return retained(queries, keys, values, gates, memory, spec, outer)
    # Triton is needed where it is used alone.
    from lockstep.kernels.memory.operator import memory as operator

    heads, anchors = queries.shape[1], None
    held = paired(memory.weights)
    if spec.decay_to == "initial":
        assert outer.initial is not None
        anchors = paired(by_rows(outer.initial))
        held = held - spread(as_operand(anchors, queries.dtype), held.shape[0])
    if memory.velocity is not None:
        held = torch.cat((held, paired(memory.velocity)), dim=1)
    reads, last, _ = operator(
        *(row_wise(x.to(queries.dtype)) for x in (queries, keys, values)),
        *(None if gate is None else row_wise(gate.float()) for gate in gates),
        *lent(outer, spec, queries),
        anchors,
        held,
        heads,
        *two_matrices(spec),
    )
    weights, velocity = last[:, :2], last[:, 2:]
    if anchors is not None:
        weights = weights + spread(as_operand(anchors, queries.dtype), weights.shape[0])
    after = Memory(apart(weights), None if memory.velocity is None else apart(velocity))
    return reads.unflatten(0, (-1, heads)), after


def retained(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Memory, spec: MemorySpec, outer: Outer
) -> tuple[Tensor, Memory]:
    """`kernel` for memories that hold something else than their weights: as it is, not its distance from the anchor."""
    from lockstep.kernels.memory.retained_operator import retained_memory

    heads, anchors = queries.shape[1], None
    if spec.decay_to == "initial":
        assert outer.initial is not None
        anchors = paired(unshifted(by_rows(outer.initial), spec))
    reads, last, *_ = retained_memory(
        *(row_wise(x.to(queries.dtype)) for x in (queries, keys, values)),
        *(None if gate is None else row_wise(gate.float()) for gate in gates),
        *lent(outer, spec, queries),
        anchors,
        paired(unshifted(memory.weights, spec)),
        spec.retention,
        spec.q,
        spec.simplex,
        heads,
        *two_matrices(spec),
    )
    return reads.unflatten(0, (-1, heads)), Memory(apart(last), None)


def unshifted(matrices: Weights, spec: MemorySpec) -> Weights:
    """Under kl the same weights belong to any shift of a row of what is held; the kernels know the one without."""
    if spec.retention != "kl":
        return matrices
    return tuple(matrix - matrix.mean(dim=-1, keepdim=True, dtype=arithmetic(matrix.dtype)) for matrix in matrices)


def one_matrix(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Memory, spec: MemorySpec, outer: Outer
) -> tuple[Tensor, Memory]:
    """`kernel` for memories of one matrix, of which there is one operator more: their closed form is another."""
    from lockstep.kernels.memory.linear_operator import linear_memory

    heads, anchor = queries.shape[1], None
    held = memory.weights[0].mT.float()
    if spec.decay_to == "initial":
        assert outer.initial is not None
        anchor = by_rows(outer.initial)[0].mT.float().contiguous()
        held = held - spread(as_operand(anchor, queries.dtype), held.shape[0])
    reads, last, _, _ = linear_memory(
        *(row_wise(x.to(queries.dtype)) for x in (queries, keys, values)),
        *(None if gate is None else row_wise(gate.float()) for gate in gates),
        *lent(outer, spec, queries),
        anchor,
        torch.stack((held, *(matrix.mT.float() for matrix in memory.velocity or ())), dim=1),
        heads,
        tokens_at_once(spec),
        spec.exact,
        spec.residual,
        spec.norm,
        inner_loss(spec),
        spec.p,
    )
    weights, *velocity = last.unbind(1)
    if anchor is not None:
        weights = weights + spread(as_operand(anchor, queries.dtype), weights.shape[0])
    after = Memory((weights.mT,), tuple(matrix.mT for matrix in velocity) or None)
    return reads.unflatten(0, (-1, heads)), after


def lent(outer: Outer, spec: MemorySpec, queries: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Gain and shift of the norm, [heads, width]: one and zero where the model lends none; without norm, nothing."""
    if not spec.norm:
        return None, None
    shape = queries.shape[1], queries.shape[3]
    gain = queries.new_ones(shape) if outer.gain is None else outer.gain
    shift = queries.new_zeros(shape) if outer.shift is None else outer.shift
    return gain.float().contiguous(), shift.float().contiguous()


def two_matrices(spec: MemorySpec) -> tuple[int, bool, bool, str, float, str]:
    """What operators of two matrices are told of a memory."""
    return spec.chunk, spec.residual, spec.norm, inner_loss(spec), spec.p, spec.activation


def inner_loss(spec: MemorySpec) -> str:
    """By one word: Huber's forms are losses of their own."""
    return spec.huber_form if spec.bias == "huber" else spec.bias


def row_wise(x: Tensor) -> Tensor:
    """[batch, heads, …] to [rows, …], in one piece."""
    return x.flatten(0, 1).contiguous()


def by_rows(initial: Weights) -> Weights:
    """Anchors [heads, in, out], or those of samples [batch, heads, in, out] as rows."""
    return tuple(matrix if matrix.ndim == 3 else matrix.flatten(0, 1) for matrix in initial)


def paired(matrices: Weights) -> Tensor:
    """Two matrices [rows, in, out] as [rows, 2, width, hidden], the second turned."""
    first, second = matrices
    return torch.stack((first, second.mT), dim=1).float()


def apart(pair: Tensor) -> Weights:
    """The inverse of `paired`."""
    first, second = pair.unbind(1)
    return first, second.mT


def as_operand(anchors: Tensor, dtype: torch.dtype) -> Tensor:
    """As products see it, in the tokens' precision; what flows back is not rounded."""
    return anchors + (anchors.to(dtype).float() - anchors).detach()


def spread(anchors: Tensor, rows: int) -> Tensor:
    """For every row, in 32 bits."""
    return anchors.float().repeat(rows // anchors.shape[0], *[1] * (anchors.ndim - 1))
