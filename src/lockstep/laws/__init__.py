"""What every architecture must obey, registered or brought by an outsider."""

from lockstep.laws.law import Law, LawBroken
from lockstep.laws.subject import Subject, subjects, subjects_of
from lockstep.laws.suite import LAWS, Verdict, check, check_subjects, judge, law_named

__all__ = [
    "LAWS",
    "Law",
    "LawBroken",
    "Subject",
    "Verdict",
    "check",
    "check_subjects",
    "judge",
    "law_named",
    "subjects",
    "subjects_of",
]
