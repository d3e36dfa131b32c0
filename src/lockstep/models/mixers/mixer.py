"""The contract of a mixer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lockstep.models.cost import Cost
from lockstep.models.state import State


class Mixer(nn.Module, ABC):
    """Maps [batch, time, dim] to the same shape; what it remembers between calls is its state."""

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        """Mix a whole sequence, or the continuation of the one that `state` stands at."""
        return self.step(x, state)[0]

    @abstractmethod
    def step(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Mix any number of tokens after `state`, which is left as it was; None starts a sequence."""

    @abstractmethod
    def initial_state(self, batch: int, capacity: int | None = None) -> State:
        """The state before the first token; `capacity` is how many tokens a cache must hold."""

    @abstractmethod
    def cost(self, length: int) -> Cost:
        """Forward FLOPs per token and state bytes per sequence at this length (parameters are counted outside)."""

    def initialise(self) -> None:
        """Set what the skeleton's initialisation of matrices does not cover."""

    @property
    def like(self) -> Tensor:
        """A parameter: what a new state's device and dtype follow."""
        first = next(self.parameters(), None)
        if first is None:
            raise ValueError(f"{type(self).__name__} has no parameters: build its state without `like` and `zeros`")
        return first

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on this mixer's device, in its dtype."""
        return torch.zeros(shape, device=self.like.device, dtype=self.like.dtype)
