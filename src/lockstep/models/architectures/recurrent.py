"""LSTM, GRU and RNN: torch's layers inside the common block, or stacked plainly as published."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from lockstep.models.block import Block, PlainBlock
from lockstep.models.mixers.recurrent import Cell, Recurrent
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec


class RecurrentSpec(ModelSpec):
    """What the three share."""

    cell: ClassVar[Cell]
    has_heads: ClassVar[bool] = False
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"published": True}, {"tie_embeddings": False})

    published: bool = False
    """The plain stacked form: no norms, residuals or MLPs, torch's own initialisation."""

    def mixer(self, layer: int) -> Recurrent:
        return Recurrent(self.dim, self.cell, torch_initialisation=self.published)

    def block(self, layer: int) -> Block:
        return PlainBlock(self.mixer(layer), self.dropout) if self.published else super().block(layer)

    def final_norm(self) -> nn.Module:
        return nn.Identity() if self.published else super().final_norm()


@architecture("lstm")
class LstmSpec(RecurrentSpec):
    """Long short-term memory."""

    cell: ClassVar[Cell] = "lstm"


@architecture("gru")
class GruSpec(RecurrentSpec):
    """Gated recurrent units."""

    cell: ClassVar[Cell] = "gru"


@architecture("rnn")
class RnnSpec(RecurrentSpec):
    """The plain tanh recurrence."""

    cell: ClassVar[Cell] = "rnn"
