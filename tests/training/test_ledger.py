"""What a run has consumed is counted, exactly, and written where seed-style tools look for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.data.masking import IGNORED
from lockstep.data.stream import EMPTY_HASH, advance_hash
from lockstep.models.language_model import LanguageModel
from lockstep.training.context import Context
from lockstep.training.ledger import Ledger
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.faults import crash, interrupt
from tests.training.tiny_runs import ARCHITECTURES, last_checkpoint, losses, tiny_run, without_dropout

SEED_KEYS: dict[str, tuple[str, ...]] = {
    "token_metrics": (
        "total_tokens_processed",
        "tokens_per_step",
        "effective_batch_size",
        "sequence_length",
        "estimated_tokens_at_step",
    ),
    "training_config": ("learning_rate", "batch_size", "gradient_accumulation_steps"),
    "model_config": ("architecture", "layers", "hidden_size", "attention_heads"),
}


def test_the_formula() -> None:
    run = tiny_run(
        Path("corpus.txt"),
        data={"batch_size": 32, "max_sequence_length": 512},
        training={"gradient_accumulation_steps": 4, "tokens_per_step": 65_536},
    )
    assert run.tokens_per_step == 32 * 4 * 512 == 65_536
    assert run.effective_batch_size == 128
    ledger = Ledger()
    for _ in range(5):
        ledger.record(np.zeros((128, 513), dtype=np.int64), 65_536)
    assert (ledger.step, ledger.tokens, ledger.supervised_tokens) == (5, 327_680, 327_680)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_counted_alike(architecture: str, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(tiny_corpus, architecture, training={"gradient_accumulation_steps": 3})
    crash(run, tmp_path, "a step is taken", 6)
    interrupt(run, tmp_path, 3)
    train(run, tmp_path)
    metadata = last_checkpoint(tmp_path).metadata
    counted = metadata["token_metrics"]
    assert counted["tokens_per_step"] == 4 * 3 * 16
    assert counted["effective_batch_size"] == 12
    assert counted["sequence_length"] == 16
    assert counted["total_tokens_processed"] == counted["estimated_tokens_at_step"] == 12 * 192
    assert last_checkpoint(tmp_path).training_state()["total_tokens_processed"] == 12 * 192
    records = [one for one in read_log(tmp_path / "metrics.jsonl") if "tokens_processed" in one]
    assert [(one["step"], one["tokens_processed"]) for one in records] == [(n, 192 * n) for n in range(1, 13)]


@pytest.mark.parametrize("architecture", ["gpt2", "lstm"])
def test_metadata_has_every_key_that_seed_style_tools_read(
    architecture: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    train(tiny_run(tiny_corpus, architecture, training={"gradient_accumulation_steps": 2}), tmp_path)
    metadata = last_checkpoint(tmp_path).metadata
    assert metadata["experiment_name"] == "tiny"
    assert metadata["global_step"] == 12
    windows = (last_window(tiny_corpus, tmp_path)) // 16
    assert metadata["epoch"] == int(11 * 8 / windows)
    for section, keys in SEED_KEYS.items():
        assert metadata[section].keys() >= set(keys)
    assert metadata["training_config"]["learning_rate"] == 0.01
    assert metadata["training_config"]["batch_size"] == 4
    assert metadata["training_config"]["gradient_accumulation_steps"] == 2
    heads = 2 if architecture == "gpt2" else None
    expected = {"architecture": architecture, "layers": 1, "hidden_size": 16, "attention_heads": heads}
    assert metadata["model_config"] == expected
    for key in ("stream_hash", "corpus_digest", "tokenizer_fingerprint", "versions", "device", "config_hash"):
        assert metadata[key], key


def last_window(corpus: Path, folder: Path) -> int:
    """Tokens of the training split that can be inputs."""
    context = train(tiny_run(corpus), folder / "again")
    return len(context.prepared.tokens("train")) - 1


def test_the_stream_hash_is_that_of_the_tokens_read(tiny_corpus: Path, tmp_path: Path) -> None:
    """Recomputed from the corpus itself; the same for a causal and a masked model."""
    context = train(tiny_run(tiny_corpus), tmp_path / "gpt2")
    train(tiny_run(tiny_corpus, "bert"), tmp_path / "bert")
    tokens, expected = context.prepared.tokens("train"), EMPTY_HASH
    for step in range(12):
        rows = [tokens[start : start + 17] for start in context.stream.starts(step)]
        expected = advance_hash(expected, np.stack(rows).astype(np.int64))
    assert last_checkpoint(tmp_path / "gpt2").metadata["stream_hash"] == expected
    assert last_checkpoint(tmp_path / "bert").metadata["stream_hash"] == expected


def test_masked_models_count_what_is_supervised(tiny_corpus: Path, tmp_path: Path) -> None:
    context = train(tiny_run(tiny_corpus, "bert"), tmp_path)
    counted = last_checkpoint(tmp_path).metadata["token_metrics"]
    batches = [context.batch(context.stream.step(step), step) for step in range(12)]
    hidden = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    assert counted["supervised_tokens"] == hidden
    assert 0.05 * 768 < hidden < 0.3 * 768
    assert counted["total_tokens_processed"] == 768


def first_step_loss(context: Context, smoothing: float) -> float:
    """The first step's loss, computed from log-probabilities one by one."""
    torch.manual_seed(context.run.seed_for_init)
    model = LanguageModel(context.model_spec)
    batch = context.batch(context.stream.step(0), 0)
    with torch.no_grad():
        log_probabilities = model(torch.from_numpy(batch.inputs)).double().log_softmax(dim=-1)
    summed = 0.0
    for row, column in np.argwhere(batch.targets != IGNORED):
        at = log_probabilities[row, column]
        summed -= (1 - smoothing) * at[batch.targets[row, column]].item() + smoothing * at.mean().item()
    return summed / batch.supervised


@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_smoothing_changes_training_but_not_what_is_reported(
    architecture: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"architecture": architecture, "model": without_dropout(architecture)}
    smooth = train(tiny_run(tiny_corpus, **settings, training={"label_smoothing": 0.3}), tmp_path / "smooth")
    train(tiny_run(tiny_corpus, **settings), tmp_path / "plain")
    assert math.isclose(losses(tmp_path / "smooth")[0], first_step_loss(smooth, 0), rel_tol=1e-6)
    assert not math.isclose(first_step_loss(smooth, 0.3), first_step_loss(smooth, 0), rel_tol=1e-6)
    assert losses(tmp_path / "smooth")[0] == pytest.approx(losses(tmp_path / "plain")[0], rel=1e-6)
    assert losses(tmp_path / "smooth")[-1] > losses(tmp_path / "plain")[-1]


def test_bits_per_byte_follow_from_the_loss(tiny_corpus: Path, tmp_path: Path) -> None:
    context = train(tiny_run(tiny_corpus), tmp_path)
    records = [one for one in read_log(tmp_path / "metrics.jsonl") if "bits_per_byte" in one]
    assert len(records) == 12
    lengths = context.prepared.byte_lengths("train", np.arange(len(context.stream.tokens)))
    for record in records:
        starts = context.stream.starts(record["step"] - 1)
        scored = sum(int(lengths[start + 1 : start + 17].sum()) for start in starts)
        assert record["bits_per_byte"] == pytest.approx(record["loss"] * 64 / math.log(2) / scored, rel=1e-9)
