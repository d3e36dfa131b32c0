"""Other packages' layers as language models: what their blocks stand in, the same for all of them.

Blocks are those packages' own, or made of their fused parts, and run eagerly around their kernels. torch.compile is
not asked: fla keeps it out of its recurrence by a decorator, and mamba-ssm's autotuned kernels have hooks that it does
not take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lockstep.models.state import State


@contextmanager
def installed(package: str) -> Iterator[None]:
    """Around imports from a package that may be missing: the ImportError then says how to get it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{error}; pip install {package}") from error


class Outsider(nn.Module):
    """Another package's language model, which writes on from what it remembers."""

    facts: Mapping[str, Any]
    """For the line that tells of it."""
    lowered = True
    """Whether it writes in bfloat16, as everybody does who can."""

    def initial_state(self, batch: int, capacity: int | None = None) -> Any:
        """Nothing remembered yet, in the package's own form."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits [batch, time, vocabulary] after what the state remembers, and the state then."""
        raise NotImplementedError

    def tensors(self, state: Any) -> State:
        """What is carried from token to token."""
        raise NotImplementedError


class Guest(Outsider):
    """A table of tokens, blocks, a norm, a table of outputs.

    A block takes what the last one said, the sum of all before, and what it remembers, if anything; it returns what it
    says, and the sum with what the last one said. Norms add the two as they go, which both packages' can, and leave the
    sum in float32.
    """

    def __init__(
        self, vocabulary: int, dim: int, blocks: Iterable[nn.Module], norm: nn.Module, facts: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = nn.Linear(dim, vocabulary, bias=False)
        size = {"non_embedding_parameters": self.non_embedding_parameters, "layers": len(self.blocks)}
        self.facts = {**size, "compiled": "nothing", **facts}

    def forward(self, tokens: Tensor, remembered: Any = None) -> Tensor:
        """Logits [batch, time, vocabulary] for tokens [batch, time]; what is remembered is written over."""
        said, total = self.tokens(tokens), None
        for block in self.blocks:
            said, total = block(said, total, remembered)
        logits: Tensor = self.head(self.norm(said, residual=total, residual_in_fp32=True))
        return logits

    @property
    def non_embedding_parameters(self) -> int:
        """As Lockstep counts: without the tables of tokens and of outputs."""
        tables = self.tokens.weight.numel() + self.head.weight.numel()
        return sum(parameter.numel() for parameter in self.parameters()) - tables

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The state, whose form neither a batch nor a capacity changes, is written over."""
        return self(tokens, state), state


class OutsidersDecoder:
    """Goes on from a state, one token of each sequence at a time, with nothing recorded."""

    recording = None

    def __init__(self, model: Outsider, state: Any) -> None:
        self.model, self.state = model, state

    def step(self, tokens: Tensor) -> Tensor:
        """Logits [batch, vocabulary] after one more token [batch, 1] of each sequence."""
        logits, self.state = self.model.step(tokens, self.state)
        return logits[:, -1]
