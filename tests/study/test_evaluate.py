"""Scoring and continuing from run folders that were really trained."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.prepare import prepare
from lockstep.errors import UserError
from lockstep.evaluation.language import HeldOut, score_causal
from lockstep.evaluation.memory import memory_table
from lockstep.models.sampling import Sampling
from lockstep.study.audit import audit
from lockstep.study.evaluate import evaluate_run
from lockstep.study.generate import continue_from
from lockstep.training.checkpoint import load
from lockstep.training.run import train
from tests.training.faults import crash
from tests.training.tiny_runs import tiny_run

COOLED = {"schedule": "wsd", "warmup_steps": 1, "decay_ratio": 0.4, "cooled_at": (0.5,)}
RESULT = "evaluations/checkpoint-6-valid.json"


@pytest.fixture(scope="module")
def trained(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trunk with checkpoints 6 and 12 and a branch that is cooled at step 6; never changed by a test."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_run(tiny_corpus, training={**COOLED, "save_interval": 6, "keep_last": 9}), folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def score(folder: Path, name: str | None = None, *overrides: str) -> dict[str, Any]:
    """The result on the valid split."""
    (result,) = evaluate_run(folder, name, ("valid",), None, overrides)
    return result


def stored(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_result_says_how_it_was_measured(folder: Path) -> None:
    result = score(folder)
    assert stored(folder / "evaluations" / "checkpoint-12-valid.json") == result
    assert result["sequence_length"] == 16
    assert result["precision"] == "fp32"
    assert result["device"].startswith("cpu")
    assert result["kernel_backend"] == "torch"
    assert {"python", "torch", "lockstep-lm"} <= result["versions"].keys()
    metadata = stored(folder / "checkpoint-12" / "metadata.json")
    assert result["git_commit_hash"] == metadata["git_commit_hash"]
    assert result["checkpoint_digest"] == metadata["digest"]


def test_another_length_is_another_result(folder: Path) -> None:
    standard = score(folder)
    shorter = score(folder, None, "data.max_sequence_length=8")
    assert shorter["sequence_length"] == 8
    assert shorter["loss"] != standard["loss"]
    assert stored(folder / "evaluations" / "checkpoint-12-valid-length-8.json") == shorter
    assert stored(folder / "evaluations" / "checkpoint-12-valid.json") == standard


@pytest.mark.parametrize(
    ("override", "trained_with"),
    [
        ("data.batch_size=2", "4"),
        ("model.dim=32", "16"),
        ("training.learning_rate=0.5", "0.01"),
        ("random_seed=1", "11"),
    ],
)
def test_what_was_trained_cannot_be_chosen(folder: Path, override: str, trained_with: str) -> None:
    told = f"-o {override}: the run was trained with {trained_with};"
    with pytest.raises(UserError, match=re.escape(told)):
        score(folder, None, override)
    assert not (folder / "evaluations").exists()


def test_what_was_trained_can_be_repeated(folder: Path) -> None:
    repeated = score(folder, None, "data.batch_size=4", "model.dim=16", "random_seed=11", "model.architecture=gpt2")
    assert repeated == score(folder)


@pytest.mark.parametrize("name", ["cooled-6", "cooled-6/checkpoint-6"])
def test_a_cooled_point_has_results_of_its_own(folder: Path, name: str) -> None:
    trunk = score(folder, "6")
    before = (folder / RESULT).read_bytes()
    cooled = score(folder, name)
    assert cooled["checkpoint"] == "cooled-6/checkpoint-6"
    assert cooled["step"] == trunk["step"] == 6
    assert cooled["checkpoint_digest"] == stored(folder / "cooled-6" / "checkpoint-6" / "metadata.json")["digest"]
    assert cooled["loss"] != trunk["loss"]
    assert stored(folder / "cooled-6" / RESULT) == cooled
    assert (folder / RESULT).read_bytes() == before


def test_a_step_is_a_checkpoint(folder: Path) -> None:
    by_step = score(folder, "6")
    assert by_step["checkpoint"] == "checkpoint-6"
    assert by_step == score(folder, "checkpoint-6")
    assert by_step["checkpoint_digest"] == stored(folder / "checkpoint-6" / "metadata.json")["digest"]


def test_a_checkpoint_under_another_name_is_refused(folder: Path) -> None:
    shutil.copytree(folder / "checkpoint-6", folder / "checkpoint-9")
    with pytest.raises(UserError, match="checkpoint-9: damaged checkpoint: it is of step 6"):
        score(folder, "9")
    with pytest.raises(UserError, match="checkpoint-9: damaged checkpoint: it is of step 6"):
        continue_from(folder / "checkpoint-9", "The cat", 4, Sampling(seed=1))


def test_a_text_is_continued_without_the_corpus(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the cache needed, where a trained tokenizer lies as well."""
    corpus = Path(shutil.copy(tiny_corpus, tmp_path / "corpus.txt"))
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    run = tiny_run(corpus, "gru", tokenizer={"tokenizer_type": "unigram", "vocab_size": 320})
    train(run, tmp_path / "run")
    before = continue_from(tmp_path / "run", "The cat", 12, Sampling(seed=1))
    corpus.unlink()
    shutil.rmtree(tmp_path / "cache")
    assert continue_from(tmp_path / "run", "The cat", 12, Sampling(seed=1)) == before
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("budget", "found"), [({"train_steps": None, "epochs": 0.1}, ["planned_steps"]), ({"train_steps": 6}, [])], ids=str
)
def test_an_audit_finds_plans_of_another_length(
    budget: dict[str, Any], found: list[str], tiny_corpus: Path, tmp_path: Path
) -> None:
    """The same epochs are fewer steps where a token stands for more text: the rates at a step then differ."""
    for kind, size in (("bytes", None), ("unigram", 320)):
        tokenizer = {"tokenizer_type": kind, "vocab_size": size}
        run = tiny_run(tiny_corpus, tokenizer=tokenizer, training={**budget, "checkpoint_schedule": (1,)})
        train(run, tmp_path / kind)
    result = audit([tmp_path], varies=["tokenizer"])
    assert [finding.field for finding in result.findings] == found


@pytest.mark.parametrize("name", ["tokenizer", "..", "checkpoint-5"])
def test_what_is_no_checkpoint_is_not_called_damaged(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        score(folder, name)


def test_learned_positions_bound_the_length(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus, model={"architecture": "gpt2"}), tmp_path)
    with pytest.raises(UserError, match=r"max_length is 16, but data.max_sequence_length is 32"):
        score(tmp_path, None, "data.max_sequence_length=32")


def test_a_run_cut_into_smaller_micro_batches_is_still_consistent(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, model={"dropout": 0.0})
    train(run, tmp_path / "whole")
    crash(run, tmp_path / "cut", "a step is taken", 7)
    pieces = {"gradient_accumulation_steps": 2}
    train(tiny_run(tiny_corpus, model={"dropout": 0.0}, data={"batch_size": 2}, training=pieces), tmp_path / "cut")
    assert audit([tmp_path / "whole", tmp_path / "cut"]).findings == ()


def test_a_memory_is_measured_on_request(tiny_corpus: Path, tmp_path: Path) -> None:
    fields = {"chunk": 4, "segment": 8, "dropout": 0.0}
    train(tiny_run(tiny_corpus, "titans-mac", model=fields), tmp_path)
    (plain,) = evaluate_run(tmp_path, None, ("valid",), None)
    (result,) = evaluate_run(tmp_path, None, ("valid",), None, memory=True)
    assert stored(tmp_path / "evaluations" / "checkpoint-12-valid.json") == result
    section = result.pop("memory")
    assert result == plain, "what else is measured does not change"
    assert [probe["layer"] for probe in section["probes"]] == ["blocks.0.mixer.memory"]
    assert section["ablations"].keys() == {"intact", "off", "frozen", "reset", "warm"}
    assert (section["sequences"], section["tokens"], section["reset_every"]) == (8, 8 * 16, 4)
    first = HeldOut(prepare(DataSpec(training_corpus=str(tiny_corpus)), TokenizerSpec()), "valid", 16, 8, 8)
    intact = score_causal(load(tmp_path), first, torch.device("cpu")).as_dict()
    for name, value in section["ablations"]["intact"].items():
        assert value == pytest.approx(intact[name], rel=1e-6)
    table = memory_table([{**result, "memory": section}])
    for kind, scores in section["ablations"].items():
        assert re.search(rf"{kind}.* {scores['loss']:.4f} ", table)
    assert "blocks.0.mixer.memory" in table


def test_a_split_of_one_window_leaves_nothing_to_warm_with(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus, "titans-lmm", model={"chunk": 4}), tmp_path)
    (result,) = evaluate_run(tmp_path, None, ("valid",), None, ("data.max_sequence_length=100000",), memory=True)
    assert result["memory"]["ablations"].keys() == {"intact", "off", "frozen", "reset"}
    assert result["memory"]["sequences"] == 1


def test_a_model_without_memory_says_so(folder: Path) -> None:
    results = evaluate_run(folder, None, ("valid", "test"), None, memory=True)
    assert all("memory" not in result for result in results)
    assert memory_table(results) == "gpt2 has no memory: nothing to probe"
