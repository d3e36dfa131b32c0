"""Tasks as a corpus: every sequence is an instance, what is not asked for is not predicted, and text stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.config.data import DataSpec
from lockstep.config.spec import validate
from lockstep.config.tasks import InductionSpec, RecallSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.masking import IGNORED
from lockstep.data.prepare import prepare
from lockstep.data.prepared import Prepared
from lockstep.data.stream import TokenStream
from lockstep.data.symbol_tokenizer import SymbolTokenizer
from lockstep.data.tasks.registry import make_task
from lockstep.data.tokenizers import load_tokenizer
from lockstep.errors import UserError

LENGTH, SEQUENCES = 32, 40
RECALL = {"name": "recall", "pairs": [2, 4], "vocabulary": 32}


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Line {number} of {number**2}.\n" for number in range(300)), encoding="utf-8")
    return path


def data_of(corpus: Path | None = None, **changes: Any) -> DataSpec:
    fields: dict[str, Any] = {"tasks": [RECALL, "induction"], "task_sequences": SEQUENCES, "batch_size": 4}
    fields |= {"max_sequence_length": LENGTH, "training_corpus": None if corpus is None else str(corpus)}
    return validate(DataSpec, {**fields, **changes}, "test")


def windows_and_targets(prepared: Prepared, split: str = "train") -> tuple[Any, Any]:
    tokens = prepared.tokens(split)
    starts = np.arange((len(tokens) - 1) // LENGTH) * LENGTH
    places = starts[:, None] + np.arange(LENGTH + 1)
    return tokens[places].astype(np.int64), prepared.targets(split, places[:, 1:])


def test_every_sequence_is_an_instance_of_each_task_in_turn(own_cache: Path) -> None:
    windows, targets = windows_and_targets(prepare(data_of(), TokenizerSpec()))
    tasks = [make_task(RecallSpec.model_validate(RECALL), ByteTokenizer()), make_task(InductionSpec(), ByteTokenizer())]
    assert len(windows) == SEQUENCES
    for number, (window, asked) in enumerate(zip(windows, targets, strict=True)):
        instance = tasks[number % 2].instance("train", number // 2, LENGTH)
        assert window[:-1].tolist() == instance.tokens.tolist()
        # The first token is nobody's target, and the one after the last is not asked for.
        expected = np.where(instance.answers > 0, instance.tokens, IGNORED)[1:]
        assert asked[:-1].tolist() == expected.tolist()
        assert asked[-1] == IGNORED


def test_splits_share_no_sequence(own_cache: Path) -> None:
    prepared = prepare(data_of(tasks=[{**RECALL, "vocabulary": 8, "pairs": 2}], task_sequences=500), TokenizerSpec())
    met = [
        {row.tobytes() for row in windows_and_targets(prepared, split)[0][:, :8]} for split in prepared.manifest.splits
    ]
    assert len(set.union(*met)) == sum(map(len, met))


def test_nothing_is_said_in_bytes(own_cache: Path) -> None:
    prepared = prepare(data_of(), TokenizerSpec())
    assert prepared.byte_lengths("valid", np.arange(50)).sum() == 0


def test_among_text_the_text_comes_whole_and_unmasked(own_cache: Path, text_file: Path) -> None:
    text = prepare(validate(DataSpec, {"training_corpus": str(text_file)}, "test"), TokenizerSpec())
    mixed = prepare(data_of(text_file), TokenizerSpec())
    windows, targets = windows_and_targets(mixed)
    whole = len(text.tokens("train")) // LENGTH
    assert len(windows) == whole + SEQUENCES
    assert windows[:whole, :-1].ravel().tolist() == text.tokens("train")[: whole * LENGTH].tolist()
    assert (targets[:whole] != IGNORED).all(axis=1)[:-1].all()
    assert ((targets[whole:] == IGNORED).mean(axis=1) > 0.5).all()
    for split in ("valid", "test"):
        assert mixed.tokens(split).tolist() == text.tokens(split).tolist()
        places = np.arange(1, len(text.tokens(split)))
        assert mixed.byte_lengths(split, places).tolist() == text.byte_lengths(split, places).tolist()
        assert (mixed.targets(split, places) != IGNORED).all()


def test_the_last_token_of_text_is_followed_by_an_instance_it_need_not_predict(
    own_cache: Path, text_file: Path
) -> None:
    """The first token of an instance is random: it is no target, wherever the instance stands."""
    mixed = prepare(data_of(text_file), TokenizerSpec())
    _, targets = windows_and_targets(mixed)
    whole = len(targets) - SEQUENCES
    assert targets[whole - 1, -1] == IGNORED


def test_the_same_knobs_give_the_same_corpus_and_others_another(own_cache: Path) -> None:
    first = prepare(data_of(), TokenizerSpec())
    tested_otherwise = {**RECALL, "lengths": [64], "instances": 3}
    assert prepare(data_of(tasks=[tested_otherwise, "induction"]), TokenizerSpec()).folder == first.folder
    for changes in ({"task_sequences": 41}, {"max_sequence_length": 48}, {"tasks": [RECALL]}):
        assert prepare(data_of(**changes), TokenizerSpec()).corpus_digest != first.corpus_digest


def test_a_stream_visits_every_instance_once_an_epoch(own_cache: Path) -> None:
    prepared = prepare(data_of(), TokenizerSpec())
    stream = TokenStream(prepared.tokens("train"), LENGTH, 8, seed=1)
    seen = np.concatenate([stream.step(step)[:, :-1] for step in range(SEQUENCES // 8)])
    assert len({row.tobytes() for row in seen}) == SEQUENCES


def test_damage_is_noticed(own_cache: Path) -> None:
    prepared = prepare(data_of(), TokenizerSpec())
    asked = prepared.folder / "train.asked.bin"
    asked.write_bytes(asked.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train\.asked\.bin.*delete the folder"):
        prepare(data_of(), TokenizerSpec())


@pytest.mark.parametrize(
    ("changes", "tokenizer", "words"),
    [
        ({"max_sequence_length": 8}, {}, "recall.*8 tokens are too few"),
        ({}, {"tokenizer_type": "bpe", "vocab_size": 300}, "tokenizer_type bpe is trained on text"),
        ({}, {"tokenizer_type": "symbols", "vocab_size": 20}, "symbols are needed"),
        (
            {"tasks": ["needles"], "max_sequence_length": 400},
            {"tokenizer_type": "symbols", "vocab_size": 500},
            "needles",
        ),
    ],
)
def test_what_cannot_be_made_is_one_line(
    own_cache: Path, changes: dict[str, Any], tokenizer: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        prepare(data_of(**changes), validate(TokenizerSpec, tokenizer, "test"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tasks": ["recal"]}, "recall, induction"),
        ({"tasks": [{"name": "recall", "pair": 3}]}, "pair"),
        ({"tasks": []}, "data.tasks"),
        ({"tasks": [{"name": "recall", "vocabulary": 2}]}, "vocabulary"),
    ],
)
def test_wrong_tasks_are_one_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        validate(DataSpec, fields, "test")


def test_symbols_are_numbers(tmp_path: Path) -> None:
    tokenizer = SymbolTokenizer(40)
    ids = tokenizer.encode(b"3 0 38  7\n")
    assert ids.tolist() == [3, 0, 38, 7]
    assert tokenizer.decode([3, 0, tokenizer.eos_id, 7]) == "3 0 7"
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.vocab_size, again.fingerprint) == (40, tokenizer.fingerprint)
    for wrong in (b"40", b"-1", b"x"):
        with pytest.raises(UserError, match="the numbers 0 to 39"):
            tokenizer.encode(wrong)
