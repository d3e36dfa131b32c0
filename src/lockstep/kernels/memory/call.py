"""One call of the operator: shapes, constants, and what the kernels leave to each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.memory.coefficients import Coefficients, coefficients


class Tokens(NamedTuple):
    """What is written and read, [rows, time, width], gates [rows, time], and what the outer model lends."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    keep: Tensor
    rate: Tensor
    momentum: Tensor | None
    threshold: Tensor | None
    gain: Tensor | None  # [heads, width]
    shift: Tensor | None
    anchors: Tensor | None  # [heads or rows, 2, width, hidden], the second matrix turned


class Chunks:
    """One call: shapes, constants, and room for what the kernels leave to each other."""

    def __init__(
        self,
        tokens: Tokens,
        heads: int,
        chunk: int,
        residual: bool,
        norm: bool,
        bias: str,
        p: float,
        activation: str,
        *,
        hidden: int,
    ) -> None:
        if tokens.anchors is not None:
            # An operand of products, as the tokens are.
            tokens = tokens._replace(anchors=tokens.anchors.to(tokens.keys.dtype).contiguous())
        self.tokens, self.hidden, self.heads = tokens, hidden, heads
        self.rows, self.time, self.width = tokens.keys.shape
        self.chunk, self.chunks = chunk, self.time // chunk
        self.parts = 2 if tokens.momentum is None else 4
        exact = tokens.keys.dtype == torch.float32
        self.closed_form: dict[str, Any] = {
            "CHUNK": chunk,
            "MOMENTUM": tokens.momentum is not None,
            # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
            "PRECISION": "tf32x3" if exact else "tf32",
        }
        self.memory: dict[str, Any] = {
            "ANCHOR": tokens.anchors is not None,
            "NORM": norm,
            "RESIDUAL": residual,
            "BIAS": bias,
            "P": p,
            "ACTIVATION": activation,
        }

    def constants(self, largest: int) -> dict[str, Any]:
        """Of kernels that take `largest` hidden units at a time, or all of them if they are fewer."""
        block = min(self.hidden, largest)
        sizes = {"WIDTH": self.width, "BLOCK": block, "SPLIT": self.hidden // block}
        return self.closed_form | self.memory | sizes | {"num_warps": 4, "num_stages": 1}

    @property
    def sizes(self) -> tuple[int, int, int]:
        anchors = self.tokens.anchors
        return self.heads, 1 if anchors is None else anchors.shape[0], self.chunks

    def room(self, *shape: int) -> Tensor:
        """[rows, …] in the tokens' precision."""
        return self.tokens.keys.new_empty(self.rows, *shape)

    def units(self) -> Tensor:
        """[rows, time, hidden]."""
        return self.room(self.time, self.hidden)

    def outputs(self) -> Tensor:
        """[rows, time, width]."""
        return self.room(self.time, self.width)

    def scalars(self, *shape: int) -> Tensor:
        """[rows, …] in 32 bits."""
        return self.tokens.keys.new_empty(self.rows, *shape, dtype=torch.float32)

    def meeting(self, split: int) -> tuple[Tensor, Tensor]:
        """Where programs of a row add up what they found."""
        return self.scalars(2, split, self.chunk, self.width), self.scalars().zero_().int()

    def coefficients(self) -> Coefficients:
        return coefficients(*self.tokens[3:6], self.room(self.time, self.chunk))


class Written(NamedTuple):
    """What chunks wrote at their starts, as the reads take it."""

    inputs: Tensor
    first_errors: Tensor
    last_errors: Tensor

    @classmethod
    def room(cls, run: Chunks) -> Written:
        return cls(run.units(), run.units(), run.outputs())


class Rewritten(NamedTuple):
    """The same, computed once more, and the derivatives of it."""

    inputs: Tensor
    slopes: Tensor
    bends: Tensor
    first_errors: Tensor
    last_errors: Tensor
    normals: Tensor
    scales: Tensor

    @classmethod
    def room(cls, run: Chunks) -> Rewritten:
        inputs, slopes, bends, first_errors = (run.units() for _ in range(4))
        return cls(inputs, slopes, bends, first_errors, run.outputs(), run.outputs(), run.scalars(run.time))

    @property
    def written(self) -> Written:
        return Written(self.inputs, self.first_errors, self.last_errors)


class Back(NamedTuple):
    """Adjoints on their way: by the reads first, and then replaced by those of what comes before."""

    read_inputs: Tensor  # what was read, which goes along
    read_outputs: Tensor
    read_last: Tensor
    returned: Tensor
    last_errors: Tensor
    hidden: Tensor

    @classmethod
    def room(cls, run: Chunks) -> Back:
        return cls(run.units(), run.units(), run.outputs(), run.units(), run.outputs(), run.units())


class ReadBar(NamedTuple):
    """Adjoints that the reads have a share in: of keys and queries, of coefficients, of gain and shift by chunk."""

    keys: Tensor
    queries: Tensor
    kept: Tensor
    carried: Tensor
    written: Tensor
    gain: Tensor
    shift: Tensor

    @classmethod
    def room(cls, run: Chunks, lent: Tensor) -> ReadBar:
        """`lent` is where those of gain and shift go, [2, rows, chunks, width]."""
        kept, carried = (run.scalars(run.time) for _ in range(2))
        return cls(run.outputs(), run.outputs(), kept, carried, run.room(run.time, run.chunk), *lent)


class EndBar(NamedTuple):
    """Adjoints of values and thresholds, of gain and shift by chunk, and of the coefficients of each chunk's end."""

    values: Tensor
    threshold: Tensor
    gain: Tensor
    shift: Tensor
    kept: Tensor
    carried: Tensor
    written: Tensor
    velocity_kept: Tensor
    velocity_written: Tensor

    @classmethod
    def room(cls, run: Chunks, values: Tensor, lent: Tensor) -> EndBar:
        """`values` is where their adjoints go: there are outputs that nobody needs any more. `lent` is as before."""
        gain, shift = lent
        kept, carried, velocity_kept = (run.scalars(run.chunks) for _ in range(3))
        threshold, written, velocity_written = (run.scalars(run.time) for _ in range(3))
        return cls(values, threshold, gain, shift, kept, carried, written, velocity_kept, velocity_written)

    @property
    def coefficients(self) -> tuple[Tensor, ...]:
        return self[4:]
