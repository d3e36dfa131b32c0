"""LSTM, GRU and plain RNN layers as mixers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lockstep.models.cost import Cost
from lockstep.models.mixers.mixer import Mixer

Cell = Literal["lstm", "gru", "rnn"]

_LAYERS: dict[Cell, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
_GATES: dict[Cell, int] = {"lstm": 4, "gru": 3, "rnn": 1}

RecurrentState = tuple[Tensor, ...]
"""The hidden vector [batch, dim]; for an LSTM also the cell vector."""


class Recurrent(Mixer):
    """One of torch's recurrent layers; the state is its hidden vector, and an LSTM's cell."""

    def __init__(self, dim: int, cell: Cell, *, torch_initialisation: bool = False) -> None:
        """`torch_initialisation` leaves the weights as torch sets them, as published code does."""
        super().__init__()
        self.dim, self.cell, self.torch_initialisation = dim, cell, torch_initialisation
        self.layer = _LAYERS[cell](dim, dim, batch_first=True)

    def step(self, x: Tensor, state: RecurrentState | None) -> tuple[Tensor, RecurrentState]:
        if state is None:
            state = self.initial_state(x.shape[0])
        # torch's layers want both in one dtype; autocast may have lowered the input, and what is carried stays exact.
        carried = tuple(part[None] for part in state)
        y, carried_on = self.layer(x.to(state[0].dtype), carried if self.cell == "lstm" else carried[0])
        parts = carried_on if self.cell == "lstm" else (carried_on,)
        return y, tuple(part[0].to(old.dtype) for part, old in zip(parts, state, strict=True))

    def initial_state(self, batch: int, capacity: int | None = None) -> RecurrentState:
        return tuple(self.zeros(batch, self.dim) for _ in range(2 if self.cell == "lstm" else 1))

    def initialise(self) -> None:
        """Orthogonal recurrence, and an LSTM that remembers by default (forget bias 1)."""
        if self.torch_initialisation:
            return
        weights = dict(self.layer.named_parameters())
        with torch.no_grad():
            for gate in weights["weight_hh_l0"].chunk(_GATES[self.cell]):
                nn.init.orthogonal_(gate)
            if self.cell == "lstm":
                weights["bias_ih_l0"][self.dim : 2 * self.dim].fill_(1.0)
                weights["bias_hh_l0"][self.dim : 2 * self.dim].zero_()

    def cost(self, length: int) -> Cost:
        vectors = 2 if self.cell == "lstm" else 1
        return Cost(
            forward_flops=2.0 * _GATES[self.cell] * self.dim * (self.dim + self.dim),
            state_bytes=vectors * self.dim * self.like.element_size(),
        )
