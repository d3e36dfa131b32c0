"""Zero-shot sets: the harness's own prompts and numbers, answers known beforehand, and files that are not right."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.config.commonsense import COMMONSENSE, CommonsenseName, CommonsenseSpec
from lockstep.config.spec import validate
from lockstep.data.archives import read_members
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.commonsense import SOURCES, Choice, read_commonsense
from lockstep.errors import UserError
from lockstep.evaluation.commonsense import BY_LENGTH, measures, score_commonsense
from lockstep.evaluation.likelihood import Likelihood, encode_request, log_likelihoods
from lockstep.models.registry import build
from tests.data.conftest import DATA

ARCHIVE = "commonsense.tar.xz"
PLACES = {"lambada_openai": "lambada", "boolq": "super_glue/boolq", "arc_easy": "arc", "arc_challenge": "arc"}
"""Folders of the harness's definitions, where they are not named as the set."""
CHOOSING: list[CommonsenseName] = [name for name in COMMONSENSE if name != "lambada_openai"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real sets, where this machine has them."""
    for folder in DATA.split(os.pathsep):
        if folder and (Path(folder) / ARCHIVE).is_file():
            monkeypatch.setenv("LOCKSTEP_DATA", folder)
            return Path(folder) / ARCHIVE
    pytest.skip(f"{ARCHIVE} is in no folder of LOCKSTEP_DATA")


@cache
def content(archive: Path, member: str) -> bytes:
    return read_members(archive, [member])[member]


def documents(archive: Path, name: CommonsenseName) -> list[dict[str, Any]]:
    """The lines of a set, with the fields that the harness's datasets have."""
    lines = [json.loads(line) for line in content(archive, f"commonsense/{SOURCES[name].file}").splitlines()]
    if name == "boolq":
        return [{**line, "label": int(line["answer"])} for line in lines]
    if name in ("arc_easy", "arc_challenge"):
        return [
            {
                "question": line["query"].removeprefix("Question: "),
                "choices": {"text": line["choices"], "label": ["A", "B", "C", "D"]},
                "answerKey": "ABCD"[line["gold"]],
            }
            for line in lines
        ]
    return lines


def harness_task(name: CommonsenseName, lines: Sequence[dict[str, Any]]) -> Any:
    """The harness's own definition of a task, over these documents and no network."""
    tasks = pytest.importorskip("lm_eval.tasks", reason="the eval extra is not installed")
    datasets = pytest.importorskip("datasets", reason="the eval extra is not installed")
    datasets.disable_progress_bars()
    held = datasets.Dataset.from_list(list(lines))

    def local(**_: Any) -> dict[str, Any]:
        return dict.fromkeys(("train", "validation", "test"), held)

    folder = Path(tasks.__file__).parent / PLACES.get(name, name)
    manager = tasks.TaskManager(include_path=str(folder), include_defaults=False)
    # In a group the harness's own definition is taken, and changed in what is said here.
    changed = {"group": "local", "task": [{"task": name, "custom_dataset": local}]}
    return manager.load([changed])["tasks"][name]


def asked(task: Any) -> Iterator[tuple[dict[str, Any], list[tuple[str, str]]]]:
    """Each document as the task sees it, and the pairs that it asks about."""
    for document in task.eval_docs:
        context = task.fewshot_context(document, num_fewshot=0)
        instances = task.construct_requests(document, context, metadata=(None, None, None))
        yield document, [one.args for one in (instances if isinstance(instances, list) else [instances])]


@pytest.mark.parametrize("name", COMMONSENSE)
def test_pairs_are_those_of_the_harness(name: CommonsenseName, archive: Path) -> None:
    """Every fifteenth example, so that the odd ones of all parts of a set are among them."""
    task = harness_task(name, documents(archive, name)[::15])
    ours = read_commonsense([name])[name][::15]
    theirs = list(asked(task))
    assert len(ours) == len(theirs) > 70
    for choice, (document, pairs) in zip(ours, theirs, strict=True):
        assert list(choice.pairs) == pairs
        if name in CHOOSING:
            right = task.doc_to_text(document) if name == "winogrande" else task.doc_to_target(document)
            assert choice.right == int(right)


def random_likelihoods(choices: Sequence[Choice], seed: int) -> list[Likelihood]:
    """About a nat for each character, and a few greedy ones."""
    draw = np.random.default_rng(seed)
    return [
        Likelihood(-float(draw.gamma(2.0, len(answer) / 2)), bool(draw.random() < 0.3), 1)
        for choice in choices
        for answer in choice.continuations
    ]


@pytest.mark.parametrize("name", COMMONSENSE)
def test_numbers_are_those_of_the_harness(name: CommonsenseName, archive: Path) -> None:
    metrics = pytest.importorskip("lm_eval.api.metrics", reason="the eval extra is not installed")
    task, choices = harness_task(name, documents(archive, name)[:120]), read_commonsense([name], 120)[name]
    likelihoods = random_likelihoods(choices, seed=len(name))
    answers = iter([(one.log_probability, one.greedy) for one in likelihoods])
    found = [task.process_results(document, [next(answers) for _ in pairs]) for document, pairs in asked(task)]
    words = {"accuracy": "acc", "accuracy by length": "acc_norm", "perplexity": "perplexity"}
    results = measures(name, choices, likelihoods)
    assert {words[result["metric"]] for result in results} == found[0].keys()
    for result in results:
        values = [one[words[result["metric"]]] for one in found]
        assert result["value"] == pytest.approx(task.aggregation()[words[result["metric"]]](values), rel=1e-12)
        if result["metric"] != "perplexity":
            assert result["standard_error"] == pytest.approx(metrics.mean_stderr(values), rel=1e-12)
        assert result["set"] == name
        assert result["examples"] == 120


def preferring(choices: Sequence[Choice], prefer: Callable[[Choice], int]) -> list[Likelihood]:
    """Somebody who finds one answer of each question certain and the others all but impossible."""
    return [
        Likelihood(0.0 if place == prefer(choice) else -1e6, place == prefer(choice), 1)
        for choice in choices
        for place in range(len(choice.pairs))
    ]


@pytest.mark.parametrize("name", CHOOSING)
def test_who_knows_everything_is_always_right_and_who_knows_better_never(name: CommonsenseName, archive: Path) -> None:
    choices = read_commonsense([name])[name]
    for result in measures(name, choices, preferring(choices, lambda choice: choice.right)):
        assert (result["value"], result["standard_error"]) == (1.0, 0.0)
    for result in measures(name, choices, preferring(choices, lambda choice: (choice.right + 1) % len(choice.pairs))):
        assert result["value"] == 0.0


@pytest.mark.parametrize("name", CHOOSING)
def test_who_guesses_is_right_by_chance(name: CommonsenseName, archive: Path) -> None:
    """Equal pairs are equally likely, as they are to any model."""
    choices = read_commonsense([name])[name]
    draw = np.random.default_rng(0)
    guesses = [{pair: -draw.random() for pair in set(choice.pairs)} for choice in choices]
    likelihoods = [
        Likelihood(guess[pair], False, 1)
        for choice, guess in zip(choices, guesses, strict=True)
        for pair in choice.pairs
    ]
    result = measures(name, choices, likelihoods)[0]
    assert abs(result["value"] - result["chance"]) < 4 * result["standard_error"]


def test_the_right_answer_stands_once(archive: Path) -> None:
    """A question whose right answer stood twice could be answered rightly and counted as wrong."""
    for name, choices in read_commonsense(CHOOSING).items():
        assert [choice for choice in choices if choice.pairs.count(choice.pairs[choice.right]) != 1] == [], name


def test_by_length_means_per_character() -> None:
    """The right answer is the longest by characters; by bytes, the other would be."""
    choice = Choice(("Q",) * 2, (" aaaaaaaa", " ééééé"), 0)
    likelihoods = [Likelihood(-9.0, False, 8), Likelihood(-6.0, False, 5)]
    plain, by_length = measures("arc_easy", [choice], likelihoods)
    assert (plain["value"], by_length["value"]) == (0.0, 1.0)
    assert by_length["metric"] == "accuracy by length"
    assert plain["standard_error"] is None


def test_repeated_answers_do_not_lower_chance() -> None:
    choice = Choice(("Q",) * 4, (" up", " down", " up", " still"), 1)
    assert measures("arc_easy", [choice], preferring([choice], lambda one: 1))[0]["chance"] == pytest.approx(1 / 3)


def test_perplexity_is_per_word() -> None:
    choices = [Choice(("a",), (" word",), 0)] * 4
    perplexity, accuracy = measures("lambada_openai", choices, [Likelihood(-float(np.log(7)), True, 3)] * 4)
    assert perplexity["value"] == pytest.approx(7)
    assert perplexity["standard_error"] == pytest.approx(0, abs=1e-12)
    assert accuracy["value"] == 1.0
    assert perplexity["chance"] is accuracy["chance"] is None


def test_the_error_of_a_perplexity_is_that_of_resampled_sets() -> None:
    draw = np.random.default_rng(1)
    nats = draw.gamma(4.0, 0.5, size=400)
    choices = [Choice(("a",), (" word",), 0)] * len(nats)
    result = measures("lambada_openai", choices, [Likelihood(-float(one), False, 1) for one in nats])[0]
    resampled = np.exp(nats[draw.integers(len(nats), size=(3000, len(nats)))].mean(axis=1))
    assert result["standard_error"] == pytest.approx(resampled.std(), rel=0.1)


def test_a_model_is_scored_on_every_set(archive: Path) -> None:
    """The same as each pair scored by itself."""
    torch.manual_seed(0)
    tokenizer = ByteTokenizer()
    model = build("gpt2", vocab_size=tokenizer.vocab_size, dim=16, depth=1, heads=2, max_length=256).double()
    results = score_commonsense(model, tokenizer, COMMONSENSE, examples=4, batch_size=8)
    expected = []
    for name, choices in read_commonsense(COMMONSENSE, 4).items():
        pairs = [pair for choice in choices for pair in choice.pairs]
        alone = [log_likelihoods(model, [encode_request(tokenizer, *pair)])[0] for pair in pairs]
        expected += measures(name, choices, alone)
    assert [(one["set"], one["metric"]) for one in results] == [(one["set"], one["metric"]) for one in expected]
    assert [one["value"] for one in results] == pytest.approx([one["value"] for one in expected], rel=1e-9)
    assert sorted({one["set"] for one in results}) == sorted(COMMONSENSE)
    assert {one["set"] for one in results if one["metric"] == "accuracy by length"} == BY_LENGTH


# Files.


def test_an_unpacked_folder_reads_the_same(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = read_commonsense(COMMONSENSE, 3)
    for member in (f"commonsense/{one.file}" for one in SOURCES.values()):
        (tmp_path / member).parent.mkdir(exist_ok=True)
        (tmp_path / member).write_bytes(content(archive, member))
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    assert read_commonsense(COMMONSENSE, 3) == packed


def refused(names: Sequence[CommonsenseName]) -> str:
    with pytest.raises(UserError) as caught:
        read_commonsense(names)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def test_sets_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    assert f"no {ARCHIVE} or folder commonsense in {tmp_path}" in refused(["boolq"])


def test_a_changed_set_is_refused(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = "commonsense/boolq_validation.jsonl"
    changed = content(archive, member).replace(b'"answer": false', b'"answer": true', 1)
    with tarfile.open(tmp_path / ARCHIVE, "w:xz", preset=0) as tar:
        entry = tarfile.TarInfo(member)
        entry.size = len(changed)
        tar.addfile(entry, io.BytesIO(changed))
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    assert "boolq_validation.jsonl has sha256" in refused(["boolq"])
    assert "has no commonsense/hellaswag_validation.jsonl inside" in refused(["hellaswag"])


# What may be asked for.


def test_a_specification_names_its_sets() -> None:
    assert CommonsenseSpec().sets == COMMONSENSE
    assert validate(CommonsenseSpec, {"sets": "boolq", "examples": None}, "file").sets == ("boolq",)
    wrong: dict[str, Any]
    for wrong in ({"sets": ["piqa"]}, {"sets": []}, {"examples": 0}):
        with pytest.raises(UserError, match="file: "):
            validate(CommonsenseSpec, wrong, "file")
