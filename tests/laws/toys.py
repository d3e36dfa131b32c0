"""Toy architectures, none of them registered: a sound one, and others that each spoil one thing of it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lockstep.laws import Subject
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.spec import ModelSpec

SEGMENT = 8


class Sound(Mixer):
    """A running mean of all tokens so far; every toy below spoils one thing of it."""

    reach: ClassVar[int | None] = None

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Parameter(torch.zeros(dim))

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        total, count = self.initial_state(x.shape[0]) if state is None else state
        totals = total[:, None] + self.value(x).cumsum(dim=1)
        counts = count[:, None] + torch.arange(1, x.shape[1] + 1, device=x.device)
        mixed = totals / counts[..., None].to(x.dtype)
        return self.output(mixed * (1 + self.gate)), (totals[:, -1].to(total.dtype, copy=True), counts[:, -1].clone())

    def initial_state(self, batch: int, capacity: int | None = None) -> Any:
        return self.zeros(batch, self.dim), torch.zeros(batch, dtype=torch.int64, device=self.like.device)

    def cost(self, length: int) -> Cost:
        flops = 2 * product_flops(self.dim, self.dim)
        return Cost(forward_flops=flops, state_bytes=self.dim * self.like.element_size() + 8)


def subject_of(mixer_type: type[Sound], causal_model: bool = True) -> Subject:
    class ToySpec(ModelSpec):
        causal: ClassVar[bool] = causal_model

        def mixer(self, layer: int) -> Mixer:
            return mixer_type(self.dim)

        @property
        def reach(self) -> int | None:
            return mixer_type.reach

    return Subject(ToySpec)


class LeaksThroughZeroGate(Sound):
    """At its own initialisation the gate is zero and the leak reads exactly 0."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        return super().forward(x, state) + self.gate * x.mean(dim=1, keepdim=True)


class LeaksInsideSegments(Sound):
    """Every token sees its whole segment; cuts at segment boundaries show nothing."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        means = [part.mean(dim=1, keepdim=True).expand_as(part) for part in x.split(SEGMENT, dim=1)]
        return super().forward(x, state) + torch.cat(means, dim=1)


class DependsOnLength(Sound):
    """Normalised by how many tokens there are."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        return super().forward(x, state) / x.shape[1]


class SeesItselfOnly(Sound):
    """Harmless to causality, but no bidirectional model."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        y: Tensor = self.output(self.value(x) * self.gate)
        return y


class MixesBatch(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = super().step(x, state)
        return y + y.mean(dim=0, keepdim=True), state


class ChangesGivenState(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = self.initial_state(x.shape[0]) if state is None else state
        y, after = super().step(x, state)
        for old, new in zip(state, after, strict=True):
            old.copy_(new)
        return y, after


class WrongAfterWindow(Sound):
    """Right as long as no more than a segment was seen before the piece."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, (total, count) = super().step(x, state)
        return y, (total, count.clamp_max(SEGMENT))


class ForgetsUnderInferenceMode(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return super().step(x, None if torch.is_inference_mode_enabled() else state)


class SharesPosition(Sound):
    """The whole batch stands where its foremost sample does."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is not None:
            state = (state[0], state[1].amax().expand_as(state[1]))
        return super().step(x, state)


class GrowingState(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, after = super().step(x, None if state is None else state[:2])
        seen = x if state is None or len(state) < 3 else torch.cat((state[2], x), dim=1)
        return y, (*after, seen)


class KeepsPrefillAlive(Sound):
    """The state is a view of something as long as the prefill."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, (total, count) = super().step(x, state)
        return y, (total[:, None].repeat(1, x.shape[1], 1)[:, -1], count)


class WrongStateBytes(Sound):
    def cost(self, length: int) -> Cost:
        return super().cost(length) + Cost(state_bytes=8)


class WrongFlops(Sound):
    def cost(self, length: int) -> Cost:
        return super().cost(length) + Cost(forward_flops=product_flops(self.dim, self.dim))


class StepsTwice(Sound):
    """A decoded token costs twice what it should, and a whole sequence nothing more."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if x.shape[1] == 1 and state is not None:
            super().step(x, state)
        return super().step(x, state)


class WrongParameters(Sound):
    def cost(self, length: int) -> Cost:
        return super().cost(length) + Cost(parameters=1)


class DeadParameter(Sound):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.unused = nn.Parameter(torch.zeros(dim))


class DetachedParameter(Sound):
    """It takes part in the arithmetic, but its gradient is zero."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.dead = nn.Parameter(torch.zeros(dim))

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, after = super().step(x, state)
        return y + 0 * self.dead, after


class CountsCalls(Sound):
    """The second computation of the same thing comes out otherwise."""

    calls = 0

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        self.calls += 1
        return super().forward(x, state) * self.calls


class LowersState(Sound):
    """Under autocast the state takes on the lower precision."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, (total, count) = super().step(x, state)
        return y, (total.to(self.output(x).dtype), count)


class NotFiniteInBfloat16(Sound):
    """A small number vanishes beside one when only eight bits are kept, and is then divided by."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, after = super().step(x, state)
        return y * 1e-4 / ((torch.ones_like(y) + 1e-4) - 1), after


class ShiftedByOne(Sound):
    """Each position is handed the token that follows it: its own label."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        y: Tensor = self.output(self.value(x.roll(-1, dims=1)))
        return y


class CannotLearn(Sound):
    """Noise drowns the stream, so that no pattern gets through."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, after = super().step(x, state)
        return y + 1e4 * torch.randn_like(y), after


class Windowed(Sound):
    """Sees the last four tokens, whatever it declares."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        cache = self.initial_state(x.shape[0]) if state is None else state
        values = torch.cat((cache, self.value(x)), dim=1)
        return self.output(values.unfold(1, 4, 1).sum(-1) * self.gate), values[:, -3:].clone()

    def initial_state(self, batch: int, capacity: int | None = None) -> Any:
        return self.zeros(batch, 3, self.dim)

    def cost(self, length: int) -> Cost:
        flops = 2 * product_flops(self.dim, self.dim)
        return Cost(forward_flops=flops, state_bytes=3 * self.dim * self.like.element_size())


class WindowedAsDeclared(Windowed):
    reach: ClassVar[int | None] = 2 * 3


class ReachesFarther(Windowed):
    reach: ClassVar[int | None] = 2 * 3 - 1


class ReachesLess(Windowed):
    reach: ClassVar[int | None] = 2 * 3 + 1


class UnsavedWeights(Sound):
    """Part of the model is a plain tensor, which no file holds."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.hidden = torch.randn(dim)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, after = super().step(x, state)
        return y * self.hidden.to(y.dtype), after


class DropsInEvaluation(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return super().step(nn.functional.dropout(x, 0.5), state)


class Raises(Sound):
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError("step is not\nwritten yet")
