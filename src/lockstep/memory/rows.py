"""Between the shapes of callers, [batch, heads, time, …], and those of the forms, [chunks, rows, time, …]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.memory.chunked import Tokens
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine
from lockstep.memory.types import Gates, Outer, Weights


@dataclass(frozen=True, slots=True)
class Rows:
    """A row is one head of one sample: memories share nothing, so that all of them are one batch of products."""

    batch: int
    heads: int
    dtype: torch.dtype
    """What everything is computed in."""

    def chunks(self, x: Tensor, chunk: int) -> Tensor:
        """[batch, heads, time, …] to [time / chunk, rows, chunk, …]."""
        if x.shape[2] == chunk:
            return x.to(self.dtype).flatten(0, 1)[None]
        folded: Tensor = x.to(self.dtype).unflatten(2, (-1, chunk)).movedim(2, 0).flatten(1, 2)
        return folded

    def joined(self, x: Tensor) -> Tensor:
        """[chunks, rows, chunk, …] to [batch, heads, time, …]."""
        if x.shape[0] == 1:
            one: Tensor = x[0].unflatten(0, (self.batch, self.heads))
            return one
        joined: Tensor = x.unflatten(1, (self.batch, self.heads)).movedim(0, 2).flatten(2, 3)
        return joined

    def tokens(self, queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, piece: slice, chunk: int) -> Tokens:
        """A piece of the time, in whole chunks."""

        def folded(x: Tensor) -> Tensor:
            return self.chunks(x[:, :, piece], chunk)

        return Tokens(folded(queries), folded(keys), folded(values), gates.each(folded))

    def weights(self, matrices: Weights) -> Weights:
        """[batch, heads, in, out], or [heads, in, out] for every sample alike, to [rows, in, out]."""
        return tuple(self.row_wise(matrix.to(self.dtype)) for matrix in matrices)

    def row_wise(self, matrix: Tensor) -> Tensor:
        if matrix.ndim == 3:
            # One sample needs no copy of what every sample shares.
            return matrix if self.batch == 1 else matrix.repeat(self.batch, 1, 1)
        return matrix.flatten(0, 1)

    def apart(self, matrices: Weights) -> Weights:
        """[rows, in, out] to [batch, heads, in, out]."""
        return tuple(matrix.unflatten(0, (self.batch, self.heads)) for matrix in matrices)

    def affine(self, outer: Outer) -> Affine:
        """[heads, dim] to [rows, 1, dim]."""
        lent = (outer.gain, outer.shift)
        return Affine(*(None if x is None else self.row_wise(x.to(self.dtype)[:, None]) for x in lent))

    def anchor(self, outer: Outer, spec: MemorySpec) -> Weights | None:
        """Where forgetting leads, [rows, in, out]; None is zero."""
        if spec.decay_to == "zero":
            return None
        if outer.initial is None:
            raise ValueError("decay to the initial weights needs them in `outer`")
        return self.weights(outer.initial)
