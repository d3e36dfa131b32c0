"""Zero-shot sets: questions with a few answers to choose from, and passages whose last word is to be guessed.

What a model is shown equals the LM Evaluation Harness's own task definitions, down to the space. Two sets differ from
the harness's in their documents: BoolQ comes as first published, where SuperGLUE's copy begins each passage with the
title of its page; and each of ARC's test questions comes with four answers, where one that has three repeats a wrong
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config.commonsense import CommonsenseName
from lockstep.data.archives import read_checked
from lockstep.data.locations import find_archived, search_folders_in_words
from lockstep.errors import UserError

FOLDER = "commonsense"
ARCHIVES = ("commonsense.tar.xz", "commonsense.tar.gz", "commonsense.zip")


@dataclass(frozen=True, slots=True)
class Choice:
    """One example: the pair of context and continuation that a model finds likeliest is its answer."""

    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    """One for each context. A single one is no choice: it is to be said word for word."""
    right: int
    """The place of the right pair."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.contexts, self.continuations, strict=True))


def one_context(context: str, answers: Sequence[str], right: int) -> Choice:
    """Answers to one question; a space stands before each."""
    return Choice((context,) * len(answers), tuple(f" {answer}" for answer in answers), right)


def last_word(document: dict[str, Any]) -> Choice:
    """LAMBADA (Paperno et al., arXiv 1606.06031), in OpenAI's form."""
    *before, last = document["text"].split(" ")
    return one_context(" ".join(before), [last], 0)


def ending(document: dict[str, Any]) -> Choice:
    """HellaSwag (Zellers et al., arXiv 1905.07830)."""
    scene = f"{document['ctx_a']} {document['ctx_b'].capitalize()}"
    endings = [without_brackets(one) for one in document["endings"]]
    return one_context(without_brackets(f"{document['activity_label']}: {scene}"), endings, int(document["label"]))


def without_brackets(text: str) -> str:
    """Headings in brackets are left over from WikiHow."""
    plain = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return plain.replace("  ", " ")


def filled_gap(document: dict[str, Any]) -> Choice:
    """WinoGrande (Sakaguchi et al., arXiv 1907.10641): after which name is the rest of the sentence likelier?"""
    before, after = document["sentence"].split("_", 1)
    contexts = (before + document["option1"], before + document["option2"])
    return Choice(contexts, (f" {after.strip()}",) * 2, int(document["answer"]) - 1)


def yes_or_no(document: dict[str, Any]) -> Choice:
    """BoolQ (Clark et al., arXiv 1905.10044)."""
    context = f"{document['passage']}\nQuestion: {document['question']}?\nAnswer:"
    return one_context(context, ["no", "yes"], int(document["answer"]))


def science(document: dict[str, Any]) -> Choice:
    """ARC (Clark et al., arXiv 1803.05457); the query begins with `Question: `."""
    return one_context(f"{document['query']}\nAnswer:", document["choices"], document["gold"])


@dataclass(frozen=True, slots=True)
class Source:
    """Where a set lies, and what its lines mean."""

    file: str
    sha256: str
    read: Callable[[dict[str, Any]], Choice]


SOURCES: dict[CommonsenseName, Source] = {
    "lambada_openai": Source(
        "lambada_openai_test.jsonl", "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226", last_word
    ),
    "hellaswag": Source(
        "hellaswag_validation.jsonl", "d5c08c3e5771307e73886dc9d2744df8ca5f372a7857f32fe77df8c58942f950", ending
    ),
    "winogrande": Source(
        "winogrande_xl_validation.jsonl", "69f3d7f3a900d775339b04c7de672609c40fca573e50f594f2ae66d8782505be", filled_gap
    ),
    "boolq": Source(
        "boolq_validation.jsonl", "dbad2984e58eaa2184b6d0acfe2e94a73b9868381046255d6be6c3bed9088b68", yes_or_no
    ),
    "arc_easy": Source(
        "arc_easy_test.jsonl", "d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5", science
    ),
    "arc_challenge": Source(
        "arc_challenge_test.jsonl", "1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636", science
    ),
}


def read_commonsense(
    names: Sequence[CommonsenseName], examples: int | None = None
) -> dict[CommonsenseName, list[Choice]]:
    """The first so many examples of each set, or all of them, in one pass over the archive."""
    place = find_commonsense()
    if place is None:
        raise UserError(
            f"commonsense: no {ARCHIVES[0]} or folder {FOLDER} in {search_folders_in_words()}; put it into one of"
            f" these folders (LOCKSTEP_DATA names more)"
        )
    contents = read_checked(place, FOLDER, {SOURCES[name].file: SOURCES[name].sha256 for name in names})
    sets = {}
    for name in names:
        # Bytes are split at line breaks alone; text would be at other separators too, which a passage may hold.
        lines = contents[SOURCES[name].file].splitlines()[:examples]
        sets[name] = [SOURCES[name].read(json.loads(line)) for line in lines]
    return sets


def find_commonsense() -> Path | None:
    """The folder or archive that holds the sets, where there is one."""
    return find_archived(FOLDER, (source.file for source in SOURCES.values()), ARCHIVES)
