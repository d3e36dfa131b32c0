"""Generated tasks: what they ask, and how hard they are. Training on a task and being tested by it share the knobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PositiveInt, Tag

from lockstep.config.spec import Spec


def one_or_many(value: Any) -> Any:
    """One value where a list may stand."""
    return (value,) if isinstance(value, int | float | str) else value


Share = Annotated[float, Field(ge=0, lt=1)]
Counts = Annotated[tuple[PositiveInt, ...], BeforeValidator(one_or_many), Field(min_length=1)]
TaskLengths = Annotated[tuple[Annotated[int, Field(ge=2)], ...], BeforeValidator(one_or_many)]
Symbols = Annotated[int, Field(ge=4)]

NeedleKind = Literal["passkey", "number", "word", "multi-key", "multi-value", "multi-query"]
Haystack = Literal["repeated", "books"]
BabiTask = Literal["qa1", "qa2", "qa3", "qa4", "qa5"]


class TaskSpec(Spec):
    """What all tasks have in common."""

    lengths: TaskLengths = ()
    """Tokens of a test instance; the training length by default."""
    instances: PositiveInt = 200
    """Test instances of each length and level."""


class RecallSpec(TaskSpec):
    """Multi-query associative recall: pairs are shown, then asked for in another order."""

    name: Literal["recall"] = "recall"
    pairs: Counts = (4, 8, 16)
    """Pairs in an instance; each number is a level."""
    vocabulary: Symbols = 128
    """Symbols: half of them keys, half of them values."""
    questions: PositiveInt = 1
    """Times that a pair is asked for in training, at most and where there is room; tests ask once."""
    overwrites: Share = 0.0
    """Share of the keys that are shown again, with a value drawn anew: the one asked for."""


class InductionSpec(TaskSpec):
    """A symbol that stood once in random ones comes again at the end: what followed it?"""

    name: Literal["induction"] = "induction"
    vocabulary: Symbols = 64


class CopyingSpec(TaskSpec):
    """Selective copying: symbols scattered among blanks are to be said again, in their order."""

    name: Literal["copying"] = "copying"
    symbols: Counts = (4, 8, 16)
    """Symbols to be copied; each number is a level."""
    vocabulary: Symbols = 32


class StatesSpec(TaskSpec):
    """State tracking: permutations are composed one after another, and the product is asked for now and then."""

    name: Literal["states"] = "states"
    group: Annotated[tuple[Literal["S3", "A5", "S5"], ...], BeforeValidator(one_or_many), Field(min_length=1)] = ("S5",)
    """The permutations: all of three or five things, or the even ones of five; each group is a level."""
    elements: PositiveInt = 8
    """Permutations from one question to the next."""


class NoiseSpec(TaskSpec):
    """Recall from noisy showings: each key is shown several times, not always with its value."""

    name: Literal["noise"] = "noise"
    pairs: PositiveInt = 8
    showings: Annotated[int, Field(ge=3)] = 5
    """Times that each key is shown."""
    vocabulary: Symbols = 128
    corrupted: Annotated[tuple[Share, ...], BeforeValidator(one_or_many), Field(min_length=1)] = (0.0, 0.1, 0.2, 0.3)
    """Share of the showings whose value is random; each share is a level."""
    contradicting: Share = 0.0
    """Share of the showings that agree with each other on another value of that key."""
    outliers: Share = 0.0
    """Share of the showings whose value is a symbol that is never a value otherwise."""


class NeedlesSpec(TaskSpec):
    """Needles in a haystack, in the manner of RULER (Hsieh et al., arXiv 2404.06654)."""

    name: Literal["needles"] = "needles"
    kinds: Annotated[tuple[NeedleKind, ...], BeforeValidator(one_or_many), Field(min_length=1)] = (
        "passkey",
        "number",
        "word",
    )
    """What is hidden; each kind is a level."""
    haystack: Haystack | None = None
    """Around it: a few sentences again and again, or real books; by default the first for passkey, the second else."""
    keys: PositiveInt = 4
    """Needles of a multi-key instance, of which one is asked for; those of multi-query, all of which are."""
    values: PositiveInt = 4
    """Values of the key of a multi-value instance."""
    depths: PositiveInt = 5
    """Bands of depth that are told apart."""


class BabilongSpec(TaskSpec):
    """Stories of bAbI scattered in real books, our construction after BABILong (Kuratov et al., arXiv 2406.10149)."""

    name: Literal["babilong"] = "babilong"
    tasks: Annotated[tuple[BabiTask, ...], BeforeValidator(one_or_many), Field(min_length=1)] = (
        "qa1",
        "qa2",
        "qa3",
        "qa4",
        "qa5",
    )
    """Each is a level."""
    source: Literal["ours", "published"] = "ours"
    """`published` takes the samples of BABILong itself from the Hugging Face hub, for tests alone."""


TASKS: dict[str, type[TaskSpec]] = {
    "recall": RecallSpec,
    "induction": InductionSpec,
    "copying": CopyingSpec,
    "states": StatesSpec,
    "noise": NoiseSpec,
    "needles": NeedlesSpec,
    "babilong": BabilongSpec,
}


def name_of_task(value: Any) -> str | None:
    """By which the right specification is found."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if isinstance(name, str) else None


AnyTask = Annotated[
    Annotated[RecallSpec, Tag("recall")]
    | Annotated[InductionSpec, Tag("induction")]
    | Annotated[CopyingSpec, Tag("copying")]
    | Annotated[StatesSpec, Tag("states")]
    | Annotated[NoiseSpec, Tag("noise")]
    | Annotated[NeedlesSpec, Tag("needles")]
    | Annotated[BabilongSpec, Tag("babilong")],
    Discriminator(
        name_of_task,
        custom_error_type="task_name",
        custom_error_message=f"expected a task with the name {', '.join(TASKS)}",
    ),
]
