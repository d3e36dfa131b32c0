"""The audit, on runs that were really trained: six architectures in step, then one planted difference at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.files import apply_override, dump_yaml, read_yaml
from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.errors import UserError
from lockstep.study.audit import Audit, audit
from lockstep.study.audit_tables import pivot_table, token_table
from lockstep.study.differences import difference
from lockstep.training.checkpoint import metadata_digest
from lockstep.training.run import train

ARCHITECTURES = ("gpt2", "bert", "lstm", "gru", "rnn", "transformer++")
TOTAL = "token_metrics.total_tokens_processed"

TrainOne = Callable[..., Path]


def corpus_text(subject: str) -> str:
    return "".join(f"line {number} speaks of {subject} and of {number * number} more\n" for number in range(200))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two corpora, and the cache inside it."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "rivers.txt").write_text(corpus_text("rivers"), encoding="utf-8")
    (folder / "stones.txt").write_text(corpus_text("stones"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def train_one(place: Path) -> TrainOne:
    def train_in(folder: Path, architecture: str, *overrides: str) -> Path:
        data: dict[str, Any] = {
            "experiment_name": folder.name,
            "data": {"training_corpus": str(place / "rivers.txt"), "batch_size": 2, "max_sequence_length": 16},
            "model": {"architecture": architecture, "dim": 16, "depth": 1, "heads": 2},
            "training": {"train_steps": 3, "checkpoint_schedule": [1, 2], "device": "cpu"},
            "evaluation": {"sequences": 2, "pseudo_sequences": 1},
        }
        for override in overrides:
            apply_override(data, override)
        train(validate(RunSpec, data, "test"), folder)
        return folder

    return train_in


@pytest.fixture(scope="module")
def study(place: Path, train_one: TrainOne) -> Path:
    """The study folder of six runs; never changed by a test."""
    for architecture in ARCHITECTURES:
        train_one(place / "study" / architecture, architecture)
    return place / "study"


@pytest.fixture
def copied(study: Path, tmp_path: Path) -> Path:
    """gpt2 and lstm in a study folder of their own, to be damaged."""
    for name in ("gpt2", "lstm"):
        shutil.copytree(study / name, tmp_path / "copied" / name)
    return tmp_path / "copied"


def fields(result: Audit) -> list[str]:
    return [finding.field for finding in result.findings]


def messages(result: Audit) -> str:
    assert all("\n" not in finding.message for finding in result.findings)
    return "\n".join(finding.message for finding in result.findings)


def edit_metadata(checkpoint: Path, change: Callable[[dict[str, Any]], None], resealed: bool = True) -> None:
    """Change a checkpoint's metadata, with a digest that fits it again or not."""
    path = checkpoint / "metadata.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    change(metadata)
    if resealed:
        metadata["digest"] = metadata_digest(metadata)
    path.write_text(json.dumps(metadata), encoding="utf-8")


def edit_config(folder: Path, *overrides: str) -> None:
    data = read_yaml(folder / "config.yaml")
    for override in overrides:
        apply_override(data, override)
    (folder / "config.yaml").write_text(dump_yaml(data), encoding="utf-8")


def test_six_architectures_in_lockstep_pass(study: Path) -> None:
    result = audit([study])
    assert result.passed, messages(result)
    assert result.step == 3
    assert {run.name: run.track for run in result.runs} == {
        name: "masked" if name == "bert" else "causal" for name in ARCHITECTURES
    }
    assert all(run.tokens == {1: 32, 2: 64, 3: 96} for run in result.runs)
    assert len(result.notes) == 1
    assert result.notes[0].startswith("tracks: masked (bert) and causal (")


def test_token_table_has_the_documented_form(study: Path) -> None:
    lines = token_table(audit([study / "gpt2", study / "transformer++"])).splitlines()
    assert lines == [
        "gpt2       | Step:      3 | Tokens: 96 (0.00M)",
        "transformer++ | Step:      3 | Tokens: 96 (0.00M)",
    ]
    assert token_table(audit([study / "lstm"], step=2)) == "lstm       | Step:      2 | Tokens: 64 (0.00M)"


def test_pivot_table_shows_steps_by_architecture(copied: Path) -> None:
    shutil.rmtree(copied / "lstm" / "checkpoint-2")
    assert pivot_table(audit([copied])).splitlines() == [
        "step  gpt2  lstm",
        "   1    32    32",
        "   2    64     -",
        "   3    96    96",
    ]


def test_pivot_table_names_runs_that_share_an_architecture(study: Path, copied: Path) -> None:
    (copied / "lstm").rename(copied / "lstm-again")
    header = pivot_table(audit([study / "lstm", study / "gpt2", copied / "lstm-again"])).splitlines()[0]
    assert header.split() == ["step", "lstm", "gpt2", "lstm-again"]


def test_one_run_alone_is_checked_against_itself(study: Path) -> None:
    assert audit([study / "bert"]).passed


PLANTED = [
    ("data.batch_size=4", "data.batch_size", {TOTAL, "token_metrics.tokens_per_step", "stream_hash"}),
    ("data.training_corpus={place}/stones.txt", "data.training_corpus", {"corpus_digest", "stream_hash"}),
    ("tokenizer.tokenizer_type=character", "tokenizer.tokenizer_type", {"tokenizer_fingerprint", "stream_hash"}),
    ("training.learning_rate=0.01", "training.learning_rate", set()),
    ("data_seed=7", "data_seed", {"stream_hash"}),
    ("random_seed=7", "random_seed", {"data_seed", "init_seed", "stream_hash"}),
    ("init_seed=7", "init_seed", set()),
    ("training.gradient_accumulation_steps=2", "training.gradient_accumulation_steps", {TOTAL, "stream_hash"}),
    ("data.max_sequence_length=8", "data.max_sequence_length", {"token_metrics.sequence_length", TOTAL}),
    ("training.weight_decay=0.0", "training.weight_decay", set()),
    ("training.checkpoint_schedule=[2]", "training.checkpoint_schedule", set()),
]


@pytest.mark.parametrize(("override", "cause", "consequences"), PLANTED, ids=[cause for _, cause, _ in PLANTED])
def test_a_planted_difference_is_named(
    study: Path, tmp_path: Path, train_one: TrainOne, override: str, cause: str, consequences: set[str]
) -> None:
    odd = train_one(tmp_path / "odd", "lstm", override.format(place=study.parent))
    result = audit([study / "gpt2", study / "gru", odd])
    assert not result.passed
    first = result.findings[0]
    assert first.field == cause
    assert set(first.values) == {"gpt2", "gru", "odd"}
    assert " in gpt2, gru; " in first.message
    assert first.message.endswith(" in odd")
    assert consequences <= set(fields(result))
    if not consequences:
        assert fields(result) == [cause]


def test_a_consequence_says_which_setting_differs(study: Path, tmp_path: Path, train_one: TrainOne) -> None:
    odd = train_one(tmp_path / "odd", "lstm", "data.batch_size=4")
    found = {finding.field: finding.message for finding in audit([study / "gpt2", odd]).findings}
    assert found[TOTAL] == f"{TOTAL}: 96 in gpt2; 192 in odd (data.batch_size differs)"


def test_a_declared_difference_is_legal_and_said(study: Path, tmp_path: Path, train_one: TrainOne) -> None:
    odd = train_one(tmp_path / "odd", "lstm", "training.learning_rate=0.01", "init_seed=3")
    result = audit([study / "gpt2", odd], varies=["training.learning_rate", "init_seed"])
    assert result.passed, messages(result)
    assert "training.learning_rate: 0.0003 in gpt2; 0.01 in odd (declared to vary)" in result.notes
    assert fields(audit([study / "gpt2", odd], varies=["training"])) == ["init_seed"]


def test_a_declared_tokenizer_excuses_the_stream_of_other_tokenizers_only(
    study: Path, tmp_path: Path, train_one: TrainOne
) -> None:
    characters = "tokenizer.tokenizer_type=character"
    first = train_one(tmp_path / "first", "gru", characters)
    same = train_one(tmp_path / "same", "lstm", characters)
    assert audit([study / "gpt2", first, same], varies=["tokenizer"]).passed
    edit_metadata(same / "checkpoint-3", lambda metadata: metadata.update(stream_hash="0" * 64))
    assert fields(audit([study / "gpt2", first, same], varies=["tokenizer"])) == ["stream_hash"]


@pytest.mark.parametrize("setting", ["data.batch_size=4", "data_seed=7"])
def test_declaring_does_not_excuse_other_tokens(study: Path, tmp_path: Path, train_one: TrainOne, setting: str) -> None:
    odd = train_one(tmp_path / "odd", "lstm", setting)
    result = audit([study / "gpt2", odd], varies=[setting.partition("=")[0]])
    assert set(fields(result)) & {TOTAL, "stream_hash"}
    assert setting.partition("=")[0] not in fields(result)


def test_an_unknown_name_in_varies_is_refused_with_the_nearest(study: Path) -> None:
    with pytest.raises(UserError, match=r"no run has a setting .*did you mean training\.learning_rate\?"):
        audit([study], varies=["training.learning_rat"])


@pytest.mark.parametrize("override", ["training.save_interval=1", "training.objective=causal_lm", "data_seed=0"])
def test_what_changes_no_number_is_free(study: Path, tmp_path: Path, train_one: TrainOne, override: str) -> None:
    result = audit([study / "gpt2", train_one(tmp_path / "odd", "lstm", override)])
    assert result.passed, messages(result)


def test_the_same_corpus_in_another_place_is_a_note(study: Path, tmp_path: Path, train_one: TrainOne) -> None:
    moved = shutil.copy(study.parent / "rivers.txt", tmp_path / "rivers.txt")
    result = audit([study / "gpt2", train_one(tmp_path / "odd", "lstm", f"data.training_corpus={moved}")])
    assert result.passed, messages(result)
    assert any("the same content by its corpus_digest" in note for note in result.notes)


def test_bert_with_another_tokenizer_passes_with_a_note(study: Path, tmp_path: Path, train_one: TrainOne) -> None:
    wordpiece = ("tokenizer.tokenizer_type=wordpiece", "tokenizer.vocab_size=200")
    bert = train_one(tmp_path / "bert-wordpiece", "bert", *wordpiece, "training.mlm_probability=0.3")
    result = audit([study / "gpt2", study / "lstm", bert])
    assert result.passed, messages(result)
    assert any("streams cannot be compared" in note for note in result.notes)
    assert fields(audit([study / "bert", bert]))[0] == "tokenizer.tokenizer_type"


def test_bert_with_another_order_fails_across_tracks(study: Path, tmp_path: Path, train_one: TrainOne) -> None:
    bert = train_one(tmp_path / "odd", "bert", "data_seed=7")
    assert fields(audit([study / "gpt2", bert])) == ["data_seed", "stream_hash"]


def test_masked_runs_must_hide_the_same_tokens(study: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(study / "bert", tmp_path / "odd")
    edit_metadata(odd / "checkpoint-3", lambda metadata: metadata["token_metrics"].update(supervised_tokens=1))
    assert fields(audit([study / "bert", odd])) == ["token_metrics.supervised_tokens"]
    assert audit([study / "gpt2", odd]).passed


def test_a_forged_count_is_found(copied: Path) -> None:
    edit_metadata(
        copied / "lstm" / "checkpoint-3", lambda metadata: metadata["token_metrics"].update(total_tokens_processed=95)
    )
    result = audit([copied])
    assert set(fields(result)) == {TOTAL}
    assert "95 counted in checkpoint-3 of lstm" in messages(result)
    assert fields(audit([copied / "lstm"])) == [TOTAL]


def test_counts_forged_together_do_not_match_the_other_run(copied: Path) -> None:
    forged = {"total_tokens_processed": 48, "estimated_tokens_at_step": 48, "tokens_per_step": 16}
    edit_metadata(copied / "lstm" / "checkpoint-3", lambda metadata: metadata["token_metrics"].update(forged))
    assert fields(audit([copied])) == ["token_metrics.tokens_per_step", TOTAL]


def test_a_changed_count_breaks_the_seal(copied: Path) -> None:
    edit_metadata(
        copied / "lstm" / "checkpoint-3",
        lambda metadata: metadata["token_metrics"].update(total_tokens_processed=95),
        resealed=False,
    )
    result = audit([copied])
    assert fields(result) == ["checkpoint-3"]
    assert result.step == 2


def test_a_damaged_checkpoint_is_a_finding(copied: Path) -> None:
    (copied / "lstm" / "checkpoint-3" / "model.safetensors").write_bytes(b"short")
    result = audit([copied])
    assert fields(result) == ["checkpoint-3"]
    assert "checkpoint-3 of lstm is damaged: model.safetensors" in messages(result)
    assert result.step == 2
    assert "checkpoints" in fields(audit([copied], step=3))


def test_a_checkpoint_under_another_steps_name_is_damaged(copied: Path) -> None:
    (copied / "lstm" / "checkpoint-3").rename(copied / "lstm" / "checkpoint-9")
    assert messages(audit([copied])) == "checkpoint-9 of lstm is damaged: it is of step 3, whatever its name says"


def test_no_step_in_common_names_the_steps_of_each(copied: Path) -> None:
    shutil.rmtree(copied / "lstm" / "checkpoint-3")
    for step in (1, 2):
        shutil.rmtree(copied / "gpt2" / f"checkpoint-{step}")
    result = audit([copied])
    assert result.step is None
    assert messages(result) == "checkpoints: no sound one at a step in common: gpt2 has 3; lstm has 1, 2"
    assert token_table(result).splitlines()[1] == "lstm       | Step:      2 | Tokens: 64 (0.00M)"


def test_a_step_that_a_run_lacks_is_named(copied: Path) -> None:
    shutil.rmtree(copied / "lstm" / "checkpoint-2")
    assert messages(audit([copied], step=2)) == "checkpoints: no sound one at step 2: lstm has 1, 3"
    assert token_table(audit([copied], step=2)).splitlines()[1] == "lstm       | Step:      2 | Tokens: -"


def test_a_run_without_checkpoints_yet(copied: Path) -> None:
    for step in (1, 2, 3):
        shutil.rmtree(copied / "lstm" / f"checkpoint-{step}")
    result = audit([copied])
    assert "lstm has none" in messages(result)
    assert token_table(result).splitlines()[1] == "lstm       | Step:      - | Tokens: -"
    assert pivot_table(result).splitlines()[-1].split() == ["3", "96", "-"]


def test_machines_and_versions_are_notes(copied: Path) -> None:
    def elsewhere(metadata: dict[str, Any]) -> None:
        metadata.update(world_size=4, device="another", git_commit_hash="abc")
        metadata["versions"]["torch"] = "0.0"

    edit_metadata(copied / "lstm" / "checkpoint-3", elsewhere)
    edit_config(copied / "lstm", "training.compile=true")
    result = audit([copied])
    assert result.passed, messages(result)
    for key in ("world_size", "device", "git_commit_hash", "versions.torch", "training.compile", "config_hash"):
        assert any(note.startswith(f"{key}: ") for note in result.notes), key


def test_an_edited_config_contradicts_its_checkpoints(copied: Path) -> None:
    for name in ("gpt2", "lstm"):
        edit_config(copied / name, "training.learning_rate=0.5")
    assert fields(audit([copied])) == ["training_config.learning_rate"] * 2


def test_keys_of_another_code_version(copied: Path) -> None:
    edit_config(copied / "lstm", "training.invented=null")
    assert audit([copied]).passed
    edit_config(copied / "lstm", "training.invented=5")
    assert "training.invented: not set in gpt2; 5 in lstm" in messages(audit([copied]))


def test_cooled_points_are_not_runs_and_repeated_paths_count_once(study: Path, copied: Path) -> None:
    shutil.copytree(study / "gru", copied / "cooled-3")
    shutil.copytree(study / "gru", copied / "lstm" / "cooled-3")
    assert [run.name for run in audit([copied, copied / "lstm"]).runs] == ["gpt2", "lstm"]


def test_runs_of_one_name_are_told_apart(study: Path, copied: Path) -> None:
    edit_config(copied / "gpt2", "training.weight_decay=0.5")
    result = audit([study / "gpt2", copied / "gpt2"])
    assert set(result.findings[0].values) == {str(study / "gpt2"), str(copied / "gpt2")}


def test_nothing_to_audit_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to audit"):
        audit([])
    with pytest.raises(UserError, match="neither a run folder"):
        audit([tmp_path])
    with pytest.raises(UserError, match="No such file"):
        audit([tmp_path / "absent"])


def test_long_schedules_are_told_apart_by_their_own_entries() -> None:
    shared = list(range(1000, 90000, 1000))
    found = difference("training.checkpoint_schedule", {"a": shared, "b": [7, *shared]})
    assert found is not None
    assert found.message == "training.checkpoint_schedule: 89 entries in a; 90 entries (not everywhere: [7]) in b"
