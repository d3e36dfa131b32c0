"""The base of every specification: typed, frozen, and closed to unknown keys."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lockstep.errors import UserError

PLAIN_WORDS = {
    "missing": "missing; add the key",
    "model_type": "expected a section of keys and values",
    "tuple_type": "expected a list",
    "too_short": "expected at least one",
}
"""For pydantic's messages that speak of Python rather than of a file."""

ABBREVIATIONS = {
    "batch": "batch_size",
    "layers": "depth",
    "lr": "learning_rate",
    "seed": "random_seed",
    "seq_len": "max_sequence_length",
    "steps": "train_steps",
    "warmup": "warmup_steps",
}
"""What people write for a key; no likeness of letters would find these."""
MOST_SHOWN = 16


class Spec(BaseModel):
    """What a user asks for: validated once, never changed afterwards."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _a_switch_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`true` is not 1: pydantic would take it for that."""
        given = value if isinstance(value, list | tuple) else (value,)
        if info.field_name in cls.model_fields and any(isinstance(one, bool) for one in given):
            kinds = _plain_types(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise ValueError("expected a number, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _fits_the_machine(cls, value: Any) -> Any:
        """Products of such numbers are computed, shown and handed to libraries that count in 64 bits."""
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("expected a number below 2^63")
        return value


def _names_a_place(path: str) -> str:
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user") from None
    return path


def _stands_on_one_line(text: str) -> str:
    if any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in text):
        raise ValueError("expected text without line breaks or control characters")
    return text


Name = Annotated[str, Field(min_length=1), AfterValidator(_stands_on_one_line)]
"""Text that is repeated in messages and used for files."""
PathText = Annotated[Name, AfterValidator(_names_a_place)]
"""A path, or a name where a path may stand; an empty one would be the current folder."""

S = TypeVar("S", bound=Spec)


def validate(kind: type[S], data: Any, source: str) -> S:
    """Build `kind` from `data`, or raise one line that names `source` and the offending key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(one_line(f"{source}: {explain(kind, error)}")) from None
    except UnicodeEncodeError as error:
        raise UserError(one_line(f"{source}: {error.object!r} is not text")) from None


def explain(kind: type[Spec], error: ValidationError) -> str:
    """Say the first problem of a validation error in one line."""
    problems = error.errors(include_url=False)
    # An unknown key is usually a misspelling of the one reported missing: name it first.
    problem = min(problems, key=lambda one: one["type"] not in ("extra_forbidden", "invalid_key"))
    *parents, key = problem["loc"] or ("the configuration",)
    place = ".".join(str(part) for part in (*parents, key))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {place}" + nearest(str(key), field_names(kind, parents))
    message = PLAIN_WORDS.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    if problem["loc"] == ():
        return message
    value = problem["input"]
    shown = "" if isinstance(value, dict | Spec) else f" (got {abbreviate(value)})"
    return f"{place}: {message}{shown}"


def nearest(word: str, valid: Iterable[str]) -> str:
    """`; did you mean …?` when a valid word is close, else the valid words, the nearest of them where they are many."""
    names = sorted(valid)
    meant = [ABBREVIATIONS[word]] if ABBREVIATIONS.get(word) in names else difflib.get_close_matches(word, names, n=1)
    if meant:
        return f"; did you mean {meant[0]}?"
    if len(names) > MOST_SHOWN:
        return f"; nearest: {', '.join(difflib.get_close_matches(word, names, n=5, cutoff=0.0))}"
    return f"; valid: {', '.join(names)}" if names else ""


def field_names(kind: type[Spec], path: list[int | str]) -> Iterable[str]:
    """The keys that are valid below `path`."""
    for part in path:
        field = kind.model_fields.get(str(part))
        if field is None:
            return ()
        candidates = (field.annotation, *get_args(field.annotation))
        nested = [one for one in candidates if isinstance(one, type) and issubclass(one, Spec)]
        if not nested:
            return ()
        kind = nested[0]
    return kind.model_fields


def one_line(text: str) -> str:
    """Text in which line breaks and other control characters, which a user's key may hold, are shown as escapes."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _plain_types(annotation: Any) -> set[Any]:
    """The types at the leaves of an annotation such as `tuple[int, ...] | None`."""
    parts = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return set().union(*map(_plain_types, parts)) if parts else {annotation}


def abbreviate(value: Any) -> str:
    """A value as it may stand in an error line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
