"""Every mistake in a configuration is one line that names the key or file and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lockstep.config.files import load_run
from lockstep.errors import UserError
from lockstep.training.context import make_context
from lockstep.training.distribution import World

TEXT = """\
experiment_name: mistaken
data: {{training_corpus: {corpus}, batch_size: 4, max_sequence_length: 16}}
model: {{architecture: gpt2, dim: 16, depth: 1, heads: 2}}
training: {{train_steps: 6, device: cpu}}
"""

Refusal = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path, tiny_corpus: Path) -> Refusal:
    """The one line that a run with these overrides, or this text, is refused with."""

    def refuse(*overrides: str, text: str | bytes | None = None) -> str:
        path = tmp_path / "run.yaml"
        content = TEXT.format(corpus=tiny_corpus) if text is None else text
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError) as error:
            make_context(load_run(path, overrides), tmp_path, World())
        message = str(error.value)
        assert len(message.splitlines()) == 1
        assert message.isprintable()
        return message

    return refuse


def assert_says(message: str, words: Sequence[str]) -> None:
    for word in words:
        assert word in message, message


MISTAKES = {
    "unknown key at the top": (["trainning.epochs=1"], ["unknown key trainning", "did you mean training?"]),
    "unknown key in a section": (["training.lerning_rate=1"], ["training.lerning_rate", "did you mean learning_rate?"]),
    "unknown key in a block": (
        ["model.transformer.hiden_size=16"],
        ["model.transformer.hiden_size", "did you mean hidden_size?"],
    ),
    "unknown field of the model": (["model.dimm=16"], ["model", "gpt2", "dimm", "did you mean dim?"]),
    "a field of another architecture": (["model.window=4"], ["model", "gpt2", "window", "valid: "]),
    "unknown key like no other": (["training.zzz=1"], ["training.zzz", "nearest: "]),
    "a usual abbreviation": (["training.lr=1"], ["training.lr", "did you mean learning_rate?"]),
    "kernels without their device": (
        ["training.backend=triton", "training.device=cpu"],
        ["training.backend is triton", "need a CUDA device", "cpu"],
    ),
    "unknown architecture": (["model.architecture=gpt3"], ["unknown architecture gpt3", "did you mean gpt2?"]),
    "a text for a number": (["training.learning_rate=fast"], ["training.learning_rate", "number", "'fast'"]),
    "a fraction of a step": (["training.train_steps=1.5"], ["training.train_steps", "1.5"]),
    "a switch for a whole number": (["data.batch_size=true"], ["data.batch_size", "not true or false"]),
    "a switch for a number": (["training.learning_rate=true"], ["training.learning_rate", "not true or false"]),
    "a switch in a list": (["training.checkpoint_schedule=[true]"], ["checkpoint_schedule", "not true or false"]),
    "a number for a section": (["model.transformer=3"], ["model.transformer", "section of keys", "3"]),
    "a list for a section": (["training=[1, 2]"], ["training", "[1, 2]"]),
    "nothing for a section": (["model=null"], ["model"]),
    "a mapping for a number": (["training.learning_rate={a: 1}"], ["training.learning_rate"]),
    "NaN": (["training.learning_rate=.nan"], ["training.learning_rate", "finite"]),
    "infinity": (["training.epochs=.inf"], ["training.epochs", "finite"]),
    "NaN in the model": (["model.dropout=.nan"], ["dropout", "finite"]),
    "a negative rate": (["training.learning_rate=-1"], ["training.learning_rate", "greater than 0", "-1"]),
    "no batch": (["data.batch_size=0"], ["data.batch_size", "greater than 0", "0"]),
    "a negative seed": (["random_seed=-3"], ["random_seed", "-3"]),
    "a step before the first": (["training.checkpoint_schedule=[0]"], ["training.checkpoint_schedule.0", "0"]),
    "an impossible probability": (["training.mlm_probability=1"], ["training.mlm_probability", "less than 1"]),
    "certain dropout": (["model.dropout=1"], ["dropout", "less than 1"]),
    "an unknown choice": (["training.schedule=linear"], ["training.schedule", "'cosine'", "'wsd'"]),
    "a beyond-64-bit number": (["data.batch_size=9223372036854775808"], ["data.batch_size", "2^63"]),
    "heads that do not divide dim": (["model.dim=16", "model.heads=3"], ["dim 16", "heads 3"]),
    "two widths": (
        ["model={architecture: gpt2, transformer: {embedding_size: 64, hidden_size: 128}}"],
        ["embedding_size is 64", "hidden_size is 128"],
    ),
    "tokens per step that disagree": (["training.tokens_per_step=100"], ["tokens_per_step is 100", "= 64"]),
    "a checkpoint beyond the end": (["training.checkpoint_schedule=[2, 7]"], ["step 7", "last step 6", "train_steps"]),
    "a bidirectional recurrence": (
        ["model={architecture: lstm, rnn: {bidirectional: true}}"],
        ["model.rnn", "bidirectional: true", "remove it"],
    ),
    "another kind of recurrence": (
        ["model={architecture: gru, rnn: {rnn_type: lstm}}"],
        ["rnn_type is lstm", "architecture is gru"],
    ),
    "a manipulated corpus": (["dataset_manipulation=[shuffle]"], ["dataset_manipulation", "remove the key"]),
    "two precisions": (
        ["training.use_amp=true", "training.precision=fp32"],
        ["training.use_amp is True", "training.precision is fp32"],
    ),
    "no amp and bf16": (["training.use_amp=false", "training.precision=bf16"], ["use_amp is False", "bf16"]),
    "a switch that is a text": (["training.use_amp=maybe"], ["training.use_amp", "maybe"]),
    "masks for a causal model": (
        ["training.objective=masked_lm"],
        ["training.objective is masked_lm", "gpt2 is causal"],
    ),
    "next tokens for a bidirectional model": (
        ["model.architecture=bert", "training.objective=causal_lm"],
        ["training.objective is causal_lm", "bert is bidirectional"],
    ),
    "more bytes than there are": (["tokenizer.vocab_size=300"], ["tokenizer.vocab_size is 300", "258"]),
    "fewer tokens than there are": (["model.vocab_size=100"], ["model.vocab_size is 100", "258"]),
    "a tokenizer file without a path": (["tokenizer.tokenizer_type=file"], ["tokenizer.path"]),
    "a path for the byte tokenizer": (["tokenizer.path=a.json"], ["tokenizer.path", "bytes"]),
    "a field given twice": (["model.transformer.hidden_size=32"], ["model.dim is given twice", "16", "32"]),
    "a sequence longer than the corpus": (
        ["data.max_sequence_length=1000000"],
        ["data.max_sequence_length", "1000000 needs 1000001"],
    ),
    "epochs that fill no step": (
        ["training.train_steps=null", "data.batch_size=100000"],
        ["training.epochs", "1 epochs", "100000 sequences"],
    ),
    "fewer positions than tokens": (
        ["model.max_length=8"],
        ["model.max_length is 8", "data.max_sequence_length is 16"],
    ),
    "a sample longer than the positions": (
        ["evaluation.sample_prompt=Hello", "evaluation.sample_tokens=12"],
        ["evaluation.sample_prompt", "5 prompt tokens", "12", "16 positions"],
    ),
    "cooling without a trunk": (["training.cooled_at=[0.5]"], ["training.cooled_at", "wsd", "cosine"]),
    "linear steps in log spacing": (["training.linear_interval=5"], ["training.linear_interval", "linear", "log"]),
    "a device that is none": (["training.device=abacus"], ["training.device", "abacus", "cpu"]),
    "a corpus that is nowhere": (["data.training_corpus=nowhere.txt"], ["nowhere.txt", "no such file"]),
    "no corpus": (["data.training_corpus=null"], ["data.training_corpus", "name a corpus"]),
    "an empty name": (["experiment_name="], ["experiment_name"]),
    "a name that is a path": (["experiment_name=../up"], ["experiment_name", "../up"]),
    "a name that is a folder": (["experiment_name=.."], ["experiment_name", ".."]),
    "more layers than exist": (["model.depth=1000000000"], ["model.depth", "1,000,000,000"]),
    "a width that cannot be": (["model.dim=1000000000"], ["dim 1,000,000,000", "parameters"]),
    "steps without end": (["training.train_steps=null", "training.epochs=1e300"], ["training.epochs", "steps"]),
    "a step without end": (["data.batch_size=1000000000000"], ["data.batch_size", "tokens per step"]),
    "checkpoints without end": (
        ["training.train_steps=1000000000", "training.checkpoint_every_tokens=1"],
        ["checkpoint", "1,000,000,000"],
    ),
}


@pytest.mark.parametrize(("overrides", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named(overrides: list[str], words: list[str], refusal: Refusal) -> None:
    assert_says(refusal(*overrides), words)


BAD_OVERRIDES = {
    "no value": ("training.epochs", ["-o training.epochs", "key=value"]),
    "no key": ("=3", ["-o =3", "key=value"]),
    "a hole in the key": ("training..epochs=3", ["-o training..epochs=3", "key=value"]),
    "below a value": ("experiment_name.first=3", ["experiment_name is not a section"]),
    "an open bracket": ("training.checkpoint_schedule=[1", ["-o training.checkpoint_schedule=[1", "not valid YAML"]),
    "two lines": ("a\nb", ["-o a\\nb", "key=value"]),
    "a key of two lines": ("training.a\nb=1", ["unknown key training.a\\nb"]),
}


@pytest.mark.parametrize(("override", "words"), BAD_OVERRIDES.values(), ids=BAD_OVERRIDES.keys())
def test_a_bad_override_is_named(override: str, words: list[str], refusal: Refusal) -> None:
    assert_says(refusal(override), words)


BAD_FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "a duplicate key": ("experiment_name: a\nexperiment_name: b\n", ["line 2", "not valid YAML", "experiment_name"]),
    "a duplicate key below": ("data:\n  batch_size: 1\n  batch_size: 2\n", ["line 3", "batch_size"]),
    "no YAML": ("data: [1, 2\nmodel: {", ["line 2", "not valid YAML"]),
    "a tab": ("data:\n\tbatch_size: 1\n", ["line 2", "not valid YAML"]),
    "an unknown tag": ("data: !!python/object:os.system {}\n", ["not valid YAML"]),
    "two documents": ("a: 1\n---\nb: 2\n", ["not valid YAML"]),
    "nothing": ("", ["mapping"]),
    "a comment only": ("# soon\n", ["mapping"]),
    "a list": ("- 1\n- 2\n", ["mapping"]),
    "a text": ("hello\n", ["mapping"]),
    "bytes": (b"\x80\x04\x95\xff\x00", ["not UTF-8 text", "byte 0"]),
    "a control character": ("experiment_name: \x07\n", ["not valid YAML"]),
    "a key that is a number": ("1: 2\n", ["1: Keys should be strings"]),
    "a key of two lines": ('"a\\nb": 2\n', ["unknown key a\\nb"]),
    "half a character": ('"\\ud800": 2\n', ["unicode"]),
    "nests without end": ("[" * 100_000, ["not valid YAML"]),
    "only a name": ("experiment_name: a\n", ["data: missing; add the key"]),
}


@pytest.mark.parametrize(("text", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named(text: str | bytes, words: list[str], refusal: Refusal) -> None:
    assert_says(refusal(text=text), ["run.yaml: ", *words])


def test_a_misspelling_is_named_before_what_is_missing(refusal: Refusal) -> None:
    text = "experiment_nam: a\ndata: {training_corpus: x}\nmodel: {architecture: gpt2}\n"
    assert_says(refusal(text=text), ["unknown key experiment_nam", "did you mean experiment_name?"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml: no such file"):
        load_run(tmp_path / "absent.yaml")


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}: a folder; name a file in it$"):
        load_run(tmp_path)
