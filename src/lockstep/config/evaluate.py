"""What trained contestants are tested by, besides their score on held-out text.

evaluate: [recall, lengths]
evaluate: {recall: {pairs: [8, 64]}, lengths: {times: 16}}
evaluate: [lengths, recall: {pairs: [8, 64]}]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from lockstep.config.commonsense import CommonsenseSpec
from lockstep.config.lengths import LengthsSpec
from lockstep.config.spec import Spec, validate
from lockstep.config.tasks import (
    TASKS,
    AnyTask,
    BabilongSpec,
    CopyingSpec,
    InductionSpec,
    NeedlesSpec,
    NoiseSpec,
    RecallSpec,
    StatesSpec,
)


class EvaluateSpec(Spec):
    """A list of names, or names with knobs; what is not named is not done."""

    recall: RecallSpec | None = None
    """Multi-query associative recall: pairs are shown once, then asked for."""
    induction: InductionSpec | None = None
    """A symbol comes again: what followed it the first time?"""
    copying: CopyingSpec | None = None
    """Symbols scattered among blanks, to be said again."""
    states: StatesSpec | None = None
    """State tracking: the product of permutations."""
    noise: NoiseSpec | None = None
    """Recall of what was shown several times, not always alike."""
    needles: NeedlesSpec | None = None
    """Needles in a haystack, in the manner of RULER."""
    babilong: BabilongSpec | None = None
    """Stories of bAbI scattered in books, after BABILong."""
    lengths: LengthsSpec | None = None
    """Held-out text far beyond the training length, and the worth of context."""
    commonsense: CommonsenseSpec | None = None
    """LAMBADA, HellaSwag, WinoGrande, BoolQ and ARC."""

    @model_validator(mode="before")
    @classmethod
    def _names_alone_will_do(cls, given: Any) -> Any:
        if isinstance(given, list | tuple):
            named = [one if isinstance(one, dict) else {str(one): None} for one in given]
            given = {name: knobs for one in named for name, knobs in one.items()}
        if isinstance(given, dict):
            return {name: {} if knobs is None else knobs for name, knobs in given.items()}
        return given

    @model_serializer(mode="wrap")
    def _only_what_is_asked(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A name without knobs is asked for, so that what is not must not be named."""
        return {name: knobs for name, knobs in dump(self).items() if knobs is not None}

    def tasks(self, trained: Sequence[AnyTask]) -> tuple[AnyTask, ...]:
        """Those to be tested by; one that was trained on has the same knobs, unless it is said otherwise."""
        known: dict[str, Any] = {one.name: one.model_dump(exclude_unset=True) for one in trained}
        asked: list[AnyTask] = [spec for name in TASKS if (spec := getattr(self, name)) is not None]
        return tuple(
            validate(
                type(one), {**known.get(one.name, {}), **one.model_dump(exclude_unset=True)}, f"evaluate.{one.name}"
            )
            for one in asked
        )
