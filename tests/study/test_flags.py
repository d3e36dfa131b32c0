"""Studies from flags: where each goes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.config.study import StudySpec
from lockstep.errors import UserError
from lockstep.study.flags import QUICK, Flags, study_from


def made(overrides: tuple[str, ...] = (), **flags: Any) -> StudySpec:
    return study_from(None, Flags(**flags), overrides)


def test_no_flag_is_the_quick_study() -> None:
    assert made() == study_from(QUICK, Flags())
    assert list(made().contestants) == ["transformer++", "titans-mac", "gated-deltanet", "lstm"]


def test_neutral_flags_change_the_quick_study() -> None:
    study = made(steps=40, seeds=2, device="cpu", lr=1e-3, log_interval=5, save_interval=20)
    assert list(study.contestants) == list(made().contestants)
    assert (study.training.train_steps, study.training.learning_rate) == (40, 1e-3)
    assert (study.training.device, study.training.save_interval) == ("cpu", 20)
    assert study.logging.log_interval == 5
    assert study.seeds.pairs == ((0, 0), (1, 1))


def test_the_first_documents_command() -> None:
    study = made(dim=512, depth=6, heads=8, batch_size=32, steps=10_000, dataset="wikitext")
    assert list(study.contestants) == ["transformer++", "titans-mac"]
    assert study.wanted is None
    for section in study.contestants.values():
        assert section.fields() == {"dim": 512, "depth": 6, "heads": 8}
    assert (study.data.training_corpus, study.data.batch_size) == ("wikitext", 32)
    assert study.tokenizer.tokenizer_type == "gpt2"
    assert study.training.train_steps == 10_000


def test_all_other_flags_have_a_place() -> None:
    study = made(
        dim=128,
        dim_head=32,
        segment_len=96,
        use_memory=False,
        use_flex_attn=True,
        wikitext_version="2",
        tokenizer="bytes",
        eval_batch_size=4,
        eval_steps=3,
        eval_interval=7,
        seq_len=192,
        warmup_steps=11,
        contestants="titans-mac, lstm",
    )
    titans = study.contestants["titans-mac"].fields()
    assert (titans["heads"], titans["segment"], titans["window"]) == (4, 96, 96)
    assert titans["segment"] % titans["chunk"] == 0
    assert (titans["use_memory"], titans["use_flex_attn"]) == (False, True)
    assert "segment" not in study.contestants["lstm"].fields()
    assert study.data.training_corpus == "wikitext-2"
    assert study.tokenizer.tokenizer_type == "bytes"
    assert (study.evaluation.batch_size, study.evaluation.sequences, study.evaluation.interval) == (4, 12, 7)
    assert (study.data.max_sequence_length, study.training.warmup_steps) == (192, 11)


def test_a_scale_is_matched() -> None:
    study = made(scale="small", contestants="transformer++,mamba2")
    assert study.wanted is not None
    assert study.wanted.target == 50e6


def test_flags_go_on_top_of_a_file(tmp_path: Path) -> None:
    study = study_from(QUICK, Flags(steps=10, dim=64, depth=2, heads=2), ["training.learning_rate=1e-4"])
    assert study.study_name == "quick"
    assert study.wanted is None, "sizes given by hand are not matched"
    assert study.contestants["titans-mac"].fields()["segment"] == 32
    assert (study.training.train_steps, study.training.learning_rate) == (10, 1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"scale": "small", "dim": 64}, r"--scale solves for sizes, but --dim gives one"),
        ({"dim_head": 64}, r"--dim-head 64: heads fill the width"),
        ({"dim": 100, "dim_head": 64}, r"--dim-head 64: heads fill the width"),
        ({"dim": 128, "dim_head": 64, "heads": 4}, r"--heads 4 of --dim-head 64 do not fill --dim 128"),
        ({"wikitext_version": "7"}, r"--wikitext-version 7: expected 2 or 103"),
        ({"wikitext_version": "2", "dataset": "enwik8"}, r"--dataset is enwik8, not wikitext"),
        ({"scale": "huge"}, r"scale: "),
        ({"segment_len": 32, "contestants": "transformer++,lstm"}, r"--segment-len: no contestant has a segment"),
        ({"contestants": "lstm,lstm"}, r"each name once"),
        ({"contestants": "titan"}, r"titan"),
        ({"tokenizer": "bert-base-uncased", "dataset": "wikitext"}, r"tokenizer_type"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_one_line(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        made(**flags)
    assert "\n" not in str(caught.value)
