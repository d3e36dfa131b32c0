"""Scores of tasks: who knows the answers has them all, and teacher forcing says what writing greedily would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import lockstep
from lockstep.config.tasks import CopyingSpec, NeedlesSpec, RecallSpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.tasks.registry import make_task
from lockstep.data.tasks.task import Instance, Task
from lockstep.evaluation.tasks import answered, score_task
from lockstep.models.language_model import LanguageModel
from lockstep.models.sampling import Sampling
from lockstep.models.state import State

LENGTH, INSTANCES = 48, 30


class Reader(LanguageModel):
    """Says what a function of all tokens so far says, and needs no weights for it."""

    def __init__(self, says: Callable[[list[int]], int], longest: int = 4096) -> None:
        super().__init__(lockstep.build("gpt2", vocab_size=258, dim=8, depth=1, heads=1, max_length=longest).spec)
        self.says = says

    def initial_state(self, batch: int, capacity: int | None = None) -> State:
        return [[] for _ in range(batch)]

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        assert state is not None
        logits, after = torch.zeros(*tokens.shape, 258), [list(seen) for seen in state]
        for row, seen in enumerate(after):
            for place, token in enumerate(tokens[row].tolist()):
                seen.append(token)
                logits[row, place, self.says(seen)] = 1
        return logits, after


def recalled(seen: list[int]) -> int:
    """What stood behind the last token when it came first."""
    return seen[seen.index(seen[-1]) + 1] if seen[-1] in seen[:-1] else 0


def recall(pairs: int = 4) -> Task:
    return make_task(RecallSpec(pairs=(pairs,), vocabulary=64), ByteTokenizer())


def test_who_remembers_has_all_answers() -> None:
    (score,) = score_task(Reader(recalled), recall(), (LENGTH,), INSTANCES)
    assert (score.right, score.answers) == (4 * INSTANCES, 4 * INSTANCES)
    assert score.as_dict()["chance"] == pytest.approx(1 / 32)


def test_who_says_one_thing_has_as_many_as_stand_there() -> None:
    task = recall()
    value = 40
    expected = 0
    for number in range(INSTANCES):
        instance = task.instance("test", number, LENGTH)
        expected += int((instance.tokens[instance.answers > 0] == value).sum())
    (score,) = score_task(Reader(lambda seen: value), task, (LENGTH,), INSTANCES)
    assert score.right == expected


def test_depths_fall_into_their_bands() -> None:
    """Who has forgotten the first half of a sequence answers nothing of what stood there, and all the rest."""
    task = make_task(RecallSpec(pairs=(8,), vocabulary=64), ByteTokenizer())
    forgetful = Reader(lambda seen: recalled([0] * 8 + seen[8:]))
    (score,) = score_task(forgetful, task, (32,), INSTANCES, bands=4)
    assert [band.answers for band in score.bands] == [4 * INSTANCES, 4 * INSTANCES, 0, 0]
    assert score.bands[0].right == 0
    assert score.bands[1].right == score.bands[1].answers
    assert sum(band.answers for band in score.bands) == score.answers


def test_every_level_at_every_length_that_there_are_positions_for() -> None:
    task = make_task(CopyingSpec(symbols=(2, 4)), ByteTokenizer())
    scores = score_task(Reader(recalled, longest=32), task, (16, 32, 33), 2)
    assert [(one.level, one.length) for one in scores] == [
        ("2 symbols", 16),
        ("4 symbols", 16),
        ("2 symbols", 32),
        ("4 symbols", 32),
    ]


def greedily(model: LanguageModel, instance: Instance) -> list[bool]:
    """Each answer written token by token from what stands before it."""
    found = []
    for number in range(1, len(instance.depths) + 1):
        places = np.flatnonzero(instance.answers == number)
        prompt = torch.from_numpy(instance.tokens[: places[0]])[None]
        written = model.generate(prompt, len(places), Sampling(temperature=0))[0, places[0] :]
        found.append(written.tolist() == instance.tokens[places].tolist())
    return found


@pytest.mark.parametrize("architecture", ["titans-lmm", "gated-deltanet", "transformer++"])
def test_teacher_forcing_says_what_writing_greedily_would(architecture: str) -> None:
    """By a model that is right now and then: its output table prefers digits, so that some of their rows come true."""
    torch.manual_seed(0)
    model = lockstep.build(architecture, vocab_size=258, dim=16, depth=1, heads=2).double()
    with torch.no_grad():
        model.head.weight.mul_(0.05)
        model.head.weight[ord("0") : ord("9") + 1] += 0.5 * torch.randn(10, 16, dtype=torch.float64)
    task = make_task(NeedlesSpec(kinds=("passkey",)), ByteTokenizer())
    made = [task.instance("test", number, 300) for number in range(6)]
    # The last digit alone is right often enough to tell.
    made += [only_last_token(task.instance("test", number, 300)) for number in range(30)]
    forced = [one.tolist() for one in answered(model, made)]
    assert forced == [greedily(model, one) for one in made]
    assert [True] in forced


def only_last_token(instance: Instance) -> Instance:
    """The same instance, asked for the last token of its answer alone."""
    answers = np.zeros_like(instance.answers)
    answers[np.flatnonzero(instance.answers)[-1]] = 1
    return Instance(instance.tokens, answers, instance.depths, instance.level, (10,), instance.identity)


def said_by_heart(text: list[int], seen: list[int]) -> int:
    return text[len(seen)]


def test_an_answer_of_many_tokens_is_right_as_a_whole_only() -> None:
    task = make_task(NeedlesSpec(kinds=("passkey",)), ByteTokenizer())
    instance = task.instance("test", 0, 300)
    places = np.flatnonzero(instance.answers)
    truth = instance.tokens.tolist()
    assert answered(Reader(partial(said_by_heart, truth)), [instance])[0].tolist() == [True]
    for wrong in places:
        spoiled = list(truth)
        spoiled[wrong] += 1
        assert answered(Reader(partial(said_by_heart, spoiled)), [instance])[0].tolist() == [False]
