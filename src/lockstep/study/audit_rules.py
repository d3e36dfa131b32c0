"""Which fields must be equal, which may differ, and what follows from what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.config.spec import nearest
from lockstep.errors import UserError
from lockstep.study.audited_run import TOTAL_TOKENS, AuditedRun

FREE = (
    "experiment_name",
    "logging",
    "model",
    "training.keep_last",
    "training.output_dir",
    "training.resume_from_checkpoint",
    "training.save_interval",
    "training.tokens_per_step",
)
"""What is a contestant's own, or changes no number."""

NOTED = ("training.backend", "training.compile", "training.device", "training.distribution")
"""How a run was computed: allowed to differ, and said."""

NOTED_FACTS = ("device", "git_commit_hash", "kernel_backend", "versions", "world_size")
"""The same, in a checkpoint's metadata."""

TRACK_FIELDS = ("tokenizer", "training.mlm_probability", "training.objective")
"""Compared within a track only."""

ADDRESSES = {
    "data.source_corpus": "corpus_digest",
    "data.training_corpus": "corpus_digest",
    "tokenizer.path": "tokenizer_fingerprint",
}
"""Where something was read from, and the fact that proves what was read."""

TOKENIZER_FACT, STREAM_FACT, PLAN_FACT = "tokenizer_fingerprint", "stream_hash", "planned_steps"
SUPERVISED = "token_metrics.supervised_tokens"
STEP_FACTS = (TOTAL_TOKENS, STREAM_FACT)
"""Facts that grow with the step."""

_CORPUS = ("data.training_corpus", "data.source_corpus")
_BATCH = ("data.batch_size", "training.gradient_accumulation_steps")
_SHAPE = (*_BATCH, "data.max_sequence_length")
_LENGTH_OF_RUN = ("training.train_steps", "training.epochs", "tokenizer", *_CORPUS, *_SHAPE)

CAUSES = {
    "corpus_digest": _CORPUS,
    # A tokenizer may be trained on the corpus.
    TOKENIZER_FACT: ("tokenizer", *_CORPUS),
    "token_metrics.effective_batch_size": _BATCH,
    "token_metrics.sequence_length": ("data.max_sequence_length",),
    "token_metrics.tokens_per_step": _SHAPE,
    TOTAL_TOKENS: _SHAPE,
    STREAM_FACT: ("random_seed", "data_seed", *_CORPUS, "tokenizer", *_SHAPE, "data.document_boundary", "data.noise"),
    # The learning rate at a step depends on how many there will be.
    PLAN_FACT: _LENGTH_OF_RUN,
}
"""Each fact of the metadata that must be equal, and the settings that decide it."""

NEVER_EXCUSED = {
    "token_metrics.tokens_per_step": _SHAPE,
    TOTAL_TOKENS: _SHAPE,
    STREAM_FACT: ("random_seed", "data_seed"),
    PLAN_FACT: _LENGTH_OF_RUN,
}
"""Settings that may be declared to vary without excusing the fact: equal tokens, in one order, are the point."""


def covers(names: Iterable[str], key: str) -> bool:
    """Whether one of `names` is the key or a section that holds it."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_varies(varies: Sequence[str], runs: Sequence[AuditedRun]) -> None:
    """Refuse a name that stands for nothing: it would declare less than its author thinks."""
    keys = sorted({key for run in runs for key in run.config})
    sections = {key.rpartition(".")[0] for key in keys} - {""}
    for name in varies:
        if not any(covers([name], key) for key in keys):
            raise UserError(f"varies: no run has a setting {name}{nearest(name, {*keys, *sections})}")


def excuses(fact: str, varies: Sequence[str], runs: Sequence[AuditedRun]) -> list[str]:
    """The settings, declared to vary, whose values decide whether two runs must agree on `fact`."""
    keys = {key: None for run in runs for key in run.config}
    return [
        key
        for key in keys
        if covers(CAUSES[fact], key) and covers(varies, key) and not covers(NEVER_EXCUSED.get(fact, ()), key)
    ]
