"""A gated moving average: every channel forgets at a rate that it learns."""

import torch
from torch import Tensor, nn

from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec


class MovingAverage(Mixer):
    """The state is the average itself, [batch, dim]; `forward` is one long `step`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value_and_gate = nn.Linear(dim, 2 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.forgetting = nn.Parameter(torch.linspace(-6, 2, dim))

    def step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        average = self.initial_state(x.shape[0]) if state is None else state
        values, gates = self.value_and_gate(x).chunk(2, dim=-1)
        averages = []
        for value in values.unbind(dim=1):
            average = torch.lerp(average, value.to(average.dtype), self.forgetting.sigmoid())
            averages.append(average)
        return self.output(torch.stack(averages, dim=1) * nn.functional.silu(gates)), average

    def initial_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.zeros(batch, self.output.in_features)

    def cost(self, length: int) -> Cost:
        products = product_flops(*self.value_and_gate.weight.shape) + product_flops(*self.output.weight.shape)
        return Cost(forward_flops=products, state_bytes=self.output.in_features * self.like.element_size())


@architecture("ema")
class EmaSpec(ModelSpec):
    """Moving averages inside the common block."""

    has_heads = False

    def mixer(self, layer: int) -> MovingAverage:
        return MovingAverage(self.dim)
