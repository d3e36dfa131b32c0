"""Tasks of symbols: a perfect reader is always right, a guesser as often as is said, and no split knows another."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from lockstep.config.tasks import CopyingSpec, InductionSpec, NoiseSpec, RecallSpec, StatesSpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.character_tokenizer import CharacterTokenizer
from lockstep.data.randomness import Draws
from lockstep.data.tasks.registry import make_task
from lockstep.data.tasks.task import SPLIT_SHARES, Instance, Task
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError
from tests.data.tasks.oracles import HIDDEN, SEPARATOR, SymbolSpec, candidates, latest, read

REPOSITORY = Path(__file__).resolve().parents[3]

SPECS: dict[str, SymbolSpec] = {
    "recall": RecallSpec(pairs=(2, 4, 16)),
    "recall-overwritten": RecallSpec(pairs=(4, 16), vocabulary=33, overwrites=0.5),
    "induction": InductionSpec(),
    "induction-few": InductionSpec(vocabulary=8),
    "copying": CopyingSpec(symbols=(2, 4, 16)),
    "states": StatesSpec(group=("S3", "A5", "S5")),
    "noise": NoiseSpec(),
    "noise-of-all-sorts": NoiseSpec(
        pairs=6, showings=7, vocabulary=20, corrupted=(0.0, 0.25), contradicting=0.1, outliers=0.05
    ),
}
GOLDEN = {
    "recall": "1a31b748a6fba5d9",
    "recall-overwritten": "68f771379b526553",
    "induction": "2bd1ce948695d141",
    "induction-few": "4beee867d14d3f60",
    "copying": "8b71e5eb834100d6",
    "states": "016a3eec23a71f15",
    "noise": "69b6179a9785504b",
    "noise-of-all-sorts": "f942fdd19dda0735",
}
"""sha256 of a few instances of each: who changes a generator makes other instances, and says so here."""


def build(spec: SymbolSpec, tokenizer: Tokenizer | None = None) -> Task:
    return make_task(spec, tokenizer or ByteTokenizer())


def answer_places(instance: Instance) -> list[int]:
    return [int(place) for place in np.flatnonzero(instance.answers)]


def without_answers(instance: Instance) -> list[int]:
    return [int(token) for token in np.where(instance.answers > 0, HIDDEN, instance.tokens)]


def check_oracle(spec: SymbolSpec, instance: Instance) -> None:
    """What a perfect reader says, who is not shown the answers, is what stands there."""
    places = answer_places(instance)
    assert read(spec, without_answers(instance), places) == instance.tokens[places].tolist()


def check_form(spec: SymbolSpec, instance: Instance, length: int) -> None:
    """Length, numbers, depths and candidates are what an instance promises."""
    assert instance.tokens.shape == instance.answers.shape == (length,)
    assert instance.tokens.dtype == instance.answers.dtype == np.int64
    places, tokens = answer_places(instance), instance.tokens.tolist()
    assert instance.answers[places].tolist() == list(range(1, len(places) + 1))
    assert places
    assert instance.candidates == tuple(len(candidates(spec, tokens, place)) for place in places)
    assert all(tokens[place] in candidates(spec, tokens, place) for place in places)
    assert all(0 <= depth <= 1 for depth in instance.depths)
    asked = latest(spec, without_answers(instance), places, instance.tokens[places].tolist())
    assert instance.depths == tuple(place / length for place in asked)


@pytest.mark.parametrize("split", SPLIT_SHARES)
@pytest.mark.parametrize("name", SPECS)
def test_a_perfect_reader_is_always_right(name: str, split: str) -> None:
    task = build(SPECS[name])
    for level in task.levels:
        for length in (task.shortest(level), task.shortest(level) + 1, task.shortest(level) + 53):
            for number in range(90 // len(task.levels)):
                instance = task.instance(split, number, length, level, seed=7)
                check_oracle(SPECS[name], instance)
                check_form(SPECS[name], instance, length)
                assert instance.level == level


@st.composite
def specs(draw: st.DrawFn) -> SymbolSpec:
    """Any knobs that a task accepts."""
    vocabulary = draw(st.integers(4, 60))
    pairs = draw(st.integers(1, vocabulary // 2))
    showings = draw(st.integers(3, 7))
    # Three roundings add up to two showings at most.
    spare = max(0.0, (pairs * ((showings - 1) // 2) - 2) / (pairs * showings))
    every: tuple[SymbolSpec, ...] = (
        RecallSpec(pairs=(pairs,), vocabulary=vocabulary, overwrites=draw(st.floats(0, 0.99))),
        InductionSpec(vocabulary=vocabulary),
        CopyingSpec(symbols=(draw(st.integers(1, 20)),), vocabulary=vocabulary),
        StatesSpec(group=(draw(st.sampled_from(("S3", "A5", "S5"))),)),
        NoiseSpec(
            pairs=pairs,
            showings=showings,
            vocabulary=vocabulary,
            corrupted=(spare * draw(st.floats(0, 0.4)),),
            contradicting=spare * draw(st.floats(0, 0.3)),
            outliers=spare * draw(st.floats(0, 0.3)),
        ),
    )
    return draw(st.sampled_from(every))


@settings(max_examples=200, deadline=None)
@given(spec=specs(), more=st.integers(0, 70), number=st.integers(0, 2**40))
def test_whatever_the_knobs(spec: SymbolSpec, more: int, number: int) -> None:
    task = build(spec)
    (level,) = task.levels
    length = task.shortest(level) + more
    instance = task.make(Draws("any", number), number, length, level, "train")
    check_oracle(spec, instance)
    check_form(spec, instance, length)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", SPECS)
def test_chance_is_what_it_is_said_to_be(name: str, split: str) -> None:
    spec = SPECS[name]
    task = build(spec)
    for level in task.levels[-2:]:
        ranks: list[int] = []
        length, number, count = task.shortest(level) + 40, 0, 1
        while len(ranks) < 25 * count:
            instance = task.instance(split, number, length, level)
            tokens, number = instance.tokens.tolist(), number + 1
            ranks += [candidates(spec, tokens, place).index(tokens[place]) for place in answer_places(instance)]
            (count,) = set(instance.candidates)
        # Every candidate is as likely: no constant answer beats chance, and a guesser meets it.
        seen = np.bincount(ranks, minlength=count)
        error = (1 / count * (1 - 1 / count) / len(ranks)) ** 0.5
        assert len(seen) == count
        assert seen.min() > 0
        assert chisquare(seen).pvalue > 1e-4
        assert seen.max() / len(ranks) < 1 / count + 4 * error
        guesses = Draws("guess", name, level, split).below(count, len(ranks))
        assert abs(np.mean(guesses == ranks) - 1 / count) < 4 * error


SMALL: dict[str, tuple[SymbolSpec, int]] = {
    "recall": (RecallSpec(pairs=(2,), vocabulary=8), 10),
    "induction": (InductionSpec(vocabulary=4), 6),
    "copying": (CopyingSpec(symbols=(2,), vocabulary=4), 8),
    "states": (StatesSpec(group=("S3",), elements=4), 6),
    "noise": (NoiseSpec(pairs=1, showings=3, vocabulary=12, corrupted=(0.3,)), 8),
}
"""So easy that there are hardly a thousand different instances."""


def all_met(task: Task, length: int, split: str) -> tuple[set[bytes], set[bytes]]:
    """Identities and whole sequences of five hundred instances, of seeds that differ between the splits too."""
    seeds = {"train": (0, 1), "valid": (0, 2), "test": (1, 3)}[split]
    made = [task.instance(split, number, length, seed=seed) for seed in seeds for number in range(250)]
    return {one.identity for one in made}, {one.tokens.tobytes() for one in made}


@pytest.mark.parametrize("name", SMALL)
def test_no_instance_is_in_two_splits(name: str) -> None:
    spec, length = SMALL[name]
    identities, sequences = zip(*(all_met(build(spec), length, split) for split in SPLIT_SHARES), strict=True)
    for met in (identities, sequences):
        assert len(set.union(*met)) == sum(map(len, met))


@pytest.mark.parametrize("name", SMALL)
def test_without_the_rule_splits_would_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, length = SMALL[name]
    monkeypatch.setattr(Task, "belongs", lambda self, instance, split: True)
    train, test = (all_met(build(spec), length, split)[0] for split in ("train", "test"))
    assert len(train & test) > len(test) / 5


def digest(name: str, seed: int = 0) -> str:
    """Of the first instances of each split and level."""
    task, found = build(SPECS[name]), hashlib.sha256()
    for split in SPLIT_SHARES:
        for level in (*task.levels, None):
            for number in range(3):
                made = task.instance(split, number, 144, level, seed)
                found.update(np.stack([made.tokens, made.answers]).astype("<i8").tobytes())
                found.update(repr((made.depths, made.level, made.candidates)).encode() + made.identity)
    return found.hexdigest()[:16]


def test_instances_are_the_same_in_another_process_and_from_now_on() -> None:
    script = (
        "import json; from tests.data.tasks.test_symbol_tasks import SPECS, digest;"
        "print(json.dumps({name: digest(name) for name in SPECS}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: digest(name) for name in SPECS} == GOLDEN


@pytest.mark.parametrize("name", SPECS)
def test_other_seeds_and_numbers_give_other_instances(name: str) -> None:
    task = build(SPECS[name])
    made = [
        task.instance("train", number, 144, seed=seed).tokens.tobytes() for number in range(30) for seed in range(3)
    ]
    assert len(set(made)) == len(made)


def test_a_trigger_stands_nowhere_else_and_may_be_any_symbol() -> None:
    task, triggers = build(InductionSpec(vocabulary=16)), set()
    for number in range(200):
        tokens = task.instance("train", number, 40).tokens.tolist()
        triggers.add(tokens[-2])
        assert tokens.count(tokens[-2]) == 2
    assert triggers == set(range(16))


@pytest.mark.parametrize("length", [4, 5, 8, 50, 103])
def test_triggers_are_dealt_out_evenly(length: int) -> None:
    """Each five numbers have one in each fifth; all in all every place that there is gets as many."""
    task, room = build(InductionSpec()), length - 3
    places = [round(task.instance("test", number, length).depths[0] * length) for number in range(500)]
    for number, place in enumerate(places):
        assert number % 5 * room // 5 <= place <= ((number % 5 + 1) * room - 1) // 5
    if room % 5 == 0:
        assert set(np.histogram(places, 5, (0, room))[0]) == {100}
    assert len(set(places)) > min(room, 80) - 1


def test_places_of_copied_symbols_are_as_likely_everywhere() -> None:
    task = build(CopyingSpec(symbols=(4,)))
    taken = np.zeros(15)
    for number in range(1000):
        instance = task.instance("train", number, 20)
        taken[[round(depth * 20) for depth in instance.depths]] += 1
        assert instance.tokens[15] == SEPARATOR
    assert chisquare(taken).pvalue > 1e-4


@pytest.mark.parametrize("name", ["recall", "noise"])
def test_questions_are_as_likely_everywhere(name: str) -> None:
    """Two questions in six tokens can stand in six ways; each of them comes as often, and either key first."""
    spec: SymbolSpec = NoiseSpec(pairs=2, showings=3) if name == "noise" else RecallSpec(pairs=(2,))
    task = build(spec)
    shown = task.shortest(task.levels[0]) - 4
    ways: Counter[tuple[int, ...]] = Counter()
    first = 0
    for number in range(1200):
        instance = task.instance("train", number, shown + 6, task.levels[0])
        places = answer_places(instance)
        ways[tuple(place - shown for place in places)] += 1
        first += int(instance.tokens[places[0] - 1] == instance.tokens[0])
    assert set(ways) == {(1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5)}
    assert chisquare(list(ways.values())).pvalue > 1e-4
    assert chisquare([first, 1200 - first]).pvalue > 1e-4


@pytest.mark.parametrize(("room", "times"), [(8, 1), (15, 1), (16, 2), (24, 3), (60, 3)])
def test_training_asks_for_a_pair_again_where_there_is_room(room: int, times: int) -> None:
    spec = RecallSpec(pairs=(4,), questions=3)
    task = build(spec)
    asked: dict[str, set[int]] = {"train": set(), "test": set()}
    for number in range(30):
        for split, found in asked.items():
            instance = task.instance(split, number, 8 + room)
            check_oracle(spec, instance)
            check_form(spec, instance, 8 + room)
            keys = Counter(instance.tokens[place - 1] for place in answer_places(instance))
            assert len(keys) == 4
            assert len(set(keys.values())) == 1
            found |= set(keys.values())
    assert asked == {"train": set(range(1, times + 1)), "test": {1}}


@pytest.mark.parametrize(("elements", "first"), [(1, 4), (4, 7), (8, 17), (126, 127)])
def test_states_are_asked_for_after_as_many_elements(elements: int, first: int) -> None:
    """The last answer ends the sequence; what is left over comes before the first."""
    places = answer_places(build(StatesSpec(elements=elements)).instance("train", 0, 128))
    assert places[-1] == 127
    assert places[0] == first
    assert set(np.diff(places)) <= {elements + 2}


def showings(instance: Instance, count: int) -> dict[int, list[int]]:
    """What was shown for each key, in the order of its being shown."""
    shown: dict[int, list[int]] = defaultdict(list)
    for key, value in instance.tokens[: 2 * count].reshape(-1, 2).tolist():
        shown[key].append(value)
    return shown


@pytest.mark.parametrize("corrupted", [0.0, 0.1, 0.2, 0.3])
def test_each_sort_of_noise_has_its_exact_share(corrupted: float) -> None:
    spec = NoiseSpec(pairs=20, showings=9, corrupted=(corrupted,), contradicting=0.05, outliers=0.05)
    task = build(spec)
    for number in range(30):
        shown = showings(task.instance("train", number, 500), 180)
        assert {len(values) for values in shown.values()} == {9}
        false = [
            value for values in shown.values() for value in values if value != Counter(values).most_common(1)[0][0]
        ]
        strange = sum(129 <= value < 137 for value in false)
        assert strange == 9
        assert sum(65 <= value < 129 for value in false) == len(false) - strange == 9 + round(180 * corrupted)


def test_contradicting_showings_agree_with_each_other() -> None:
    task = build(NoiseSpec(pairs=10, showings=9, corrupted=(0.0,), contradicting=0.2))
    rivals = set()
    for number in range(50):
        shown = [Counter(values).most_common() for values in showings(task.instance("train", number, 250), 90).values()]
        # 18 of them, and 4 at most on a key.
        assert sorted(rest[0][1] for _, *rest in shown if rest) == [2, 4, 4, 4, 4]
        assert all(len(rest) <= 1 for _, *rest in shown)
        rivals |= {rest[0][0] for _, *rest in shown if rest}
    assert len(rivals) > 50


def test_corrupted_showings_have_any_other_value() -> None:
    task = build(NoiseSpec(pairs=4, showings=5, vocabulary=12, corrupted=(0.4,)))
    steps: Counter[int] = Counter()
    for number in range(500):
        for values in showings(task.instance("train", number, 60), 20).values():
            true = Counter(values).most_common(1)[0][0]
            steps.update((value - true) % 6 for value in values if value != true)
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert sum(steps.values()) == 500 * 8
    assert chisquare(list(steps.values())).pvalue > 1e-4


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RecallSpec(pairs=(4, 9), vocabulary=16), "recall: 9 pairs .* 16 has 8"),
        (NoiseSpec(pairs=9, vocabulary=16), "noise: 9 pairs .* 16 has 8"),
        (NoiseSpec(pairs=8, showings=5, corrupted=(0.1, 0.43)), "noise: 17 of 40 .* bear 16"),
        (NoiseSpec(pairs=8, showings=4, corrupted=(0.1,), contradicting=0.1, outliers=0.1), "noise: 9 of 32 .* bear 8"),
    ],
)
def test_impossible_knobs_are_one_line(spec: SymbolSpec, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        NoiseSpec(pairs=8, showings=5, corrupted=(0.2,), contradicting=0.1, outliers=0.1),
        NoiseSpec(pairs=8, showings=4, corrupted=(0.25,)),
        NoiseSpec(pairs=8, showings=6, corrupted=(0.0,), contradicting=1 / 3),
    ],
)
def test_as_much_noise_as_can_be_leaves_every_key_a_majority(spec: NoiseSpec) -> None:
    task = build(spec)
    for number in range(50):
        check_oracle(spec, task.instance("train", number, 120))


@pytest.mark.parametrize("name", SPECS)
def test_a_tokenizer_with_too_few_tokens_is_one_line(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name.split('-')[0]}: .* character tokenizer has 3 besides") as caught:
        build(SPECS[name], CharacterTokenizer("abc"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SPECS)
def test_a_length_that_is_too_short_is_one_line(name: str) -> None:
    task = build(SPECS[name])
    for level in task.levels:
        needed = task.shortest(level)
        with pytest.raises(UserError, match=f"{level}: {needed - 1} tokens are too few .* {needed} are") as caught:
            task.instance("train", 0, needed - 1, level)
        assert "\n" not in str(caught.value)


def test_special_tokens_are_never_symbols() -> None:
    """A tokenizer that begins with special tokens: the same instances, written with the ids after them."""
    alphabet = "".join(map(chr, range(0x100, 0x200)))
    for name, spec in SPECS.items():
        task, other = build(spec), build(spec, CharacterTokenizer(alphabet))
        draws = (Draws("special", name), Draws("special", name))
        level = task.levels[0]
        made, shifted = (one.make(draw, 3, 144, level, "train") for one, draw in zip((task, other), draws, strict=True))
        assert (shifted.tokens == made.tokens + 3).all()


def test_too_few_different_instances_are_one_line() -> None:
    task = build(CopyingSpec(symbols=(1,), vocabulary=4))
    with pytest.raises(UserError, match="copying 1 symbols: too few different instances for a valid split") as caught:
        task.instance("valid", 0, 3)
    assert "\n" not in str(caught.value)
