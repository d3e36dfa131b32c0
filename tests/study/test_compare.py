"""A whole comparison: the same however it is run, killed or resumed; and unfair ones are refused."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer import Exit

from lockstep.cli import audit as audit_verb
from lockstep.cli import report as report_verb
from lockstep.config.files import dump_yaml, read_yaml
from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.config.study import StudySpec
from lockstep.data.prepare import prepare
from lockstep.errors import UserError
from lockstep.evaluation.language import HeldOut, score_causal
from lockstep.report.findings import verdict
from lockstep.report.page import render_page
from lockstep.report.results import Results
from lockstep.study.collect import collect
from lockstep.study.compare import compare, report, tune_study
from lockstep.study.place import StudyPlace
from lockstep.training.checkpoint import load
from lockstep.training.provenance import device_name
from lockstep.training.run import train
from tests.study.tiny_studies import assert_same_study, tiny_study, write_study

GIVE_UP_SECONDS = 300


@pytest.fixture(scope="module")
def done(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study; never changed by a test."""
    folder = tmp_path_factory.mktemp("done") / "tiny"
    compare(tiny_study(tiny_corpus), folder)
    return folder


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    """A copy, to be spoiled."""
    shutil.copytree(done, tmp_path / "copied")
    return tmp_path / "copied"


def results_of(folder: Path) -> Results:
    return Results.model_validate_json((folder / "results.json").read_text(encoding="utf-8"))


def test_everything_a_report_promises_is_there(done: Path) -> None:
    results = results_of(done)
    assert results.study.finished
    assert results.audit is not None
    assert results.audit.passed, results.audit.findings
    assert [one.name for one in results.contestants] == ["transformer++", "memory"]
    for one in results.contestants:
        assert [run.status for run in one.runs] == ["finished", "finished"]
        assert [[point.share for point in run.cooled] for run in one.runs] == [[0.5, 1.0]] * 2
        assert one.positions
        assert one.repeats
        assert [at.length for at in one.lengths] == [8, 16]
        assert one.samples[0].prompt == "the "
        assert {picture.kind for picture in one.pictures} >= {"attention", "influence"}
    assert results.contestant("memory").memory is not None
    assert results.contestant("transformer++").memory is None
    assert {(one.contestant, one.baseline) for one in results.comparisons} == {("memory", "transformer++")}
    assert {one.share for one in results.comparisons} == {0.5, 1.0}
    for name in ("report.html", "summary.md", "training_comparison.png", "inference_comparison.png"):
        assert (done / name).stat().st_size > 0


def test_the_end_is_the_score_of_a_full_evaluation(done: Path, tiny_corpus: Path) -> None:
    """The same number by another way: the verb that scores a run, on as many sequences."""
    study = tiny_study(tiny_corpus)
    prepared = prepare(study.data, study.tokenizer)
    for one in results_of(done).contestants:
        for run in one.runs:
            model = load(done / run.folder)
            data = HeldOut(prepared, "test", 16, 4, 6)
            expected = score_causal(model, data, next(model.parameters()).device)
            assert run.cooled[-1].score.loss == expected.loss


def test_side_by_side_or_in_turn_is_the_same(done: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    compare(tiny_study(tiny_corpus, side_by_side=False), tmp_path / "in turn")
    (tmp_path / "in turn" / "study.yaml").write_bytes((done / "study.yaml").read_bytes())
    report(tmp_path / "in turn")
    assert_same_study(done, tmp_path / "in turn")


def test_alone_is_the_same_too(done: Path, tmp_path: Path) -> None:
    """A contestant's run, trained by itself from its config.yaml."""
    source = done / "runs" / "memory.seed-1"
    train(validate(RunSpec, read_yaml(source / "config.yaml"), "test"), tmp_path / "alone")
    for inside in ("metrics.jsonl", "checkpoint-8/model.safetensors", "cooled-4/checkpoint-4/model.safetensors"):
        assert (source / inside).read_bytes() == (tmp_path / "alone" / inside).read_bytes()


def test_the_same_study_three_times_has_the_same_losses(done: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    for number in range(2):
        compare(tiny_study(tiny_corpus), tmp_path / str(number))
        assert_same_study(done, tmp_path / str(number))


def start(study: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lockstep.cli", "compare", str(study), "--output-dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


MOMENTS: tuple[Callable[[Path], bool], ...] = (
    lambda folder: any(folder.glob("runs/memory.seed-0/checkpoint-2")),
    lambda folder: any(folder.glob("runs/*.seed-1/.checkpoint-*.partial")),
    lambda folder: any(folder.glob("runs/*/cooled-4/metrics.jsonl")),
    lambda folder: any(folder.glob("runs/*/evaluations/test.json")),
    lambda folder: any(folder.glob("runs/*/measured/*.json")),
    lambda folder: any(folder.glob("results.json")),
)
"""Between steps, while a checkpoint is written, in a branch, between measurements, while the report is made."""


def test_killed_at_any_moment_it_ends_the_same(done: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    study, folder = write_study(tiny_corpus, tmp_path / "tiny.yaml"), tmp_path / "killed"
    draw, kills = random.Random(3), 0
    for moment in MOMENTS:
        process = start(study, folder)
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not moment(folder) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.2))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills >= 4
    process = start(study, folder)
    _, said = process.communicate(timeout=GIVE_UP_SECONDS)
    assert process.returncode == 0, said
    assert_same_study(done, folder)


def test_what_a_kill_left_half_written_is_swept(done: Path, copied: Path, tiny_corpus: Path) -> None:
    measured = sorted(copied.glob("runs/*/evaluations/*.json"))
    for again in measured:
        again.unlink()
    for cut_short in (*measured, *(copied / name for name in ("study.yaml", "results.json", "report.html"))):
        cut_short.with_name(f".{cut_short.name}.0a1b2c3d.partial").write_text("{")
    compare(tiny_study(tiny_corpus), copied)
    assert measured
    assert_same_study(done, copied)
    assert list(copied.rglob(".*.partial")) == []


def test_a_study_has_a_report_while_it_runs(copied: Path) -> None:
    shutil.rmtree(copied / "runs" / "memory.seed-1")
    shutil.rmtree(copied / "runs" / "memory.seed-0" / "checkpoint-8")
    results, measured = report(copied)
    assert (copied / "report.html").stat().st_size > 0
    assert not results.study.finished
    assert [run.status for run in results.contestant("memory").runs] == ["running", "waiting"]
    assert verdict(results, measured).standing != "final"


def retrained(folder: Path, name: str, **changes: Any) -> None:
    """One run of a study replaced by one that was trained with other settings."""
    place = folder / "runs" / name
    config = read_yaml(place / "config.yaml")
    for key, value in changes.items():
        section, _, last = key.rpartition("__")
        (config[section] if section else config)[last] = value
    shutil.rmtree(place)
    train(validate(RunSpec, config, "test"), place)


UNFAIR: dict[str, tuple[dict[str, Any], str]] = {
    "another batch size": ({"data__batch_size": 8}, "data.batch_size"),
    "a shifted stream": ({"data_seed": 7}, "stream_hash"),
    "more steps": ({"training__train_steps": 10}, "training.train_steps"),
    "another learning rate": ({"training__learning_rate": 3e-2}, "training.learning_rate"),
    "noise": ({"data__noise": 0.1}, "data.noise"),
    "other initial weights": ({"init_seed": 5}, "seeds"),
}


@pytest.mark.parametrize(("changes", "named"), UNFAIR.values(), ids=UNFAIR.keys())
def test_one_unfair_run_leaves_no_verdict(changes: dict[str, Any], named: str, copied: Path) -> None:
    retrained(copied, "memory.seed-1", **changes)
    results, measured = collect(copied)
    assert results.audit is not None
    assert not results.audit.passed
    assert any(finding.startswith(f"{named}:") for finding in results.audit.findings), results.audit.findings
    assert results.comparisons == ()
    found = verdict(results, measured)
    assert found.standing == "none"
    assert found.winners == {}
    assert named in render_page(results, measured)


@contextmanager
def one_thread_more() -> Iterator[tuple[str, str]]:
    """What the device is called before, and inside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    inside = device_name(torch.device("cpu"))
    try:
        yield inside.replace(f"{threads + 1} threads", "1 thread" if threads == 1 else f"{threads} threads"), inside
    finally:
        torch.set_num_threads(threads)


def test_times_are_of_whatever_device_measured_them(copied: Path, tiny_corpus: Path) -> None:
    """Not of the one alone that trained."""
    name, *others = collect(copied)[1].contestants
    shutil.rmtree(next(copied.glob(f"runs/{name}.seed-*/measured")))
    with one_thread_more() as (before, now):
        results, measured = compare(tiny_study(tiny_corpus), copied)
    assert {measured.contestants[other].device for other in others} == {before}
    assert measured.contestants[name].device == f"{before} and {now}"
    assert results.study.device == before
    assert now in render_page(results, measured)


def test_a_study_names_every_device_that_trained(copied: Path) -> None:
    with one_thread_more() as (before, now):
        retrained(copied, "memory.seed-1")
    assert sorted(collect(copied)[0].study.device.split(" and ")) == sorted([before, now])


def test_the_command_line_fails_where_the_audit_does(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retrained(copied, "memory.seed-1", data__batch_size=8)
    for verb in (report_verb, lambda folder: audit_verb([folder])):
        with pytest.raises(Exit) as ended:
            verb(copied)
        assert ended.value.exit_code == 1
        assert "data.batch_size" in capsys.readouterr().out


def test_a_fair_study_passes_on_the_command_line(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit_verb([done])
    assert capsys.readouterr().out.endswith("audit passed: 4 runs, repeats: 2\n")
    with pytest.raises(UserError, match="leave out the option"):
        audit_verb([done], step=4)


def test_a_bigger_model_leaves_no_verdict(tiny_corpus: Path, tmp_path: Path) -> None:
    matched = {"target": 12_000, "tolerance": 0.2}
    contestants: dict[str, Any] = {"transformer++": {}, "lstm": {}}
    folder = tmp_path / "study"
    results, _ = compare(tiny_study(tiny_corpus, match=matched, contestants=contestants, seeds=1), folder)
    assert results.audit is not None
    assert results.audit.passed, results.audit.findings
    dim = read_yaml(folder / "runs" / "lstm.seed-0" / "config.yaml")["model"]["dim"]
    retrained(folder, "lstm.seed-0", model__dim=2 * dim)
    results, measured = collect(folder)
    assert results.audit is not None
    assert any(one.startswith("non_embedding_parameters:") for one in results.audit.findings), results.audit.findings
    assert verdict(results, measured).standing == "none"


def test_a_diverged_contestant_is_a_result(tiny_corpus: Path, tmp_path: Path) -> None:
    """A rate that no attention survives; the LSTM's gates keep it finite, and it goes on."""
    contestants = {"rnn": {"dim": 16, "depth": 1}, "lstm": {"dim": 16, "depth": 1}}
    study = tiny_study(
        tiny_corpus,
        contestants=contestants,
        varies=["training.learning_rate"],
        seeds=1,
    )
    fields = study.model_dump(mode="json")
    fields["contestants"]["rnn"]["settings"] = {"training.learning_rate": 1e30}
    results, measured = compare(validate(StudySpec, fields, "test"), tmp_path / "study")
    (run,) = results.contestant("rnn").runs
    assert run.status == "diverged"
    assert run.message is not None
    assert "diverged at step" in run.message
    assert results.contestant("lstm").runs[0].status == "finished"
    assert any(
        "rnn" in sentence.text and "diverged" in sentence.text for sentence in verdict(results, measured).sentences
    )


def test_every_contestant_is_tuned_alike(tiny_corpus: Path, tmp_path: Path) -> None:
    tuning = {"learning_rate": [1e-3, 1e-2, 3e-2], "train_steps": 4}
    study = tiny_study(tiny_corpus, tuning=tuning, seeds=1)
    sweeps = tune_study(study, tmp_path / "study")
    assert [len(one.trials) for one in sweeps] == [3, 3]
    assert len({one.tokens for one in sweeps}) == 1
    results, _ = compare(study, tmp_path / "study")
    assert [one.trials for one in results.sweeps] == [one.trials for one in sweeps]
    for one in results.sweeps:
        losses = [trial.loss for trial in one.trials]
        assert one.best is not None
        assert losses[one.best] == min(loss for loss in losses if loss is not None)
        chosen = one.trials[one.best].settings["learning_rate"]
        config = read_yaml(tmp_path / "study" / "runs" / f"{one.contestant}.seed-0" / "config.yaml")
        assert config["training"]["learning_rate"] == chosen
        assert one.at_edge == (("learning_rate",) if one.best in (0, 2) else ())
    assert results.audit is not None
    assert results.audit.passed, results.audit.findings


def test_another_study_is_not_written_into_this_one(done: Path, tiny_corpus: Path) -> None:
    fields = tiny_study(tiny_corpus).model_dump()
    with pytest.raises(UserError, match=r"holds a study with training\.train_steps = 8, but 9 is asked for"):
        StudyPlace(done).store(tiny_study(tiny_corpus, training={**fields["training"], "train_steps": 9}))


def test_a_refused_study_leaves_the_folder_as_it_is(copied: Path, tiny_corpus: Path) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    fields = tiny_study(tiny_corpus).model_dump(mode="json", exclude_unset=True)
    wider = {**fields["contestants"], "memory": {**fields["contestants"]["memory"], "dim": 32}}
    for contestants, message in (
        (wider, "holds a run with model.dim = 16, but 32 is asked for"),
        ({"memory": fields["contestants"]["memory"]}, r"holds a study with transformer\+\+; contestants and seeds may"),
    ):
        with pytest.raises(UserError, match=message):
            compare(validate(StudySpec, {**fields, "contestants": contestants}, "test"), copied)
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_a_study_may_grow(copied: Path, tiny_corpus: Path) -> None:
    before = (copied / "runs" / "memory.seed-0" / "metrics.jsonl").stat().st_mtime_ns
    study = tiny_study(tiny_corpus)
    fields = study.model_dump(mode="json", exclude_unset=True)
    fields["contestants"]["lstm"] = {"architecture": "lstm", "dim": 16, "depth": 1}
    results, _ = compare(validate(StudySpec, fields, "test"), copied)
    assert [one.name for one in results.contestants] == ["transformer++", "memory", "lstm"]
    assert (copied / "runs" / "memory.seed-0" / "metrics.jsonl").stat().st_mtime_ns == before


def test_nothing_yet_is_said_in_one_line(tmp_path: Path, tiny_corpus: Path) -> None:
    with pytest.raises(UserError, match=r"no study\.yaml"):
        collect(tmp_path)
    StudyPlace(tmp_path).store(tiny_study(tiny_corpus))
    with pytest.raises(UserError, match="no run has a checkpoint yet"):
        collect(tmp_path)


def test_results_are_read_from_the_folder_alone(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine, without corpus or cache."""
    shutil.copytree(done, tmp_path / "moved")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "no cache"))
    results, _ = collect(tmp_path / "moved")
    assert json.loads(results.model_dump_json()) == json.loads((done / "results.json").read_text())
    assert dump_yaml(read_yaml(tmp_path / "moved" / "study.yaml"))
