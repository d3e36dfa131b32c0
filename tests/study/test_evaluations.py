"""What a study tests its contestants by: done once, kept, gathered over repeats, refused before anything is trained."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.files import load_study
from lockstep.config.spec import validate
from lockstep.config.study import StudySpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.tasks.registry import make_task
from lockstep.errors import UserError
from lockstep.evaluation.tasks import score_task
from lockstep.study.collect import collect
from lockstep.study.compare import compare
from lockstep.study.place import StudyPlace
from lockstep.study.run_tests import asked_for, run_tests
from lockstep.training.checkpoint import load
from tests.study.tiny_studies import tiny_fields

TASKS = [{"name": "recall", "pairs": [2, 4], "vocabulary": 16}]
EVALUATE: dict[str, Any] = {
    "recall": {"instances": 6, "lengths": [16, 24]},
    "induction": {"vocabulary": 8, "instances": 5},
    "lengths": {"times": 4, "texts": 2, "scored": 4},
}


def study_of(corpus: Path, **changes: Any) -> StudySpec:
    data = {"training_corpus": str(corpus), "batch_size": 4, "max_sequence_length": 16}
    data |= {"tasks": TASKS, "task_sequences": 50}
    fields = {"data": data, "evaluate": EVALUATE, "measurements": {"contexts": [8], "rounds": 1, "streamed": [32, 64]}}
    return validate(StudySpec, tiny_fields(corpus, **{**fields, **changes}), "test")


@pytest.fixture(scope="module")
def done(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study; never changed by a test."""
    folder = tmp_path_factory.mktemp("tested") / "study"
    compare(study_of(tiny_corpus), folder)
    return folder


def test_every_level_and_length_of_every_repeat_is_gathered(done: Path) -> None:
    results, measured = collect(done)
    for one in results.contestants:
        cells = [(score.task, score.level, score.length) for score in one.tasks]
        assert cells == [
            ("recall", "2 pairs", 16),
            ("recall", "4 pairs", 16),
            ("recall", "2 pairs", 24),
            ("recall", "4 pairs", 24),
            ("induction", "induction", 16),
        ]
        for score in one.tasks:
            assert [run.data_seed for run in score.runs] == [seed for seed, _ in results.study.seeds]
            assert sum(run.answers for run in score.runs) == sum(band.answers for band in score.bands)
            assert sum(run.right for run in score.runs) == sum(band.right for band in score.bands)
        assert {score.chance for score in one.tasks if score.task == "recall"} == {1 / 8}
        assert one.beyond[-1].last == 64
        assert [context.context for context in one.contexts][-1] <= 64
    streamed = {name: [one.length for one in found.streamed] for name, found in measured.contestants.items()}
    assert streamed == {"transformer++": [], "memory": [32, 64]}


def test_scores_are_those_of_the_stored_weights(done: Path) -> None:
    folder = done / "runs" / "memory.seed-1"
    stored = json.loads((folder / "evaluations" / "recall.json").read_text(encoding="utf-8"))["found"]["scores"]
    (spec,) = (one for one in study_of(done).evaluate.tasks(study_of(done).data.tasks) if one.name == "recall")
    again = score_task(load(folder), make_task(spec, ByteTokenizer()), (16, 24), 6)
    assert [one.as_dict() for one in again] == stored


def test_knobs_are_those_of_training_unless_said_otherwise(tiny_corpus: Path) -> None:
    study = study_of(tiny_corpus)
    recall, induction = study.evaluate.tasks(study.data.tasks)
    assert (recall.pairs, recall.vocabulary, recall.instances) == ((2, 4), 16, 6)  # type: ignore[union-attr] # a RecallSpec
    assert induction.vocabulary == 8  # type: ignore[union-attr] # an InductionSpec


def test_a_stored_study_asks_what_it_asked(done: Path, tiny_corpus: Path) -> None:
    """What is not named is not tested by, and knobs that were not said stay those of training."""
    stored, study = load_study(done / "study.yaml"), study_of(tiny_corpus)
    assert stored.evaluate.tasks(stored.data.tasks) == study.evaluate.tasks(study.data.tasks)
    assert stored.evaluate.lengths == study.evaluate.lengths
    assert stored.evaluate.commonsense is None


def test_what_was_found_with_other_knobs_is_not_told(done: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(done, folder)
    StudyPlace(folder).store(
        study_of(tiny_corpus, evaluate={"recall": {"instances": 7}, "lengths": EVALUATE["lengths"]})
    )
    results, _ = collect(folder)
    assert all(one.tasks == () for one in results.contestants)
    assert all(one.beyond for one in results.contestants)


def test_names_and_names_with_knobs_may_stand_in_one_list(tiny_corpus: Path) -> None:
    asked = study_of(tiny_corpus, evaluate=["lengths", {"recall": {"instances": 3}}]).evaluate
    assert asked.lengths is not None
    assert asked.recall is not None
    assert asked.recall.instances == 3


def test_a_list_of_names_will_do(tiny_corpus: Path) -> None:
    asked = study_of(tiny_corpus, evaluate=["recall", "lengths"]).evaluate
    assert asked.recall is not None
    assert asked.lengths is not None
    assert asked.needles is None


def test_what_was_tested_is_not_tested_again_and_what_is_added_is(
    done: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(done, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/evaluations/*.json")}
    grown = {
        **EVALUATE,
        "induction": {**EVALUATE["induction"], "instances": 7},
        "copying": {"symbols": 2, "instances": 3},
    }
    results, _ = compare(study_of(tiny_corpus, evaluate=grown), folder)
    for path, then in before.items():
        assert (path.stat().st_mtime_ns == then) == (path.name != "induction.json"), path
    assert {score.task for one in results.contestants for score in one.tasks} == {"recall", "induction", "copying"}


@pytest.mark.parametrize(
    ("evaluate", "words"),
    [
        ({"recall": {"lengths": 8}}, "recall 4 pairs: 8 tokens are too few"),
        ({"recall": {"pairs": 100}}, "100 pairs need as many keys"),
        (["babilong"], "babi"),
        (["commonsense"], "commonsense"),
    ],
)
def test_what_cannot_be_tested_is_said_before_anything_is_trained(
    evaluate: Any, words: str, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=words):
        compare(study_of(tiny_corpus, evaluate=evaluate), tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("evaluate", [["recal"], {"needles": {"kind": "word"}}, "recall", {"lengths": {"times": 0}}])
def test_wrong_tests_are_one_line(evaluate: Any, tiny_corpus: Path) -> None:
    with pytest.raises(UserError, match="evaluate") as refused:
        study_of(tiny_corpus, evaluate=evaluate)
    assert "\n" not in str(refused.value)


def test_one_checkpoint_is_tested_as_a_study_would(done: Path, tmp_path: Path) -> None:
    folder = done / "runs" / "transformer++.seed-0"
    asked = asked_for(["recall: {instances: 6, lengths: [16, 24]}", "lengths: {times: 4, texts: 2, scored: 4}"])
    found = run_tests(folder, None, asked, tmp_path)
    stored = json.loads((folder / "evaluations" / "recall.json").read_text(encoding="utf-8"))["found"]
    assert found["recall"]["scores"] == stored["scores"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-8-beyond.json", "checkpoint-8-recall.json"]


def test_tasks_alone_are_scored_by_their_answers(tiny_corpus: Path, tmp_path: Path) -> None:
    """No text: no bits per byte anywhere, and the score counts answers only."""
    data = {"tasks": TASKS, "task_sequences": 64, "batch_size": 4, "max_sequence_length": 16}
    results, _ = compare(study_of(tiny_corpus, data=data, evaluate=["recall"], seeds=1), tmp_path / "alone")
    for one in results.contestants:
        assert one.positions == ()
        for run in one.runs:
            assert all(point.bits_per_byte is None for point in run.curve)
            # 512 sequences of two or four pairs, each asked for once.
            assert 2 * 512 < run.cooled[-1].score.tokens < 4 * 512
            assert run.cooled[-1].score.bits_per_byte is None
    assert {one.metric for one in results.comparisons} == {"loss", "perplexity", "accuracy"}
    assert results.study.corpus == "recall"


def test_masked_models_are_asked_no_tasks(tiny_corpus: Path) -> None:
    with pytest.raises(UserError, match="bert is bidirectional"):
        compare(study_of(tiny_corpus, contestants={"bert": {"dim": 16, "depth": 1, "heads": 2}, "gpt2": {}}))
