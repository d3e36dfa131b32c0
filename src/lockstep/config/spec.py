"""The base of every specification: typed, frozen, and closed to unknown keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.errors import UserError


class Spec(BaseModel):
    """What a user asks for: validated once, never changed afterwards."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_default=True
    )


S = TypeVar("S", bound=Spec)


def validate(kind: type[S], data: Any, source: str) -> S:
    """Build `kind` from `data`, or raise one line that names `source` and the offending key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(kind, error)}") from None


def explain(kind: type[Spec], error: ValidationError) -> str:
    """Say the first problem of a validation error in one line."""
    problems = error.errors(include_url=False)
    # An unknown key is usually a misspelling of the one reported missing: name it first.
    problem = min(problems, key=lambda one: one["type"] != "extra_forbidden")
    *parents, key = problem["loc"] or ("the configuration",)
    place = ".".join(str(part) for part in (*parents, key))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {place}" + nearest(str(key), field_names(kind, parents))
    message = problem["msg"].removeprefix("Value error, ").replace("\n", " ")
    if problem["loc"] == ():
        return message
    value = problem["input"]
    shown = "" if isinstance(value, dict | Spec) else f" (got {abbreviate(value)})"
    return f"{place}: {message}{shown}"


def nearest(word: str, valid: Iterable[str]) -> str:
    """`; did you mean …?` when a valid word is close, else the list of valid words."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
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


def abbreviate(value: Any) -> str:
    """A value as it may stand in an error line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
