"""Whatever a user writes, the answer is a plan that can be carried out or one line that says what is wrong."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lockstep import cli
from lockstep.config.files import dump_yaml, load_run
from lockstep.config.run import RunSpec
from lockstep.config.spec import Spec
from lockstep.errors import UserError
from lockstep.models.registry import architectures, find
from lockstep.training.context import resolve_model
from lockstep.training.plan import make_plan

WINDOWS = 700
BYTES = 258

VALID: dict[str, Any] = {
    "experiment_name": "valid",
    "data": {"training_corpus": "corpus.txt", "batch_size": 2, "max_sequence_length": 8},
    "tokenizer": {"tokenizer_type": "bytes"},
    "model": {"architecture": "gpt2", "dim": 8, "depth": 1, "heads": 2},
    "training": {"train_steps": 2, "device": "cpu", "save_interval": None},
    "evaluation": {"sequences": 2},
    "logging": {"log_interval": 1},
}

thorough = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
brief = settings(thorough, max_examples=40)


def keys_of(kind: type[Spec], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a specification and of those below it."""
    for name, field in kind.model_fields.items():
        yield (*prefix, name)
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, Spec):
                yield from keys_of(one, (*prefix, name))


MODEL_KEYS = {("model", field) for name in architectures() for field in find(name).model_fields}
KEYS = sorted({*keys_of(RunSpec), *MODEL_KEYS})
LOCATIONS = {("data", "training_corpus"), ("data", "source_corpus"), ("tokenizer", "path"), ("training", "output_dir")}
SLOW = {("training", "compile")}
WORDS = [*architectures(), "mamba", "wsd", "one-cycle", "constant", "masked_lm", "causal_lm", "fp16", "bf16", "linear"]
WORDS += ["log", "muon", "adopt-atan2", "unigram", "wordpiece", "character", "bytes", "relu", "fsdp", "4", "1e-3", "~x"]
WORDS += ["tensorboard", "cuda", "..", "", "\x00", "a\nb", "\x1e", "a\u2028b", "e" * 300]

small_numbers = st.one_of(st.integers(-2, 20), st.floats(-1, 1.5))
odd_text = st.text("\x1b\x85\u2028\u200b\ufeff\U0001f600a.:", max_size=3)
any_number = st.one_of(small_numbers, st.integers(), st.floats(), st.sampled_from([10**9, 2**63, 10**30, 1e300]))


def values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What may stand behind a key: right now and then, and wrong in every way."""
    plain = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(WORDS), st.text(max_size=8), odd_text)
    nested = st.one_of(
        st.lists(plain, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.sampled_from(WORDS)), plain, max_size=2),
    )
    return st.one_of(plain, plain, nested)


@st.composite
def configurations(draw: st.DrawFn, numbers: st.SearchStrategy[Any], keys: list[tuple[str, ...]]) -> dict[str, Any]:
    """A valid configuration with a few keys set, added or removed."""
    data = copy.deepcopy(VALID)
    data["model"]["architecture"] = draw(st.sampled_from(architectures()))
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(keys))
        if draw(st.integers(0, 9)) == 0:
            key = (*key[:-1], draw(st.text(max_size=6)))
        put(data, key, draw(values(numbers)), remove=draw(st.integers(0, 9)) == 0)
    return data


def put(data: dict[str, Any], key: tuple[str, ...], value: Any, remove: bool) -> None:
    *parents, last = key
    for part in parents:
        below = data.get(part)
        if not isinstance(below, dict):
            below = data[part] = {}
        data = below
    if remove:
        data.pop(last, None)
    else:
        data[last] = value


def answer(text: bytes, overrides: list[str]) -> RunSpec | str:
    """The run that was planned, or the line of refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(text)
        try:
            run = load_run(path, overrides)
            assert_carried_out(run)
        except UserError as error:
            message = str(error)
            assert message.strip()
            assert message.splitlines() == [message]
            return message
        again = Path(folder) / "again.yaml"
        again.write_text(dump_yaml(run.model_dump(mode="json")), encoding="utf-8")
        assert load_run(again) == run
    return run


def assert_carried_out(run: RunSpec) -> None:
    """Model and plan exist; nothing is allocated for them."""
    spec = resolve_model(run, BYTES)
    plan = make_plan(run, WINDOWS)
    assert plan.steps >= 1
    assert plan.milestones[-1] == plan.steps
    assert list(plan.milestones) == sorted(set(plan.milestones))
    assert plan.milestones[0] >= 1
    assert plan.epoch(plan.steps) >= 0
    if spec.depth <= 32:
        with torch.device("meta"):
            model = spec.build()
        assert model.cost(run.data.max_sequence_length).parameters > 0


@thorough
@given(configurations(any_number, KEYS))
def test_any_configuration_is_planned_or_refused_in_a_line(data: dict[str, Any]) -> None:
    answer(dump_yaml(data).encode(), [])


def test_the_valid_configuration_is_planned() -> None:
    """Otherwise the rest of this file might only ever see refusals."""
    run = answer(dump_yaml(VALID).encode(), [])
    assert isinstance(run, RunSpec)
    assert run.training.train_steps == 2


override_keys = st.one_of(st.sampled_from([".".join(key) for key in KEYS]), st.text(max_size=12))
override_values = st.one_of(
    values(any_number).map(str), st.text(max_size=12), st.sampled_from(["[", "{a: 1", "&a [*a]"])
)


@thorough
@given(st.lists(st.one_of(st.tuples(override_keys, override_values).map("=".join), st.text()), min_size=1, max_size=3))
@example(["model=&a {architecture: *a}"])
@example(["dataset_manipulation=&a [*a]"])
@example(["training.checkpoint_schedule=&a [*a]"])
@example(["model.dim=&a [*a]"])
def test_any_override_is_planned_or_refused_in_a_line(overrides: list[str]) -> None:
    answer(dump_yaml(VALID).encode(), overrides)


@st.composite
def damaged_texts(draw: st.DrawFn) -> bytes:
    """The valid file with bytes cut out and others put in their place."""
    text = dump_yaml(VALID).encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 6))
        patch = draw(
            st.one_of(st.text("\n\t -:[]{}#&*!|>'\"%@`?,~0e.", max_size=4).map(str.encode), st.binary(max_size=3))
        )
        text = text[:start] + patch + text[end:]
    return text


@thorough
@given(st.one_of(damaged_texts(), st.text().map(lambda text: text.encode()), st.binary()))
@example(b"? - 1\n: 2\n")
@example(b"{a: 1}: 2\n")
@example(b"2001-01-01: 2\n")
@example(b"<<: 3\n")
@example(b"%YAML 9.9\n---\na: 1\n")
@example(b"data: !!timestamp x\n")
@example(b"data: !!int x\n")
@example(b"data: !!binary x\n")
@example(b"data: !!omap 3\n")
@example(b"data: !!set [1]\n")
def test_any_text_is_planned_or_refused_in_a_line(text: bytes) -> None:
    answer(text, [])


@pytest.fixture(scope="module")
def offline() -> Iterator[None]:
    """A tokenizer that would be fetched is refused at once, whatever network there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOCKSTEP_DATA", raising=False)
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        patch.setenv("https_proxy", "http://127.0.0.1:9")
        yield


def command(arguments: list[str]) -> tuple[int, str]:
    """Exit status and standard error of a command, run in this process."""
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", ["lockstep", *arguments])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            try:
                cli.main()
            except SystemExit as exit_:
                return int(exit_.code or 0), errors.getvalue()
    raise AssertionError("main did not exit")


@brief
@given(configurations(small_numbers, [key for key in KEYS if key not in LOCATIONS | SLOW]))
@example(VALID)
def test_the_command_trains_or_refuses_and_leaves_nothing_half_written(
    tiny_corpus: Path, offline: None, data: dict[str, Any]
) -> None:
    if isinstance(data.get("data"), dict):
        data["data"]["training_corpus"] = str(tiny_corpus)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(dump_yaml(data), encoding="utf-8")
        status, errors = command(["train", str(folder / "run.yaml"), "--output-dir", str(folder / "run")])
        lines = [line for line in errors.splitlines() if not line.startswith("lockstep: warning: ")]
        assert status in (0, 2), errors
        assert len(lines) == (1 if status else 0), errors
        assert (folder / "run" / "config.yaml").exists() == (status == 0)
        assert sorted(path.name for path in folder.iterdir()) == (["run.yaml"] if status else ["run", "run.yaml"])
