"""Which settings are tuned, for every contestant with as many trials of as many tokens.

tuning: {learning_rate: [5e-4, 1e-3, 2e-3, 4e-3], train_steps: 100}
"""

from __future__ import annotations

import itertools

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from lockstep.config.run import Seed
from lockstep.config.spec import Spec


class TuningSpec(Spec):
    """A grid; its best trial by held-out loss decides each contestant's settings."""

    learning_rate: tuple[PositiveFloat, ...] = ()
    weight_decay: tuple[NonNegativeFloat, ...] = ()
    train_steps: PositiveInt | None = None
    """Of each trial; as many as the study's by default."""
    seed: Seed = 1000
    """Of data and initial weights in all trials: none that is compared afterwards, so that no luck is carried over."""

    @model_validator(mode="after")
    def _is_a_grid(self) -> TuningSpec:
        if not self.grid:
            raise ValueError("name what is tried, such as learning_rate: [5e-4, 1e-3, 2e-3]")
        for name, values in self.grid.items():
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name}: expected ascending values, each once")
        return self

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """The values of each tuned setting."""
        named = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return {name: values for name, values in named.items() if values}

    @property
    def trials(self) -> tuple[dict[str, float], ...]:
        """Every combination."""
        combinations = itertools.product(*self.grid.values())
        return tuple(dict(zip(self.grid, values, strict=True)) for values in combinations)
