"""What may change in a run folder after something went wrong, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.files import read_yaml
from lockstep.config.run import RunSpec
from lockstep.data.tokenizers import load_tokenizer
from lockstep.errors import UserError
from lockstep.training.checkpoint import checkpoint_steps
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from lockstep.training.stopping import Diverged
from tests.training.faults import crash
from tests.training.tiny_runs import assert_same_run, losses, tiny_run, without_dropout

EXPLOSIVE = {"learning_rate": 1e9, "warmup_steps": 0, "schedule": "constant", "max_grad_norm": None}


def stopped_at_six(run: RunSpec, folder: Path) -> Path:
    """A run that crashed in its seventh step, with a checkpoint of its fourth."""
    crash(run, folder, "a step is taken", 7)
    assert checkpoint_steps(folder) == [4]
    return folder


def stored(folder: Path, section: str, key: str) -> Any:
    return read_yaml(folder / "config.yaml")[section][key]


def test_a_start_that_diverged_can_be_repeated_with_another_rate(tiny_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="no checkpoint was taken before"):
        train(tiny_run(tiny_corpus, training={**EXPLOSIVE, "save_interval": None}), tmp_path / "mended")
    assert stored(tmp_path / "mended", "training", "learning_rate") == 1e9
    run = tiny_run(tiny_corpus)
    train(run, tmp_path / "mended")
    assert stored(tmp_path / "mended", "training", "learning_rate") == 1e-2
    train(run, tmp_path / "calm")
    assert_same_run(tmp_path / "calm", tmp_path / "mended")


def test_a_start_that_failed_can_be_repeated_with_another_model(tiny_corpus: Path, tmp_path: Path) -> None:
    crash(tiny_run(tiny_corpus), tmp_path, "a step is taken", 3)
    assert stored(tmp_path, "model", "dim") == 16
    train(tiny_run(tiny_corpus, model={"dim": 24}), tmp_path)
    assert stored(tmp_path, "model", "dim") == 24
    assert checkpoint_steps(tmp_path)[-1] == 12


def test_a_start_that_failed_leaves_no_tokenizer_behind(tiny_corpus: Path, tmp_path: Path) -> None:
    crash(tiny_run(tiny_corpus), tmp_path, "a step is taken", 3)
    assert load_tokenizer(tmp_path / "tokenizer").kind == "bytes"
    train(tiny_run(tiny_corpus, tokenizer={"tokenizer_type": "character"}), tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer").kind == "character"


@pytest.mark.parametrize("line", ["6", "null", "{}", '{"step": "x"}', "{"])
def test_a_line_that_is_no_record_is_damage(tiny_corpus: Path, tmp_path: Path, line: str) -> None:
    train(tiny_run(tiny_corpus), tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:3], line, *lines[4:]]) + "\n")
    with pytest.raises(UserError, match="line 4 is damaged"):
        train(tiny_run(tiny_corpus), tmp_path)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"training": {"learning_rate": 2e-2}}, "training.learning_rate = 0.01, but 0.02 is asked for"),
        ({"model": {"dim": 24}}, "model.dim = 16, but 24 is asked for"),
        ({"data": {"batch_size": 2}}, "data.batch_size = 4, but 2 is asked for"),
        ({"training": {"gradient_accumulation_steps": 2}}, "gradient_accumulation_steps = 1, but 2 is asked for"),
        ({"evaluation": {"sequences": 4}}, "evaluation.sequences = 8, but 4 is asked for"),
    ],
    ids=str,
)
def test_a_checkpoint_binds(sections: dict[str, Any], told: str, tiny_corpus: Path, tmp_path: Path) -> None:
    folder = stopped_at_six(tiny_run(tiny_corpus), tmp_path)
    config = (folder / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=re.escape(told)):
        train(tiny_run(tiny_corpus, **sections), folder)
    assert (folder / "config.yaml").read_bytes() == config
    assert checkpoint_steps(folder) == [4]


def test_a_step_may_be_split_into_smaller_batches(tiny_corpus: Path, tmp_path: Path) -> None:
    """As after running out of memory: 4 × 1 and 2 × 2 sequences are the same step."""
    whole = tiny_run(tiny_corpus, model=without_dropout())
    train(whole, tmp_path / "calm")
    folder = stopped_at_six(whole, tmp_path / "split")
    accumulated = {"gradient_accumulation_steps": 2}
    halves = tiny_run(tiny_corpus, data={"batch_size": 2}, model=without_dropout(), training=accumulated)
    train(halves, folder)
    assert checkpoint_steps(folder)[-1] == 12
    assert losses(folder) == pytest.approx(losses(tmp_path / "calm"), abs=1e-5)


def test_the_batches_of_evaluation_may_change(tiny_corpus: Path, tmp_path: Path) -> None:
    train(tiny_run(tiny_corpus), tmp_path / "calm")
    folder = stopped_at_six(tiny_run(tiny_corpus), tmp_path / "changed")
    train(tiny_run(tiny_corpus, evaluation={"batch_size": 3}), folder)
    assert losses(folder) == losses(tmp_path / "calm")
    mine, theirs = (read_log(one / "metrics.jsonl")[-1]["evaluation"] for one in (folder, tmp_path / "calm"))
    assert mine == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("damage", [b'{"step": 2, "lo', b"", b"\xff\xfe", b"step 2"])
def test_a_damaged_line_of_the_log_is_refused(damage: bytes, tiny_corpus: Path, tmp_path: Path) -> None:
    folder = stopped_at_six(tiny_run(tiny_corpus), tmp_path)
    log = folder / "metrics.jsonl"
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    before = log.read_bytes()
    with pytest.raises(UserError, match=re.escape(f"{log}: line 2 is damaged")):
        train(tiny_run(tiny_corpus), folder)
    assert log.read_bytes() == before


@pytest.mark.parametrize("torn", [b'{"step": 6, "lo', b'{"step": 4, "evaluation": {}}', b"\0\0\0\n"])
def test_a_last_line_that_was_cut_short_is_dropped(torn: bytes, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus)
    train(run, tmp_path / "calm")
    folder = stopped_at_six(run, tmp_path / "torn")
    with (folder / "metrics.jsonl").open("ab") as log:
        log.write(torn)
    train(run, folder)
    assert_same_run(tmp_path / "calm", folder)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"architecture": "gtp2"}, "unknown architecture gtp2"),
        ({"heads": 3}, "heads"),
        ({"dimension": 16}, "dimension"),
        ({"depth": -1}, "depth"),
        ({"max_length": 8}, "model.max_length is 8, but data.max_sequence_length is 16"),
    ],
    ids=str,
)
def test_a_wrong_model_is_told_before_the_corpus_is_prepared(
    model: dict[str, Any], told: str, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    run = tiny_run(tiny_corpus, model=model, tokenizer={"tokenizer_type": "unigram", "vocab_size": 320})
    with pytest.raises(UserError, match=re.escape(told)):
        train(run, tmp_path / "run")
    assert not (tmp_path / "cache" / "prepared").exists()
    assert not (tmp_path / "cache" / "tokenizers").exists()
    assert not (tmp_path / "run").exists()
