"""Every registered architecture obeys every law, under each of its variants."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from lockstep.laws import LAWS, Law, Subject, judge, law_named, subjects
from lockstep.models.registry import architectures

ABSENT = {"hf"} if find_spec("transformers") is None else set()
"""Architectures of a library that is not installed."""
SUBJECTS = [subject for name in architectures() if name not in ABSENT for subject in subjects(name)]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: f"{subject.name}({subject.label})")
def test_obeys(subject: Subject, law: Law) -> None:
    verdict = judge(law, subject)
    assert verdict.outcome == ("passed" if law.applies(subject) else "not applicable"), verdict.message


def test_laws_have_distinct_names() -> None:
    assert len({law.name for law in LAWS}) == len(LAWS)


def test_every_parameter_is_randomised() -> None:
    for subject in SUBJECTS:
        for name, parameter in subject.model().named_parameters():
            assert parameter.std() > 0.05, f"{subject.name} {name} is still near a constant"


def test_judging_disturbs_nothing() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    with torch.no_grad():
        assert judge(law_named("every-gradient"), SUBJECTS[0]).passed
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_a_law_that_does_not_apply_says_why() -> None:
    (bert, *_) = subjects("bert")
    verdict = judge(law_named("step-equals-forward"), bert)
    assert (verdict.outcome, verdict.passed) == ("not applicable", True)
    assert "bidirectional" in verdict.message
