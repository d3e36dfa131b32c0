"""Whether a run agrees with itself: counted tokens with the formula, checkpoints with config.yaml."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lockstep.study.audited_run import TOTAL_TOKENS, AuditedRun, Facts
from lockstep.study.differences import Finding
from lockstep.training.run_folder import MICRO_BATCHES

ESTIMATED_TOKENS = "token_metrics.estimated_tokens_at_step"
EFFECTIVE_BATCH = "token_metrics.effective_batch_size"

RESTATED = {
    "token_metrics.sequence_length": "data.max_sequence_length",
    "training_config.learning_rate": "training.learning_rate",
}
"""Settings that a checkpoint repeats."""


def inconsistencies(runs: Sequence[AuditedRun]) -> list[Finding]:
    """The first contradiction of each kind in each run."""
    findings: list[Finding] = []
    for run in runs:
        first: dict[str, Finding] = {}
        for step, facts in run.checkpoints.items():
            for finding in _contradictions(run, step, facts):
                first.setdefault(finding.field, finding)
        findings += first.values()
    return findings


def _contradictions(run: AuditedRun, step: int, facts: Facts) -> Iterator[Finding]:
    where = f"checkpoint-{step} of {run.name}"
    for key, setting in RESTATED.items():
        if facts.get(key) is not None and facts[key] != run.config.get(setting):
            said = f"{key}: {facts[key]} in {where}, but {setting} is {run.config.get(setting)} in its config.yaml"
            yield Finding(key, {run.name: facts[key]}, said)
    # Only the product counts: a run may go on with its steps cut into smaller micro-batches.
    sequences, product = facts.get(EFFECTIVE_BATCH), _sequences_per_step(run)
    if sequences is not None and product is not None and sequences != product:
        said = f"{EFFECTIVE_BATCH}: {sequences} in {where}, but {' × '.join(MICRO_BATCHES)} is {product}"
        yield Finding(EFFECTIVE_BATCH, {run.name: sequences}, f"{said} in its config.yaml")
    counted, estimated = facts.get(TOTAL_TOKENS), facts.get(ESTIMATED_TOKENS)
    if not isinstance(counted, int) or counted != estimated:
        said = f"{TOTAL_TOKENS}: {counted} counted in {where}, but {ESTIMATED_TOKENS} is {estimated}"
        yield Finding(TOTAL_TOKENS, {run.name: counted}, said)
    per_step = facts.get("token_metrics.tokens_per_step")
    if isinstance(per_step, int) and estimated != step * per_step:
        said = f"{ESTIMATED_TOKENS}: {estimated} in {where}, but step {step} × tokens_per_step {per_step}"
        yield Finding(ESTIMATED_TOKENS, {run.name: estimated}, f"{said} = {step * per_step}")


def _sequences_per_step(run: AuditedRun) -> int | None:
    factors = [factor for key in MICRO_BATCHES if isinstance(factor := run.config.get(key), int)]
    return math.prod(factors) if len(factors) == len(MICRO_BATCHES) else None


def restated_configurations(runs: Sequence[AuditedRun]) -> list[str]:
    """Notes on runs whose newest checkpoint was written under a configuration other than config.yaml."""
    return [
        f"config_hash: checkpoint-{run.newest} of {run.name} was written under settings other than its config.yaml;"
        " a run that went on with other logging or device settings does that, and so does an edited file"
        for run in runs
        if run.newest is not None and run.facts(None).get("config_hash") not in (None, run.config_hash)
    ]
