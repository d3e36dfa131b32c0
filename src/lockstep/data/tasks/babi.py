"""Tasks 1 to 5 of bAbI (Weston et al., arXiv 1502.05698): short stories, and questions about them.

Train files are those with 10,000 questions, but for qa3, of which the one with 1,000 is used. Every tenth story of a
train file is held back as the valid split. A question of valid or test that is asked of the same story in train is
left out, and one of valid that is in test: 16 and 15 of the 1,000 test and valid questions of qa1, 706 and 764 of
qa4, one and one of qa5.

The files are taken as they are. In qa5, one in 500 of the answers is not what was given last, though it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep.data.archives import read_checked
from lockstep.data.locations import find_archived, search_folders_in_words
from lockstep.errors import UserError

ARCHIVES = ("babi.tar.xz", "babi.tar.gz", "babi.zip", "tasks_1-20_v1-2.tar.gz")
FOLDER = "tasks_1-20_v1-2"
HELD_BACK = 10
"""One story in so many is for the valid split."""

# The sha256 of each file.
FILES = {
    "en-10k/qa1_single-supporting-fact_train.txt": "749ea9f7c99070feb2d88c975a254417a0dcc8274add4435ae5ae24c7afc7e9d",
    "en-10k/qa1_single-supporting-fact_test.txt": "55acf66cef2f6d798e2aa1d056e1ec8f24e910ea9215b639450574321132959b",
    "en-10k/qa2_two-supporting-facts_train.txt": "d4074c0c5d54f70ce2f538056ce2b6ef6a313da336da4245f1a24f1298e37ef3",
    "en-10k/qa2_two-supporting-facts_test.txt": "eff93fb9cd81ba02eb765772cf7cc269769ed44ec71cbbbc19cfb16ee5eba0f6",
    "en/qa3_three-supporting-facts_train.txt": "a6e78019f36a02a7ed71fe6aaded0b563ff09c8deec392931801fcd9c6af4d60",
    "en-10k/qa3_three-supporting-facts_test.txt": "17795c977100baf8188f386522ae301b62d6c1a13efc01b3aea781e588b4d57f",
    "en-10k/qa4_two-arg-relations_train.txt": "5d11b821d35234988ab907866aa7ce718e6b6d751acf63bdef52262afb59f12c",
    "en-10k/qa4_two-arg-relations_test.txt": "07f0ca18ddeea9eed4ba6d59e162adcb0ce44815721114b3540d92825509331e",
    "en-10k/qa5_three-arg-relations_train.txt": "2506910935b701bac64fc8b1d7ff12bd8d0f47ceefca183454282bec784c12a5",
    "en-10k/qa5_three-arg-relations_test.txt": "ec825c1c8a76e63a31f0d7a7763cd63740e98332fa9bdf246a19068949bd5f97",
}


@dataclass(frozen=True)
class Line:
    """One sentence of a story."""

    number: int
    """Within the story as it was written, where questions have numbers too."""
    text: str


@dataclass(frozen=True)
class Question:
    """A question, and everything of its story that stands before it."""

    story: tuple[Line, ...]
    text: str
    answer: str
    supporting: tuple[int, ...]
    """The numbers of the lines that the answer follows from."""

    @cached_property
    def identity(self) -> bytes:
        """Its whole text; the same text is the same question, wherever it was written."""
        return "\n".join([*(line.text for line in self.story), self.text]).encode()


@dataclass(frozen=True)
class Questions:
    """Those of one task, in splits that share none."""

    splits: dict[str, tuple[Question, ...]]
    answers: tuple[str, ...]
    """All different ones of the train file, in the order of the alphabet."""
    dropped: dict[str, int]
    """Per split, how many were left out because another split has them."""


class Babi:
    """The files, found and checked."""

    def __init__(self) -> None:
        source = find_babi()
        if source is None:
            raise UserError(
                f"babilong: no {ARCHIVES[0]}, nor a folder {FOLDER} with the tasks of bAbI, in"
                f" {search_folders_in_words()}; put it into one of these folders (LOCKSTEP_DATA names more)"
            )
        contents = read_checked(source, FOLDER, FILES)
        self._texts = {name: content.decode("ascii") for name, content in contents.items()}
        self._tasks: dict[str, Questions] = {}

    def task(self, name: str) -> Questions:
        """`qa1` to `qa5`."""
        if name not in self._tasks:
            train, test = (stories(self._texts[file_of(name, part)]) for part in ("train", "test"))
            self._tasks[name] = _split(train, test)
        return self._tasks[name]


def file_of(task: str, part: str) -> str:
    """The train or test file of a task."""
    return next(name for name in FILES if f"/{task}_" in name and name.endswith(f"_{part}.txt"))


def find_babi() -> Path | None:
    """The folder or archive that holds the files, where there is one."""
    return find_archived(FOLDER, FILES, ARCHIVES)


def stories(text: str) -> list[list[Question]]:
    """The questions of each story of a file; line 1 begins a story."""
    found: list[list[Question]] = []
    before: list[Line] = []
    for line in text.splitlines():
        number, _, said = line.partition(" ")
        if number == "1":
            found.append([])
            before = []
        question, *rest = said.split("\t")
        if rest:
            answer, supporting = rest
            lines = tuple(int(one) for one in supporting.split())
            found[-1].append(Question(tuple(before), question.strip(), answer, lines))
        else:
            before.append(Line(int(number), said.strip()))
    return found


def _split(train: list[list[Question]], test: list[list[Question]]) -> Questions:
    kept: list[Question] = []
    held_back: list[Question] = []
    for number, story in enumerate(train):
        (held_back if number % HELD_BACK == HELD_BACK - 1 else kept).extend(story)
    asked = [question for story in test for question in story]
    in_train, in_test = {one.identity for one in kept}, {one.identity for one in asked}
    splits = {
        "train": tuple(kept),
        "valid": tuple(one for one in held_back if one.identity not in in_train | in_test),
        "test": tuple(one for one in asked if one.identity not in in_train),
    }
    dropped = {"valid": len(held_back) - len(splits["valid"]), "test": len(asked) - len(splits["test"])}
    return Questions(splits, tuple(sorted({one.answer for one in (*kept, *held_back)})), dropped)
