"""TTT layers (Sun et al., arXiv 2407.04620) as the point of the memory grid that they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep.memory import MemorySpec
from lockstep.models.mixers.neural_memory import NeuralMemory, Tail
from lockstep.models.rotary import rotate

INITIAL_STD = 0.02


class TestTimeTraining(NeuralMemory):
    """A memory that reconstructs values from keys by plain gradient descent, and forgets nothing.

    Queries and keys are turned by their place in the chunk instead of being normalised. Where the authors' code differs
    from their equations, this is the equations, with two exceptions that keep a sum of gradients bounded: the rate is
    divided by the head's width, as the code does, and by the chunk, where the code divides the sum at the i-th token
    of a chunk by i; both agree at the end of the chunk. Values are convolved as queries and keys are.
    """

    __test__ = False
    """Not one of pytest's classes, whatever the name says."""

    def __init__(self, dim: int, heads: int, spec: MemorySpec, *, conv: int, base_rate: float, theta: float) -> None:
        super().__init__(dim, heads, spec, conv=conv, decay=False)
        self.theta = theta
        self.largest_rate = base_rate / (self.head_dim * spec.chunk)

    def rows(self, qkv: Tensor, tail: Tail, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tail]:
        """As projected and convolved, queries and keys [batch, heads, time, head_dim] turned by place in the chunk."""
        mixed, tail = self.convolved(qkv, tail)
        place = (position[:, None] + torch.arange(qkv.shape[1], device=qkv.device)) % self.spec.chunk
        queries, keys, values = mixed.unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        queries, keys = (rotate(part, place, self.theta, below=self.spec.chunk) for part in (queries, keys))
        return queries, keys, values, tail

    @torch.no_grad()
    def initialise(self) -> None:
        """As published: small first weights, a norm that changes nothing, gates half open."""
        super().initialise()
        for matrix in self.weights:
            nn.init.normal_(matrix, std=INITIAL_STD)
        assert self.gain is not None
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.gates.bias)
