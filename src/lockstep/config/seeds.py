"""How often a study is repeated: pairs of seeds, one for the order of the data and one for the initial weights.

seeds: 3
seeds: {data: [0, 1, 2], init: [10, 11, 12]}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from lockstep.config.run import Seed
from lockstep.config.spec import Spec

MOST_REPEATS = 1000


class SeedsSpec(Spec):
    """Repeats of a study; contestants are compared within a repeat, where they saw the same tokens."""

    data: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MOST_REPEATS)] = (0,)
    """Order of the sequences, one per repeat."""
    init: tuple[Seed, ...] = ()
    """Initial weights and dropout, one per repeat; the same numbers as `data` by default."""

    @model_validator(mode="after")
    def _make_pairs(self) -> SeedsSpec:
        if self.init and len(self.init) != len(self.data):
            raise ValueError(f"{len(self.data)} data seeds and {len(self.init)} init seeds make no pairs")
        if len(set(self.data)) < len(self.data):
            raise ValueError("data: each number once; scores are paired by it")
        return self

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(data, init), one per repeat."""
        return tuple(zip(self.data, self.init or self.data, strict=True))


def read_seeds(value: Any) -> Any:
    """`3` is the seeds 0, 1 and 2; a list is that of both."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_REPEATS:
            raise ValueError(f"expected 1 to {MOST_REPEATS} repeats, or a list of seeds")
        return {"data": list(range(value))}
    if isinstance(value, str):
        raise ValueError("expected how many repeats, or a list of seeds")
    return {"data": value} if isinstance(value, list | tuple) else value


Seeds = Annotated[SeedsSpec, BeforeValidator(read_seeds)]
