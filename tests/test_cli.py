"""The command line: every verb on a small real run, and how it says no."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep import cli
from lockstep.config.files import load_run, read_yaml

VERBS = ("train", "evaluate", "generate", "schedule", "audit", "check", "prepare", "list", "doctor")

CONFIG = """\
# A comment that stays.
experiment_name: {name}
data: {{training_corpus: {corpus}, batch_size: 4, max_sequence_length: 16}}
model: {{architecture: {architecture}, dim: 16, depth: 1, heads: 2}}
training:
  train_steps: 6
  learning_rate: 1e-2  # high, for so small a model
  checkpoint_schedule: [2, 4]
  output_dir: {output}
  device: cpu
evaluation: {{sequences: 8, pseudo_sequences: 2}}
"""


@dataclass(frozen=True)
class Outcome:
    """What a command gave back."""

    status: int
    out: str
    err: str

    def assert_ok(self) -> str:
        assert self.status == 0, self.err
        assert self.err == ""
        assert_plain(self.out)
        return self.out

    def assert_refused(self, *words: str) -> None:
        """One line on standard error, nothing on standard output, exit status 2."""
        assert self.status == 2, self.err
        assert self.out == ""
        assert self.err.startswith("lockstep: ")
        assert self.err.endswith("\n")
        assert len(self.err.splitlines()) == 1, self.err
        for word in words:
            assert word in self.err, self.err


def assert_plain(text: str) -> None:
    """No colours, no carriage returns: what is written to a file should read as text."""
    assert all(one.isprintable() or one == "\n" for one in text)


def lockstep(*arguments: str | Path) -> Outcome:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", ["lockstep", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            cli.main()
    code = exit_.value.code
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Run the command as a process of its own."""
    command = [sys.executable, "-m", "lockstep.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write_config(folder: Path, corpus: Path, architecture: str, name: str | None = None) -> Path:
    name = name or architecture
    path = folder / f"{name}.yaml"
    output = folder / "output" / name
    path.write_text(CONFIG.format(name=name, corpus=corpus, architecture=architecture, output=output))
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> Path:
    """A folder with the configurations of three contestants, each trained by the command."""
    folder = tmp_path_factory.mktemp("study")
    for architecture in ("gpt2", "lstm", "bert"):
        config = write_config(folder, tiny_corpus, architecture)
        text = lockstep("train", config).assert_ok()
        assert f"run       {folder / 'output' / architecture}" in text
        assert f"steps     6, {6 * 4 * 16} tokens" in text
        assert "held out  loss" in text
    return folder


def test_train_leaves_a_run_folder(study: Path) -> None:
    run = study / "output" / "gpt2"
    assert {"config.yaml", "metrics.jsonl", "checkpoint-2", "checkpoint-4", "checkpoint-6"} <= set(os.listdir(run))
    assert load_run(run / "config.yaml").model.fields()["vocab_size"] == 258


def test_train_again_has_nothing_left_to_do(study: Path) -> None:
    before = (study / "output" / "gpt2" / "metrics.jsonl").read_bytes()
    assert "steps     6" in lockstep("train", study / "gpt2.yaml").assert_ok()
    assert (study / "output" / "gpt2" / "metrics.jsonl").read_bytes() == before


def test_train_into_another_run_is_refused(study: Path) -> None:
    refused = lockstep("train", study / "lstm.yaml", "--output-dir", study / "output" / "gpt2")
    refused.assert_refused("holds a run with", "--output-dir")


def test_train_into_a_file_is_refused(study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    lockstep("train", study / "gpt2.yaml", "--output-dir", tmp_path / "file").assert_refused(str(tmp_path / "file"))
    lockstep("train", study / "gpt2.yaml", "--output-dir", tmp_path / "file" / "x").assert_refused("Not a directory")
    lockstep("train", study / "gpt2.yaml", "--output-dir", tmp_path / ("n" * 300)).assert_refused("too long")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("as_folder", [False, True], ids=["config", "run folder"])
def test_evaluate_scores_both_splits(study: Path, tmp_path: Path, as_folder: bool) -> None:
    named = study / "output" / "gpt2" if as_folder else study / "gpt2.yaml"
    text = lockstep("evaluate", named, "--checkpoint", "checkpoint-4", "--output-dir", tmp_path).assert_ok()
    for split in ("valid", "test"):
        result = json.loads((tmp_path / f"checkpoint-4-{split}.json").read_text())
        assert (result["step"], result["tokens_processed"], result["track"]) == (4, 4 * 64, "causal")
        assert f"gpt2  checkpoint-4  {split}  loss {result['loss']:.4f}" in text


def test_evaluate_takes_the_newest_checkpoint_and_writes_into_the_run(study: Path) -> None:
    lockstep("evaluate", study / "lstm.yaml", "--split", "valid").assert_ok()
    assert os.listdir(study / "output" / "lstm" / "evaluations") == ["checkpoint-6-valid.json"]


def test_evaluate_gives_a_masked_model_its_own_track(study: Path, tmp_path: Path) -> None:
    text = lockstep("evaluate", study / "bert.yaml", "--split", "valid", "--output-dir", tmp_path).assert_ok()
    result = json.loads((tmp_path / "checkpoint-6-valid.json").read_text())
    assert result["track"] == "masked"
    assert result["pseudo"]["tokens"] == 2 * 16
    assert "masked_perplexity" in text
    assert "pseudo_perplexity" in text
    assert "perplexity" not in result


def test_evaluate_heeds_overrides(study: Path, tmp_path: Path) -> None:
    options = ("--split", "valid", "--output-dir", tmp_path, "-o", "evaluation.pseudo_sequences=3")
    lockstep("evaluate", study / "output" / "bert", *options).assert_ok()
    assert json.loads((tmp_path / "checkpoint-6-valid.json").read_text())["pseudo"]["tokens"] == 3 * 16


def test_evaluate_names_what_is_missing(study: Path, tmp_path: Path) -> None:
    config = study / "gpt2.yaml"
    lockstep("evaluate", config, "--checkpoint", "checkpoint-50000").assert_refused("step 50000", "last step 6")
    lockstep("evaluate", config, "--checkpoint", "checkpoint-3").assert_refused("checkpoint-3", "2, 4, 6")
    lockstep("evaluate", config, "--split", "train").assert_refused("--split train", "valid, test")
    lockstep("evaluate", tmp_path).assert_refused(str(tmp_path), "train first")
    lockstep("evaluate", tmp_path / "none.yaml").assert_refused("none.yaml", "no such file")
    output = tmp_path / "results"
    lockstep("evaluate", config, "--checkpoint", "checkpoint-9", "--output-dir", output).assert_refused()
    assert not output.exists()


def test_evaluate_refuses_a_corpus_that_has_changed(tmp_path: Path, tiny_corpus: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(tiny_corpus.read_bytes())
    config = write_config(tmp_path, corpus, "rnn")
    lockstep("train", config).assert_ok()
    corpus.write_bytes(tiny_corpus.read_bytes().replace(b"cat", b"cow"))
    lockstep("evaluate", config).assert_refused("corpus_digest", "bring back the old text")


def test_generate_is_reproducible(study: Path) -> None:
    run, options = study / "output" / "lstm", ("--prompt", "The cat", "--tokens", "30")
    texts = [lockstep("generate", run, *options, "--seed", seed) for seed in ("1", "1", "2")]
    assert all(text.status == 0 and text.out.startswith("The cat") for text in texts)
    assert texts[0].out == texts[1].out != texts[2].out


def test_generate_takes_one_checkpoint_of_a_run(study: Path) -> None:
    options = ("--prompt", "The", "--tokens", "8", "--temperature", "0")
    run = study / "output" / "lstm"
    newest = lockstep("generate", run, *options)
    assert newest.status == 0
    assert lockstep("generate", run / "checkpoint-6", *options) == newest


def test_generate_says_why_not(study: Path, tmp_path: Path) -> None:
    run = study / "output"
    lockstep("generate", run / "bert", "--prompt", "a").assert_refused("bert is bidirectional")
    lockstep("generate", run / "gpt2", "--prompt", "abc", "--tokens", "20").assert_refused("3 prompt", "16 positions")
    lockstep("generate", run / "lstm").assert_refused("--prompt")
    lockstep("generate", tmp_path, "--prompt", "a").assert_refused(str(tmp_path), "train first")


@pytest.mark.parametrize(
    "option",
    ["--temperature=-1", "--temperature=nan", "--top-p=2", "--top-p=nan", "--top-k=0", "--seed=-1", "--tokens=0"],
)
def test_generate_refuses_impossible_numbers(study: Path, option: str) -> None:
    lockstep("generate", study / "output" / "lstm", "--prompt", "a", option).assert_refused(option.partition("=")[0])


def test_generate_refuses_a_seed_beyond_64_bits(study: Path) -> None:
    seed = str(2**64)
    lockstep("generate", study / "output" / "lstm", "--prompt", "a", "--seed", seed).assert_refused("--seed")


def test_schedule_writes_and_sync_copies(tmp_path: Path, tiny_corpus: Path) -> None:
    source, target = (write_config(tmp_path, tiny_corpus, name) for name in ("gpt2", "gru"))
    text = lockstep("schedule", source, "--first-epoch", "3", "--min-per-epoch", "2").assert_ok()
    assert f"{source}: " in text
    assert "to step 6" in text
    steps = read_yaml(source)["training"]["checkpoint_schedule"]
    assert steps[-1] == 6
    assert steps != [2, 4]
    assert "# A comment that stays." in source.read_text()
    assert "# high, for so small a model" in source.read_text()
    synced = lockstep("schedule", "sync", source, target).assert_ok()
    assert synced == f"copied {len(steps)} steps from {source} to 1 other files\n"
    assert read_yaml(target)["training"]["checkpoint_schedule"] == steps


def test_schedule_says_why_not(tmp_path: Path, tiny_corpus: Path) -> None:
    config = write_config(tmp_path, tiny_corpus, "gpt2")
    before = config.read_text()
    lockstep("schedule", "sync", config).assert_refused("at least one to copy to")
    lockstep("schedule", config, config).assert_refused("one CONFIG at a time", "sync")
    lockstep("schedule", config, "--spacing", "cubic").assert_refused("subsequent_epochs_spacing", "cubic")
    lockstep("schedule", "sync", config, tmp_path / "none.yaml").assert_refused("none.yaml")
    assert config.read_text() == before


def test_audit_passes_on_equal_runs_and_fails_on_others(study: Path, tmp_path: Path, tiny_corpus: Path) -> None:
    runs = [study / "output" / "gpt2", study / "output" / "lstm"]
    text = lockstep("audit", *runs).assert_ok()
    assert "gpt2       | Step:      6 | Tokens: 384 (0.00M)" in text
    assert text.endswith("audit passed\n")
    other = write_config(tmp_path, tiny_corpus, "rnn")
    lockstep("train", other, "-o", "data.batch_size=2").assert_ok()
    failed = lockstep("audit", *runs, tmp_path / "output" / "rnn")
    assert (failed.status, failed.err) == (1, "")
    assert "finding: " in failed.out
    assert "data.batch_size" in failed.out


def test_check_prints_a_verdict_for_every_law() -> None:
    text = lockstep("check", "transformer++").assert_ok()
    assert text.endswith("transformer++ obeys the laws\n")
    assert "no-future-leak" in text
    lockstep("check", "transformer+").assert_refused("transformer+", "did you mean transformer++?")


def test_prepare_says_what_it_made(tiny_corpus: Path) -> None:
    text = lockstep("prepare", tiny_corpus, "--tokenizer", "bpe", "--vocab-size", "300").assert_ok()
    folder = Path(text.splitlines()[0])
    assert (folder / "manifest.json").exists()
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["train", "valid", "test", "vocabulary"]
    assert lockstep("prepare", tiny_corpus, "--tokenizer", "bpe", "--vocab-size", "300").assert_ok() == text


def test_prepare_finds_tokens_that_are_no_longer_what_was_written(tiny_corpus: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_bytes(tiny_corpus.read_bytes())
    tokens = Path(lockstep("prepare", corpus).assert_ok().splitlines()[0]) / "train.bin"
    # A power cut may leave a file of the right size that is full of zeros.
    tokens.write_bytes(bytes(tokens.stat().st_size))
    lockstep("prepare", corpus).assert_refused(str(tokens), "sha256", "delete the folder")
    shutil.rmtree(tokens.parent)
    lockstep("prepare", corpus).assert_ok()


def test_prepare_says_why_not(tiny_corpus: Path, tmp_path: Path) -> None:
    lockstep("prepare", tmp_path / "none.txt").assert_refused("none.txt", "no such file")
    lockstep("prepare", tiny_corpus, "--tokenizer", "letters").assert_refused("--tokenizer", "letters", "'bytes'")
    lockstep("prepare", "").assert_refused("training_corpus")
    lockstep("prepare", tmp_path).assert_refused(str(tmp_path), "empty folder")


def test_list_names_what_there_is() -> None:
    words = lockstep("list").assert_ok().split()
    assert {"architectures", "corpora", "tokenizers", "gpt2", "lstm", "transformer++", "pystdlib", "bytes,"} <= set(
        words
    )


def test_doctor_names_versions_devices_and_data(own_cache: Path) -> None:
    text = lockstep("doctor").assert_ok()
    for word in ("torch", "cpu", "triton", "wandb", "pystdlib", str(own_cache)):
        assert word in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    text = lockstep(verb, "--help").assert_ok()
    assert text.startswith(f"Usage: lockstep {verb}")


def test_the_bare_command_is_help() -> None:
    text = lockstep().assert_ok()
    assert text == lockstep("--help").assert_ok()
    assert all(f"  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["trian"]),
        (["train"], ["CONFIG", "lockstep train --help"]),
        (["train", "a.yaml", "--epochs", "3"], ["--epochs", "lockstep train --help"]),
        (["train", "a.yaml", "b.yaml"], ["b.yaml"]),
        (["train", "a\nb.yaml"], ["a\\nb.yaml", "no such file"]),
        (["generate", "run", "--prompt", "a", "--tokens", "many"], ["--tokens", "integer"]),
        (["audit"], ["RUN"]),
        (["--verbose"], ["--verbose"]),
    ],
)
def test_a_wrong_command_is_one_line(arguments: list[str], words: list[str]) -> None:
    lockstep(*arguments).assert_refused(*words)


def test_help_needs_nothing_heavy() -> None:
    script = (
        "import sys; from lockstep import cli\n"
        "sys.argv = ['lockstep', '--help']\n"
        "try:\n    cli.main()\n"
        "except SystemExit as exit_:\n"
        "    loaded = {'torch', 'numpy', 'pydantic', 'tokenizers', 'ruamel'} & {m.split('.')[0] for m in sys.modules}\n"
        "    sys.exit(f'{exit_.code} {sorted(loaded)}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == "0 []\n"
    assert done.stdout.startswith("Usage: lockstep")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = start("list")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() in (0, 1)


def test_a_process_of_its_own_refuses_in_one_line(tmp_path: Path) -> None:
    out, err = (process := start("train", tmp_path / "none.yaml")).communicate()
    Outcome(process.returncode, out, err).assert_refused("none.yaml: no such file")


def test_an_interruption_is_quiet() -> None:
    process = start("check", "transformer++")
    assert process.stdout is not None
    assert "passed" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.strip() == ""
