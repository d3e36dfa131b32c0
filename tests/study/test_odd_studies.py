"""Studies that are unusual, unlucky or dishonest, and still end in a true report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.files import apply_override, dump_yaml, read_yaml
from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.config.study import StudySpec
from lockstep.errors import UserError
from lockstep.report.findings import verdict
from lockstep.report.results import Results
from lockstep.report.write import write_report
from lockstep.study.collect import collect
from lockstep.study.compare import compare, report
from lockstep.study.place import StudyPlace
from lockstep.training.run import train
from tests.study.tiny_studies import tiny_fields

LSTM = {"architecture": "lstm", "dim": 16, "depth": 1}


def changed(corpus: Path, *overrides: str, **fields: Any) -> StudySpec:
    data = tiny_fields(corpus, **fields)
    for override in overrides:
        apply_override(data, override)
    return validate(StudySpec, data, "test")


def findings(results: Results) -> str:
    assert results.audit is not None
    return "\n".join(results.audit.findings)


def edited(folder: Path, *overrides: str) -> None:
    """study.yaml, changed by hand after the study."""
    data = read_yaml(folder / "study.yaml")
    for override in overrides:
        apply_override(data, override)
    (folder / "study.yaml").write_text(dump_yaml(data), encoding="utf-8")


@pytest.fixture(scope="module")
def tuned(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one repeat with two trials each; never changed by a test."""
    folder = tmp_path_factory.mktemp("tuned") / "study"
    compare(changed(tiny_corpus, "tuning={learning_rate: [1e-3, 1e-2], train_steps: 4}", seeds=1), folder)
    return folder


@pytest.fixture
def copied(tuned: Path, tmp_path: Path) -> Path:
    shutil.copytree(tuned, tmp_path / "copied")
    return tmp_path / "copied"


def test_one_repeat_has_no_winner(tuned: Path) -> None:
    results, measured = collect(tuned)
    assert verdict(results, measured).winners == {}


def test_a_rate_that_was_not_chosen_is_found(copied: Path) -> None:
    place = copied / "runs" / "memory.seed-0"
    config = read_yaml(place / "config.yaml")
    config["training"]["learning_rate"] = 0.5
    shutil.rmtree(place)
    train(validate(RunSpec, config, "test"), place)
    assert "training.learning_rate: 0.5 in memory.seed-0, but its tuning chose" in findings(collect(copied)[0])


def test_another_architecture_under_the_same_name_is_found(copied: Path) -> None:
    edited(copied, "contestants.memory.architecture=titans-mag")
    assert "model.architecture: titans-mac in memory.seed-0" in findings(collect(copied)[0])


def test_another_field_under_the_same_name_is_found(copied: Path) -> None:
    edited(copied, "contestants.memory.chunk=8")
    assert "model.chunk: 4 in memory.seed-0, but the study states 8" in findings(collect(copied)[0])


def test_what_is_added_after_results_is_exploratory(copied: Path, tiny_corpus: Path) -> None:
    grown = changed(tiny_corpus, "tuning={learning_rate: [1e-3, 1e-2], train_steps: 4}", seeds=2)
    StudyPlace(copied).store(grown)
    results, _ = collect(copied)
    assert results.audit is not None
    assert "added after the first results, and so exploratory: seed 1" in results.audit.notes


def test_all_contestants_may_diverge(tiny_corpus: Path, tmp_path: Path) -> None:
    study = changed(tiny_corpus, "training.learning_rate=1e30", seeds=1, contestants={"a": LSTM, "b": LSTM})
    with pytest.raises(UserError, match=r"no run has a checkpoint: runs/a\.seed-0 diverged at step \d+: .*; runs/b"):
        compare(study, tmp_path)


def test_a_lone_run_that_diverges_says_so_in_one_line(tiny_corpus: Path, tmp_path: Path) -> None:
    study = changed(tiny_corpus, "training.learning_rate=1e30", contestants={"a": LSTM})
    with pytest.raises(Exception, match=r"^diverged at step \d+: the .* is nan") as caught:
        train(study.run_of("a"), tmp_path / "run")
    assert type(caught.value).__name__ == "Diverged"


def test_who_never_trains_well_does_not_stop_the_others(tiny_corpus: Path, tmp_path: Path) -> None:
    study = changed(
        tiny_corpus,
        "tuning={learning_rate: [1e-3, 1e-2], train_steps: 4}",
        varies=["training.weight_decay"],
        seeds=1,
        contestants={"good": LSTM, "bad": {**LSTM, "settings": {"training.weight_decay": 1e30}}},
    )
    results, measured = compare(study, tmp_path)
    assert [one.name for one in results.contestants] == ["good"]
    assert results.study.finished
    said = " ".join(sentence.text for sentence in verdict(results, measured).sentences)
    assert "bad diverged in every trial of its tuning" in said


def test_a_baseline_that_has_not_begun(copied: Path) -> None:
    shutil.rmtree(copied / "runs" / "transformer++.seed-0")
    results, measured = report(copied)
    assert results.study.absent == {"transformer++": "has not begun"}
    assert not results.study.finished
    assert "transformer++ has not begun" in " ".join(one.text for one in verdict(results, measured).sentences)


def test_no_step_in_common_fails_the_audit(tiny_corpus: Path, tmp_path: Path) -> None:
    settings = {"settings": {"training.train_steps": 6}}
    study = changed(
        tiny_corpus,
        "training.save_interval=null",
        seeds=1,
        varies=["training.train_steps"],
        contestants={"a": LSTM, "b": {**LSTM, **settings}},
    )
    results, _ = compare(study, tmp_path)
    assert "checkpoints: no sound one at a step in common" in findings(results)


def test_a_test_split_smaller_than_a_batch(tiny_corpus: Path, tmp_path: Path) -> None:
    study = changed(
        tiny_corpus,
        "data.batch_size=128",
        "training.train_steps=2",
        "training.cooled_at=[]",
        "measurements.lengths=[16, 100000]",
        seeds=1,
        contestants={"a": LSTM},
    )
    results, measured = compare(study, tmp_path)
    assert measured.contestants["a"].training_peak_bytes
    assert [at.length for at in results.contestants[0].lengths] == [16]


def test_learned_positions_end(tiny_corpus: Path, tmp_path: Path) -> None:
    gpt2 = {"architecture": "gpt2", "dim": 16, "depth": 1, "heads": 2}
    study = changed(
        tiny_corpus,
        "measurements.sample_tokens=128",
        "measurements.lengths=[16, 64]",
        "measurements.contexts=[8, 64]",
        seeds=1,
        contestants={"gpt2": gpt2, "lstm": LSTM},
    )
    results, measured = compare(study, tmp_path)
    assert [at.length for at in results.contestant("gpt2").lengths] == [16]
    assert [at.length for at in measured.contestants["gpt2"].inference] == [8]
    assert [at.length for at in measured.contestants["lstm"].inference] == [8, 64]
    assert 0 < len(results.contestant("gpt2").samples[0].text) < len(results.contestant("lstm").samples[0].text)


def test_a_masked_model_is_ranked_with_nobody(tiny_corpus: Path, tmp_path: Path) -> None:
    bert = {"architecture": "bert", "dim": 16, "depth": 1, "heads": 2}
    study = changed(
        tiny_corpus, "evaluation.pseudo_sequences=1", contestants={"a": LSTM, "b": {**LSTM, "dim": 24}, "bert": bert}
    )
    results, measured = compare(study, tmp_path)
    assert findings(results) == ""
    assert results.contestant("bert").track == "masked"
    assert {name for one in results.comparisons for name in (one.contestant, one.baseline)} == {"a", "b"}
    assert all(len(run.cooled) == 2 for run in results.contestant("bert").runs)
    assert measured.contestants["bert"].inference == (), "it cannot go token by token"
    assert any("never ranked against causal" in one.text for one in verdict(results, measured).sentences)


def other_tokenizer(corpus: Path, *overrides: str) -> StudySpec:
    words = {**LSTM, "settings": {"tokenizer": {"tokenizer_type": "bpe", "vocab_size": 300}}}
    return changed(corpus, *overrides, varies=["tokenizer"], seeds=1, contestants={"bytes": LSTM, "words": words})


def test_tokenizers_are_compared_per_byte_alone(tiny_corpus: Path, tmp_path: Path) -> None:
    results, measured = compare(other_tokenizer(tiny_corpus, "measurements.sequences=null"), tmp_path)
    assert findings(results) == ""
    (pair,) = [one for one in results.comparisons if one.share == 1]
    assert pair.metric == "bits_per_byte"
    scores = {one.name: one.runs[0].cooled[-1].score.bits_per_byte for one in results.contestants}
    assert pair.effect == pytest.approx((scores[pair.contestant] or 0) - (scores[pair.baseline] or 0))
    write_report(results, measured, tmp_path)


def test_other_text_is_no_comparison(tiny_corpus: Path, tmp_path: Path) -> None:
    results, _ = compare(other_tokenizer(tiny_corpus), tmp_path)
    assert "measurements.sequences: bytes of the test split that were scored differ" in findings(results)
    assert results.comparisons == ()


def test_ablations_are_no_series_of_sizes(tiny_corpus: Path, tmp_path: Path) -> None:
    memory = {"architecture": "titans-lmm", "dim": 16, "depth": 1, "heads": 2, "chunk": 4}
    contestants = {"full": memory, "linear": {**memory, "memory_depth": 1}, "bare": {**memory, "conv": 0}}
    results, _ = compare(changed(tiny_corpus, seeds=1, contestants=contestants), tmp_path)
    assert findings(results) == ""
    assert results.fits == ()


def test_sizes_are_a_series(tiny_corpus: Path, tmp_path: Path) -> None:
    contestants = {f"lstm {size}": {"architecture": "lstm", "size": size} for size in (20_000, 40_000, 80_000)}
    matched = {"target": 20_000, "tolerance": 0.25}
    results, _ = compare(changed(tiny_corpus, seeds=1, contestants=contestants, match=matched), tmp_path)
    assert findings(results) == ""
    (fit,) = results.fits
    assert len(fit.parameters) == 3
    assert results.comparisons == (), "each size is a group of its own"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tuning={learning_rate: [1e-3], seed: 1}", "tuning.seed 1 is one of seeds.data"),
        ("tuning={learning_rate: [1e-3], train_steps: 1}", "no trial would reach its learning rate"),
        ("tuning={learning_rate: [2e-3, 1e-3]}", "ascending"),
        ("tuning={train_steps: 4}", "name what is tried"),
        ("seeds={data: [1, 1]}", "each number once"),
        ("seeds={data: [1, 2], init: [1]}", "make no pairs"),
        ("seeds=0", "expected 1 to 1000 repeats"),
        ("baseline=nobody", "baseline: nobody is none of the contestants"),
        ("contestants.memory.size=5", "sizes are not matched"),
        ("contestants.memory.settings={training.learning_rate: 1}", "not declared; add it to `varies`"),
    ],
)
def test_what_contradicts_itself_is_one_line(override: str, message: str, tiny_corpus: Path) -> None:
    with pytest.raises(UserError) as caught:  # the message is compared below
        changed(tiny_corpus, override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_name_is_refused_before_anything_is_trained(tiny_corpus: Path) -> None:
    with pytest.raises(UserError, match=r"at most 200 bytes"):
        changed(tiny_corpus, contestants={"é" * 150: LSTM})
