"""The configuration files that come with Lockstep, the published guide's texts as they stand, and round trips."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli
from lockstep.config.files import dump_yaml, load_run, parse_yaml, read_yaml
from lockstep.config.model import ModelSection
from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.models.registry import architectures
from lockstep.training.context import make_context, resolve_model
from lockstep.training.distribution import World

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GUIDED = ("gpt2", "bert", "mamba", "lstm", "gru", "rnn")

MASTER = """
training:
  learning_rate: 0.0001
  epochs: 10
  train_steps: null  # Auto-calculated from epochs × steps_per_epoch
  gradient_accumulation_steps: 4
  auto_generate_checkpoints: true
  first_epoch_checkpoints: 20
  subsequent_epochs_spacing: "log"
  min_checkpoints_per_epoch: 5

data:
  training_corpus: "data/processed/10M_tokens"
  batch_size: 32
  max_sequence_length: 512
"""

BASE = """
experiment_name: "REPLACE_WITH_ARCHITECTURE_10M"

data:
  source_corpus: "data/raw/10M_tokens"
  training_corpus: "data/processed/10M_tokens"
  batch_size: 32
  max_sequence_length: 512

tokenizer:
  vocab_size: 32000
  tokenizer_type: "sentencepiece"  # Override for BERT (use "wordpiece")

training:
  learning_rate: 0.0001
  epochs: 10
  gradient_accumulation_steps: 4
  auto_generate_checkpoints: true
  first_epoch_checkpoints: 20
  subsequent_epochs_spacing: "log"
  min_checkpoints_per_epoch: 5

logging:
  use_wandb: true
  project: "architecture-comparison-10M"
  log_interval: 10
"""

GPT2_MODEL = """
model:
  architecture: "gpt2"
  transformer:
    layers: 12
    embedding_size: 768
    hidden_size: 768
    intermediate_hidden_size: 3072
    attention_heads: 12
    activation_function: "gelu"
    dropout: 0.1
    attention_dropout: 0.1
"""

MAMBA_MODEL = """
model:
  architecture: "mamba"
  mamba:
    d_model: 768
    n_layers: 24
    d_state: 16
    d_conv: 4
    expand: 2
    dropout: 0.1
"""

TRACKED = """
logging:
  use_wandb: true
  project: "architecture-comparison"
  tags: ["10M_tokens", "fair_comparison"]
"""


def guided_run(model: str, folder: Path, corpus: Path) -> RunSpec:
    """The guide's base file with a model block, only the corpus path changed."""
    path = folder / "run.yaml"
    path.write_text(BASE.replace("data/processed/10M_tokens", str(corpus)) + model, encoding="utf-8")
    return load_run(path)


def small_run(corpus: Path, architecture: str, training: dict[str, Any] | None = None) -> RunSpec:
    return RunSpec.model_validate(
        {
            "experiment_name": "small",
            "data": {"training_corpus": str(corpus), "batch_size": 2, "max_sequence_length": 16},
            "model": {"architecture": architecture, "dim": 16, "depth": 1, "heads": 2},
            "training": {"train_steps": 3, "device": "cpu", **(training or {})},
        }
    )


@pytest.mark.parametrize("name", GUIDED)
def test_every_guided_file_loads(name: str) -> None:
    run = load_run(CONFIGS / f"{name}_10M.yaml")
    assert (run.experiment_name, run.model.architecture) == (f"{name}_10M", name)
    assert resolve_model(run, 32000).dim == 768


def test_the_quick_run_loads() -> None:
    run = load_run(CONFIGS / "quick" / "transformer.yaml")
    assert (run.model.architecture, resolve_model(run, 258).dim) == ("transformer++", 128)


def test_no_file_of_the_folder_is_left_out() -> None:
    described = {f"{name}_10M.yaml" for name in GUIDED} | {"master_training_config.yaml"}
    assert {path.name for path in CONFIGS.glob("*.yaml")} == described
    assert [path.name for path in (CONFIGS / "templates").iterdir()] == ["base_experiment.yaml"]


def test_the_guided_files_share_all_but_name_model_and_tokenizer() -> None:
    shared = parse_yaml(BASE, "base")
    for name in GUIDED:
        data = read_yaml(CONFIGS / f"{name}_10M.yaml")
        for section in ("data", "training", "logging"):
            assert data[section] == shared[section], (name, section)
        assert data["tokenizer"]["tokenizer_type"] == ("wordpiece" if name == "bert" else "sentencepiece")
        assert load_run(CONFIGS / f"{name}_10M.yaml").tokens_per_step == 65_536


def test_master_and_template_say_what_the_guide_says() -> None:
    assert read_yaml(CONFIGS / "master_training_config.yaml") == parse_yaml(MASTER, "master")
    assert read_yaml(CONFIGS / "templates" / "base_experiment.yaml") == parse_yaml(BASE, "base")
    assert read_yaml(CONFIGS / "gpt2_10M.yaml")["model"] == parse_yaml(GPT2_MODEL, "gpt2")["model"]
    assert read_yaml(CONFIGS / "mamba_10M.yaml")["model"] == parse_yaml(MAMBA_MODEL, "mamba")["model"]


def test_the_guides_gpt2_loads_as_it_stands(tmp_path: Path, tiny_corpus: Path) -> None:
    run = guided_run(GPT2_MODEL, tmp_path, tiny_corpus)
    spec = resolve_model(run, 32000)
    assert (spec.dim, spec.depth, spec.heads, spec.max_length) == (768, 12, 12, 512)
    assert spec.model_dump()["hidden"] == 3072
    assert (spec.dropout, spec.model_dump()["attention_dropout"]) == (0.1, 0.1)
    assert (run.effective_batch_size, run.tokens_per_step) == (128, 65_536)
    assert (run.training.epochs, run.training.train_steps) == (10, None)
    assert run.logging.tracker_names() == ("wandb",)


def test_the_guides_mamba_loads_as_it_stands(tmp_path: Path, tiny_corpus: Path) -> None:
    run = guided_run(MAMBA_MODEL, tmp_path, tiny_corpus)
    fields = run.model.fields()
    assert fields == {"dim": 768, "depth": 24, "d_state": 16, "d_conv": 4, "expand": 2, "dropout": 0.1}
    assert resolve_model(run, 32000).model_dump(include=set(fields)) == fields


def test_the_guides_tags_are_understood(tmp_path: Path, tiny_corpus: Path) -> None:
    base = BASE.partition("logging:")[0].replace("data/processed/10M_tokens", str(tiny_corpus))
    path = tmp_path / "tagged.yaml"
    path.write_text(base + TRACKED + GPT2_MODEL, encoding="utf-8")
    assert load_run(path).logging.tags == ("10M_tokens", "fair_comparison")


def test_master_is_not_a_run_and_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"master_training_config\.yaml: experiment_name"):
        load_run(CONFIGS / "master_training_config.yaml")


def test_training_an_architecture_that_is_not_built_is_one_line(
    tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    options = ["-o", f"data.training_corpus={tiny_corpus}", "-o", "tokenizer.tokenizer_type=bytes"]
    options += ["-o", "tokenizer.vocab_size=null", "-o", "model.architecture=mambo", "--output-dir", str(output)]
    monkeypatch.setattr(sys, "argv", ["lockstep", "train", str(CONFIGS / "mamba_10M.yaml"), *options])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    printed = capsys.readouterr()
    assert exit_.value.code == 2
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "unknown architecture mambo" in printed.err
    assert not output.exists()


ORIGIN_TRAINING: dict[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "warmup_steps": 100,
    "warmup_ratio": 0.1,
    "log_base": 2,
    "min_checkpoint_interval": 100,
    "objective": "causal_lm",
    "mlm_probability": 0.15,
    "use_amp": False,
    "max_grad_norm": 1.0,
    "use_tf32": True,
    "use_gradient_checkpointing": True,
    "resume_from_checkpoint": True,
    "checkpoint_schedule": [100, 500, 1000],
}


@pytest.mark.parametrize("key", ORIGIN_TRAINING)
def test_training_keys_of_the_origin_are_understood(key: str) -> None:
    section = validate(TrainingSpec, {key: ORIGIN_TRAINING[key]}, "run.yaml")
    if key == "use_amp":
        assert section.precision == "fp32"
    elif key == "checkpoint_schedule":
        assert section.checkpoint_schedule == (100, 500, 1000)
    else:
        assert getattr(section, key) == ORIGIN_TRAINING[key]


def test_the_origins_mixed_precision_is_a_precision() -> None:
    assert validate(TrainingSpec, {"use_amp": True}, "run.yaml").precision == "fp16"


def test_a_linear_interval_goes_with_linear_spacing() -> None:
    linear = {"subsequent_epochs_spacing": "linear", "linear_interval": 50}
    assert validate(TrainingSpec, linear, "run.yaml").linear_interval == 50


def test_the_origins_recurrent_block_is_understood() -> None:
    block = {"embedding_size": 64, "hidden_size": 64, "num_layers": 3, "bidirectional": False, "rnn_type": "LSTM"}
    section = validate(ModelSection, {"architecture": "lstm", "rnn": block}, "run.yaml")
    assert section.fields() == {"dim": 64, "depth": 3}


def test_the_origins_bert_block_adds_no_parameters() -> None:
    """Segments and pooler belong to next-sentence prediction: the first is one constant here, the second refused."""
    block = {"type_vocab_size": 2}
    assert validate(ModelSection, {"architecture": "bert", "bert": block}, "run.yaml").fields() == {}
    with pytest.raises(UserError, match="pooler_type"):
        validate(ModelSection, {"architecture": "bert", "bert": {"pooler_type": "first"}}, "run.yaml")


def test_seeds_of_the_origin_are_understood(tiny_corpus: Path) -> None:
    run = small_run(tiny_corpus, "gpt2").model_dump(mode="json") | {"random_seed": 42, "dataset_manipulation": []}
    seeded = validate(RunSpec, run, "run.yaml")
    assert (seeded.seed_for_init, seeded.seed_for_data) == (42, 42)


def test_scientific_notation_is_a_number(tmp_path: Path, tiny_corpus: Path) -> None:
    """As YAML 1.2 has it; in YAML 1.1, 1e-4 is a text."""
    path = tmp_path / "run.yaml"
    text = BASE.replace("learning_rate: 0.0001", "learning_rate: 1e-4")
    path.write_text(text + GPT2_MODEL, encoding="utf-8")
    assert load_run(path).training.learning_rate == 1e-4
    assert load_run(path, ["training.learning_rate=3e-4"]).training.learning_rate == 3e-4


def test_an_override_may_open_a_section_that_is_empty(tmp_path: Path, tiny_corpus: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"experiment_name: a\ndata: {{training_corpus: {tiny_corpus}}}\nmodel: {{architecture: gpt2}}\ntraining:\n"
    )
    assert load_run(path, ["training.train_steps=7"]).training.train_steps == 7


@pytest.mark.parametrize("architecture", architectures())
def test_a_resolved_configuration_resolves_to_itself(architecture: str, tmp_path: Path, tiny_corpus: Path) -> None:
    amp = {"use_amp": True, "cooled_at": [0.5], "schedule": "wsd", "warmup_steps": 0}
    first = make_context(small_run(tiny_corpus, architecture, amp), tmp_path, World())
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(first.resolved), encoding="utf-8")
    again = make_context(load_run(path), tmp_path, World())
    assert again.resolved == first.resolved
    assert (again.model_spec, again.plan) == (first.model_spec, first.plan)
    assert dump_yaml(again.resolved) == path.read_text(encoding="utf-8")
    assert first.resolved["training"]["precision"] == "fp16"


@pytest.mark.parametrize("name", GUIDED)
def test_a_guided_configuration_resolves_to_itself(name: str, tmp_path: Path, tiny_corpus: Path) -> None:
    small = ["tokenizer.tokenizer_type=bytes", "tokenizer.vocab_size=null", "data.max_sequence_length=32"]
    overrides = [*small, f"data.training_corpus={tiny_corpus}", "training.train_steps=5"]
    first = make_context(load_run(CONFIGS / f"{name}_10M.yaml", overrides), tmp_path, World())
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(first.resolved), encoding="utf-8")
    again = make_context(load_run(path), tmp_path, World())
    assert again.resolved == first.resolved
    assert again.model_spec == first.model_spec
