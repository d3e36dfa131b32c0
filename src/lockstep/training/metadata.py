"""What a checkpoint says of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from lockstep.training.context import Context
from lockstep.training.ledger import Ledger
from lockstep.training.provenance import provenance


def checkpoint_metadata(context: Context, ledger: Ledger, parent: str | None, scheduled: bool) -> dict[str, Any]:
    """Everything metadata.json holds but the digests of the files beside it."""
    run, plan, model = context.run, context.plan, context.model_spec
    return {
        "experiment_name": run.experiment_name,
        "global_step": ledger.step,
        "planned_steps": plan.steps,
        "cooling": None if context.cooling is None else dataclasses.asdict(context.cooling),
        "epoch": plan.epoch(ledger.step),
        "token_metrics": {
            "total_tokens_processed": ledger.tokens,
            "supervised_tokens": ledger.supervised_tokens,
            "tokens_per_step": plan.tokens_per_step,
            "effective_batch_size": run.effective_batch_size,
            "sequence_length": run.data.max_sequence_length,
            "estimated_tokens_at_step": ledger.step * plan.tokens_per_step,
        },
        "training_config": {
            "learning_rate": run.training.learning_rate,
            "batch_size": run.data.batch_size,
            "gradient_accumulation_steps": run.training.gradient_accumulation_steps,
            "objective": "causal_lm" if model.causal else "masked_lm",
            "use_amp": run.training.precision != "fp32",
            "use_tf32": run.training.use_tf32,
            "use_gradient_checkpointing": run.training.use_gradient_checkpointing,
        },
        "model_config": {
            "architecture": run.model.architecture,
            "layers": model.depth,
            "hidden_size": model.dim,
            "attention_heads": model.heads if model.has_heads else None,
        },
        "model_cost": cost_at(context, run.data.max_sequence_length),
        "architecture_source": model.source,
        "stream_hash": ledger.stream_hash,
        "corpus_digest": context.prepared.corpus_digest,
        "tokenizer_fingerprint": context.prepared.tokenizer.fingerprint,
        "parent_digest": parent,
        "scheduled": scheduled,
        "world_size": context.world.size,
        "config_hash": config_hash(context.resolved),
        "wandb_run_id": context.wandb_id(),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(context.device),
    }


def cost_at(context: Context, length: int) -> dict[str, float]:
    """What the model costs, at the training length."""
    with torch.device("meta"):
        cost = context.model_spec.build().cost(length)
    return {
        "parameters": cost.parameters,
        "non_embedding_parameters": cost.non_embedding_parameters,
        "training_flops_per_token": cost.training_flops,
        "state_bytes": cost.state_bytes,
    }


def config_hash(resolved: Mapping[str, Any]) -> str:
    """The sha256 of a resolved configuration."""
    return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()
