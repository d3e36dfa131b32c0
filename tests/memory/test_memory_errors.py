"""What does not fit together is said in one line, before it fails far from its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from lockstep.config.spec import validate
from lockstep.errors import UserError
from lockstep.memory import Memory, MemorySpec, Outer, begin, stream
from tests.memory.cases import Case, Fields, draw_case, point

Spoil = Callable[[Case], Case]


def without_velocity(case: Case) -> Case:
    return case._replace(memory=Memory(case.memory.weights))


def without_momentum(case: Case) -> Case:
    return case._replace(gates=case.gates._replace(momentum=None))


def with_momentum(case: Case) -> Case:
    return case._replace(gates=case.gates._replace(momentum=case.gates.keep))


def with_threshold(case: Case) -> Case:
    return case._replace(gates=case.gates._replace(threshold=case.gates.keep))


def without_threshold(case: Case) -> Case:
    return case._replace(gates=case.gates._replace(threshold=None))


def with_wider_values(case: Case) -> Case:
    return case._replace(values=torch.cat((case.values, case.values[..., :2]), dim=-1))


MISTAKES: dict[str, tuple[str, Spoil, str]] = {
    "too few matrices": (
        "Titans",
        lambda case: case._replace(memory=Memory(case.memory.weights[:1], case.memory.velocity)),
        "matrices: the specification has 2, the memory 1",
    ),
    "too many matrices": (
        "delta rule",
        lambda case: case._replace(memory=Memory(case.memory.weights * 3)),
        "matrices: the specification has 1, the memory 3",
    ),
    "momentum without velocity": ("Titans", without_velocity, "rule momentum: a momentum gate and a velocity belong"),
    "momentum without its gate": ("Titans", without_momentum, "rule momentum: a momentum gate and a velocity belong"),
    "descent with a momentum gate": ("Yaad", with_momentum, "rule gradient-descent: a momentum gate and a velocity"),
    "Huber without a threshold": ("Yaad", without_threshold, "bias huber: a threshold gate belongs to the Huber bias"),
    "a threshold without Huber": ("Titans", with_threshold, "bias l2: a threshold gate belongs to the Huber bias"),
    "a residual across widths": (
        "Memora",
        with_wider_values,
        "a residual needs values as wide as keys, not 5 and 3",
    ),
    "no tokens": ("Titans", lambda case: case.between(0, 0), "no tokens"),
}


@pytest.mark.parametrize("form", ["sequential", "chunked"])
@pytest.mark.parametrize(("name", "spoil", "said"), MISTAKES.values(), ids=MISTAKES)
def test_what_does_not_fit_together(name: str, spoil: Spoil, said: str, form: Any) -> None:
    case = spoil(draw_case(point(name, chunk=4), length=5))
    with pytest.raises(ValueError, match=said) as error:
        case.run(form)
    assert len(str(error.value).splitlines()) == 1


def test_an_unknown_form_is_answered_with_the_known_ones() -> None:
    case = draw_case(point("Titans"), length=5)
    form: Any = "parallel"
    with pytest.raises(ValueError, match="unknown form parallel; valid: sequential, chunked"):
        case.run(form)


def test_going_on_needs_the_place_that_forgetting_leads_to() -> None:
    """A state no longer knows where its memory began."""
    case = draw_case(point("anchored Titans"), length=5)
    with pytest.raises(ValueError, match="decay to the initial weights needs them in `outer`"):
        stream(case.queries, case.keys, case.values, case.gates, begin(case.memory), case.spec, Outer())


WRONG_FIELDS: dict[str, tuple[Fields, list[str]]] = {
    "momentum with lq": ({"retention": "lq"}, ["rule momentum needs retention l2: lq is not linear in the weights"]),
    "momentum with kl": ({"retention": "kl"}, ["rule momentum needs retention l2: kl is not linear in the weights"]),
    "unknown field": ({"dept": 2}, ["unknown key dept", "did you mean depth?"]),
    "unknown structure": ({"structure": "tree"}, ["structure", "'linear' or 'mlp'", "'tree'"]),
    "p below one": ({"p": 0.5}, ["p", "greater than or equal to 1", "0.5"]),
    "q of one": ({"q": 1.0}, ["q", "greater than 1", "1.0"]),
    "no matrices": ({"depth": 0}, ["depth", "greater than 0"]),
    "empty chunks": ({"chunk": 0}, ["chunk", "greater than 0"]),
    "clipped to nothing": ({"clip": 0.0}, ["clip", "greater than 0"]),
}


@pytest.mark.parametrize(("fields", "words"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_wrong_specification(fields: Fields, words: list[str]) -> None:
    with pytest.raises(ValidationError):
        MemorySpec(**fields)
    with pytest.raises(UserError) as error:
        validate(MemorySpec, dict(fields), "study.yaml")
    message = str(error.value)
    assert message.startswith("study.yaml: ")
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message
