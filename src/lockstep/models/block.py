"""The skeleton's layer: norm → mixer → residual → norm → MLP → residual, and its declared exceptions."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.memory.recomputation import as_operand
from lockstep.models.cost import Cost
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mlp import Mlp, SwiGlu
from lockstep.models.state import State


class Block(nn.Module):
    """The pre-norm layer that nearly every architecture uses; without an MLP it ends after the mixer."""

    def __init__(
        self, mixer: Mixer, mlp: Mlp | SwiGlu | None, norms: tuple[nn.Module, nn.Module], dropout: float
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mlp = mlp
        self.mixer_norm = norms[0]
        self.mlp_norm = norms[1] if mlp is not None else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        return self.after(x, self.mixer(self.before(x), state))

    def step(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        mixed, state = self.mixer.step(self.before(x), state)
        return self.after(x, mixed), state

    def before(self, x: Tensor) -> Tensor:
        """What the mixer sees: as products take it, so that in between neither it nor a sum with it is in 32 bits."""
        return as_operand(self.mixer_norm(x))

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, given its input and what the mixer made of it."""
        x = x + self.dropout(mixed)
        if self.mlp is None or self.mlp_norm is None:
            return x
        y: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return y

    def cost(self, length: int) -> Cost:
        return self.mixer.cost(length) + (Cost() if self.mlp is None else self.mlp.cost())


class PostNormBlock(Block):
    """BERT's layer: each residual sum is normalised, not each input."""

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self.mixer_norm(x + self.dropout(mixed))
        if self.mlp is None or self.mlp_norm is None:
            return x
        y: Tensor = self.mlp_norm(x + self.dropout(self.mlp(x)))
        return y


class PlainBlock(Block):
    """A bare mixer, as published recurrent networks stack them: no norm, no residual, no MLP."""

    def __init__(self, mixer: Mixer, dropout: float) -> None:
        super().__init__(mixer, None, (nn.Identity(), nn.Identity()), dropout)

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        y: Tensor = self.dropout(mixed)
        return y
