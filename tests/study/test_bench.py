"""The verb `bench` on small models: its numbers against those of their own measures, its files, and how it says no."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.data import DataSpec
from lockstep.config.files import load_run
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.prepare import prepare
from lockstep.evaluation.language import HeldOut, score_causal
from lockstep.models.registry import build
from lockstep.study.bench_cells import INFERENCE, PERPLEXITY, READ, STREAMED, TRAINING
from lockstep.study.contestants import contestants
from lockstep.study.place import StudyPlace
from lockstep.training.checkpoint import load
from lockstep.training.run import train
from tests.study.tiny_studies import tiny_study
from tests.test_cli import Outcome, lockstep
from tests.training.tiny_runs import tiny_run

CPU = torch.device("cpu")
SMALL = ("--lengths", "8,16", "--batch-sizes", "1,3", "--rounds", "2", "--decoded", "2", "--device", "cpu")
SIZES = ("--dim", "16", "--depth", "1", "--heads", "2")


@pytest.fixture(scope="module")
def trained(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs; never changed by a test."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = Path(shutil.copy(tiny_corpus, folder / "text.txt"))
    for architecture in ("gpt2", "gru"):
        run = tiny_run(corpus, architecture, training={"train_steps": 4, "save_interval": 4})
        train(run.model_copy(update={"experiment_name": f"run-{architecture}"}), folder / architecture)
    return folder


def benched(folder: Path, *arguments: str | Path) -> tuple[str, dict[str, Any]]:
    """What it printed, and bench.json."""
    out = lockstep("bench", *arguments, *SMALL, "--output-dir", folder).assert_ok()
    return out, json.loads((folder / "bench.json").read_text(encoding="utf-8"))


def values(found: dict[str, Any], model: str, quantity: str) -> dict[tuple[int, int | None], Any]:
    cells = [one for one in found["cells"] if (one["model"], one["quantity"]) == (model, quantity)]
    return {(one["length"], one["batch"]): one["value"] for one in cells}


def reasons(found: dict[str, Any], model: str, quantity: str) -> dict[int, Any]:
    cells = [one for one in found["cells"] if (one["model"], one["quantity"]) == (model, quantity)]
    return {one["length"]: one["reason"] for one in cells}


def test_a_run_beside_an_architecture(trained: Path, tmp_path: Path) -> None:
    out, found = benched(tmp_path, trained / "gru", "gated-deltanet", *SIZES)
    assert [one["name"] for one in found["models"]] == ["run-gru", "gated-deltanet"]
    assert [one["checkpoint"] for one in found["models"]] == ["checkpoint-4", None]
    fresh = build("gated-deltanet", vocab_size=258, dim=16, depth=1, heads=2)
    assert found["models"][1]["parameters"] == sum(parameter.numel() for parameter in fresh.parameters())
    for name, model in (("run-gru", load(trained / "gru")), ("gated-deltanet", fresh)):
        states = {(length, 1): model.cost(length).state_bytes for length in (8, 16)}
        assert values(found, name, "state_bytes") == states
        for quantity in (*READ, *TRAINING):
            assert values(found, name, quantity).keys() == {(8, 1), (8, 3), (16, 1), (16, 3)}
        weights = 4 * sum(parameter.numel() for parameter in model.parameters())
        assert min(values(found, name, "training_peak_bytes").values()) > 2.9 * weights, "gradients, and AdamW's two"
    for one in found["cells"]:
        missing = (one["model"], one["quantity"]) == ("gated-deltanet", "perplexity")
        assert one["reason"] == ("it is untrained" if missing else None)
        assert missing or (one["value"] > 0 and math.isfinite(one["value"]))
    assert "\nperplexity on the test split\n" in out
    assert "\n  gated-deltanet, perplexity at 8, 16: it is untrained\n" in out
    assert out.endswith(f"\n{tmp_path / 'benchmark_results.png'}\n")


def test_perplexity_is_that_of_the_checkpoint(trained: Path, tmp_path: Path) -> None:
    _, found = benched(tmp_path, trained / "gru")
    run = load_run(trained / "gru" / "config.yaml")
    prepared, model = prepare(run.data, run.tokenizer), load(trained / "gru")
    for length in (8, 16):
        score = score_causal(model, HeldOut(prepared, "test", length, 7), CPU)
        assert values(found, "run-gru", "perplexity")[length, None] == pytest.approx(math.exp(score.loss), rel=1e-6)


def test_in_bfloat16(trained: Path, tmp_path: Path) -> None:
    """States are half as large where they are of the weights' kind, and scores nearly those of float32."""
    _, found = benched(tmp_path, trained / "gru", "transformer++", *SIZES, "--precision", "bf16")
    assert [found["precision"], found["asked"]["precision"]] == ["bf16", "bf16"]
    assert [one["kernel_backend"] for one in found["models"]] == ["torch", "torch"]
    assert "kernel_backend" not in found
    lowered = build("transformer++", vocab_size=258, dim=16, depth=1, heads=2).to(torch.bfloat16)
    states = {(length, 1): lowered.cost(length).state_bytes for length in (8, 16)}
    assert values(found, "transformer++", "state_bytes") == states
    assert all(one["value"] > 0 for one in found["cells"] if one["value"] is not None)
    run = load_run(trained / "gru" / "config.yaml")
    score = score_causal(load(trained / "gru"), HeldOut(prepare(run.data, run.tokenizer), "test", 16, 7), CPU)
    perplexity = values(found, "run-gru", "perplexity")[16, None]
    assert perplexity == pytest.approx(math.exp(score.loss), rel=2e-2)
    assert perplexity != pytest.approx(math.exp(score.loss), rel=1e-6)


def test_the_table_holds_what_the_json_holds(trained: Path, tmp_path: Path) -> None:
    _, found = benched(tmp_path, trained / "gru", trained / "gpt2", "rnn", *SIZES)
    with (tmp_path / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{key: "" if one[key] is None else str(one[key]) for key in one} for one in found["cells"]]
    quantities = {row["quantity"] for row in rows}
    assert quantities == {*READ, *INFERENCE, *TRAINING, *PERPLEXITY}
    assert len(rows) == 3 * (2 * 2 * (len(READ) + len(TRAINING)) + 2 * (len(INFERENCE) + len(PERPLEXITY)))


def test_the_picture_has_a_panel_for_what_was_scored(trained: Path, tmp_path: Path) -> None:
    out, _ = benched(tmp_path / "both", trained / "gru", trained / "gpt2")
    assert (tmp_path / "both" / "benchmark_results.png").read_bytes().startswith(b"\x89PNG\r\n")
    drawn = (tmp_path / "both" / "benchmark_results.svg").read_text(encoding="utf-8")
    for text in ("Inference time", "milliseconds to read a batch of 3 sequences", "Perplexity", "run-gru", "run-gpt2"):
        assert f">{text}</text>" in drawn
    assert "no panel" not in out
    out, _ = benched(tmp_path / "time", "lstm", *SIZES)
    drawn = (tmp_path / "time" / "benchmark_results.svg").read_text(encoding="utf-8")
    assert ">Inference time</text>" in drawn
    assert ">Perplexity</text>" not in drawn
    assert "\nNothing here is scored, so that the picture has no panel for perplexity.\n" in out


def test_positions_end_and_masked_models_do_not_write(trained: Path, tmp_path: Path) -> None:
    arguments = (trained / "gpt2", "bert", *SIZES, *SMALL, "--lengths", "8,16,20", "--output-dir", tmp_path)
    lockstep("bench", *arguments).assert_ok()
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    ended = "the model has 16 positions"
    for quantity in (*READ, *TRAINING, *PERPLEXITY):
        assert reasons(found, "run-gpt2", quantity) == {8: None, 16: None, 20: ended}
    for quantity in INFERENCE:
        assert reasons(found, "run-gpt2", quantity) == {8: None, 16: ended, 20: ended}, "decoding needs one more"
        assert set(reasons(found, "bert", quantity).values()) == {"it is bidirectional and cannot go token by token"}
    for quantity in (*READ, *TRAINING):
        assert set(reasons(found, "bert", quantity).values()) == {None}, "built with room for every length"


def test_what_does_not_fit_is_missing(tmp_path: Path) -> None:
    """No machine has room for so many sequences; the others are measured all the same."""
    huge = 10**12
    arguments = ("lstm", *SIZES, *SMALL, "--batch-sizes", f"2,{huge}", "--output-dir", tmp_path)
    out = lockstep("bench", *arguments).assert_ok()
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    for one in found["cells"]:
        if one["batch"] == huge:
            assert (one["value"], one["reason"]) == (None, "out of memory")
        elif one["quantity"] != "perplexity":
            assert one["value"] is not None
    assert f"8 × {huge}, 16 × {huge}: out of memory" in out
    assert not (tmp_path / "benchmark_results.png").exists(), "it would show the largest batch, of which there is none"


def test_a_stream_is_read_by_who_can(tmp_path: Path) -> None:
    out, found = benched(tmp_path, "gated-deltanet", "transformer++", *SIZES, "--streamed", "2048,1024")
    peaks = values(found, "gated-deltanet", "streamed_peak_bytes")
    assert list(peaks) == [(1024, 1), (2048, 1)]
    assert peaks[1024, 1] == peaks[2048, 1] > 1024 * 258 * 4, "the logits of a piece at least"
    for quantity in STREAMED:
        why = reasons(found, "transformer++", quantity)
        assert set(why.values()) == {"its state grows with the text"}
    assert "most held while reading the stream, beyond the weights" in out


def test_a_study_is_its_contestants(tiny_corpus: Path, tmp_path: Path) -> None:
    study, place = tiny_study(tiny_corpus, seeds=2), StudyPlace(tmp_path / "study")
    place.store(study)
    competing = contestants(study)
    nothing = lockstep("bench", place.folder, *SMALL, "--output-dir", tmp_path / "bench")
    nothing.assert_refused(str(place.folder), "no contestant has a checkpoint yet")
    seeds = study.seeds.pairs[0]
    train(competing[1].run(seeds, {"training.cooled_at": ()}), place.run("memory", seeds[0]))
    outcome = lockstep("bench", place.folder, *SMALL, "--output-dir", tmp_path / "bench")
    assert outcome.status == 0
    assert outcome.err == f"lockstep: warning: {place.folder}: transformer++ has no checkpoint yet and is left out\n"
    found = json.loads((tmp_path / "bench" / "bench.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in found["models"]] == ["memory"]
    assert found["models"][0]["model_config"]["architecture"] == "titans-mac"
    assert values(found, "memory", "perplexity")[16, None] > 1


def test_without_its_corpus_a_run_is_timed(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = shutil.copytree(trained, tmp_path / "moved")
    config = moved / "gru" / "config.yaml"
    config.write_text(config.read_text().replace(str(trained / "text.txt"), str(tmp_path / "gone.txt")))
    _, found = benched(tmp_path / "bench", moved / "gru")
    assert "gone.txt" in reasons(found, "run-gru", "perplexity")[8]
    assert values(found, "run-gru", "read_seconds")[8, 1] > 0


def test_a_length_that_the_split_does_not_have(trained: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    there = len(prepare(DataSpec(training_corpus=str(tiny_corpus)), TokenizerSpec()).tokens("test"))
    arguments = (trained / "gru", *SMALL, "--batch-sizes", "1", "--output-dir", tmp_path)
    lockstep("bench", *arguments, "--lengths", f"{there - 1},{there}").assert_ok()
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    expected = {there - 1: None, there: f"the test split has {there:,} tokens"}
    assert reasons(found, "run-gru", "perplexity") == expected


def test_runs_of_one_name_are_told_apart(trained: Path, tmp_path: Path) -> None:
    again = shutil.copytree(trained / "gru", tmp_path / "again")
    _, found = benched(tmp_path / "bench", trained / "gru", again)
    assert [one["name"] for one in found["models"]] == [str(trained / "gru"), str(again)]
    refused("lstm", "lstm").assert_refused("lstm is named twice")


def test_a_folder_of_runs_is_told_from_one_without(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study's, whose runs are named one by one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "gru", tmp_path / "study" / "runs" / "gru.seed-0")
    refused("study").assert_refused("study: holds runs; name one of them, such as study/runs/gru.seed-0")


def refused(*arguments: str | Path) -> Outcome:
    return lockstep("bench", *arguments)


def test_bad_input_is_one_line_before_anything_is_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    refused("titans-mak").assert_refused("titans-mak: neither an architecture nor", "did you mean titans-ma")
    refused("empty").assert_refused("empty: no run folder with checkpoints; train first")
    for text in ("8,x", "1,8", "", "8,,16", "-8", str(2**50)):
        told = f"--lengths {text}: expected whole numbers from 2 on, with commas between them"
        refused("lstm", f"--lengths={text}").assert_refused(told)
    refused("lstm", "--batch-sizes", "0").assert_refused("--batch-sizes 0: expected whole numbers from 1 on")
    refused("lstm", "--streamed", "many").assert_refused("--streamed many: expected whole numbers")
    refused("lstm", "--precision", "int8").assert_refused("--precision int8: expected fp32 or bf16")
    refused("lstm", "--device", "tpu").assert_refused("--device: tpu is not a device; use auto, cpu or cuda")
    refused("transformer++", "--dim", "10", "--heads", "3").assert_refused("dim 10", "heads 3")
    refused("lstm", "--rounds", "0").assert_refused("--rounds")
    assert os.listdir(tmp_path) == ["empty"]
    (tmp_path / "file").write_text("mine")
    refused("lstm", "--output-dir", "file").assert_refused("file: cannot be used as a folder", "--output-dir")
    assert (tmp_path / "file").read_text() == "mine"
