"""What a run rests on: its specification, corpus, plan and place in the world, all fixed before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.config.run import RunSpec
from lockstep.data.corpora import names as corpus_names
from lockstep.data.prepare import Prepared, prepare
from lockstep.data.prepared import TOKENIZER
from lockstep.data.stream import Noise, TokenStream, Windows
from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.kernels.backends import missing
from lockstep.models.registry import absolute as absolute_name
from lockstep.models.registry import find, specify
from lockstep.models.spec import ModelSpec
from lockstep.training.checkpoint import Checkpoint
from lockstep.training.distribution import World, find_device
from lockstep.training.learning_rate import Cooling
from lockstep.training.objective import Objective, StepBatch, make_objective
from lockstep.training.plan import Plan, make_plan

MOST_LAYERS = 2**14
MOST_PARAMETERS = 2**40


@dataclass(frozen=True, slots=True)
class Context:
    """Fixed parts of a run."""

    run: RunSpec
    model_spec: ModelSpec
    prepared: Prepared
    stream: TokenStream
    objective: Objective
    plan: Plan
    world: World
    device: torch.device
    folder: Path
    cooling: Cooling | None = None
    """Set in a decay branch, whose folder lies inside the trunk's."""

    def batch(self, windows: Windows, step: int) -> StepBatch:
        """What a step, whose windows are the stream's, asks of the model."""
        kinds = self.prepared.asked("train", self.stream.target_places(step))
        return self.objective.batch(windows, kinds, step)

    @property
    def name(self) -> str:
        """What this run, or this branch of it, is called."""
        name = self.run.experiment_name
        return name if self.cooling is None else f"{name} cooled at {self.cooling.end}"

    @property
    def resolved(self) -> dict[str, Any]:
        """The run as it is stored: every default filled in, the model in its architecture's own fields."""
        resolved = self.run.model_dump(mode="json")
        fields = self.model_spec.model_dump(mode="json")
        resolved["model"] = {"architecture": absolute_name(self.run.model.architecture), **fields}
        # A run folder must be of use from any working directory.
        for key in ("training_corpus", "source_corpus"):
            resolved["data"][key] = absolute(resolved["data"][key])
        # A prepared folder brings a tokenizer that the run need not name.
        kind = self.prepared.tokenizer.kind
        resolved["tokenizer"]["tokenizer_type"] = kind
        if kind == "file" and self.run.tokenizer.path is None:
            resolved["tokenizer"]["path"] = str(self.prepared.folder / TOKENIZER)
        return resolved

    def wandb_id(self) -> str | None:
        """The id under which W&B knows this run, where it does."""
        path = self.folder / "wandb-id.txt"
        return path.read_text().strip() if path.exists() else None


def make_context(run: RunSpec, folder: Path, world: World) -> Context:
    """Read the corpus and settle every number; whatever disagrees is said before anything is spent."""
    device = find_device(run.training.device, world)
    lacking = missing(run.training.backend, device)
    if lacking is not None:
        raise UserError(f"training.backend is {run.training.backend}, but {lacking}")
    # Once for its errors alone, before the corpus is read: the vocabulary is not known yet.
    resolve_model(run, vocab_size=1)
    prepared = _prepare_once(run, world)
    model_spec = resolve_model(run, prepared.tokenizer.vocab_size)
    noise = Noise(run.data.noise, prepared.tokenizer.vocab_size) if run.data.noise else None
    length, sequences = run.data.max_sequence_length, run.effective_batch_size
    stream = TokenStream(prepared.tokens("train"), length, sequences, run.seed_for_data, noise)
    plan = make_plan(run, stream.windows, world.size)
    objective = make_objective(run, model_spec.causal, prepared.tokenizer)
    check_sample(run, model_spec, prepared.tokenizer)
    check_held_out(run, objective, prepared)
    return Context(run, model_spec, prepared, stream, objective, plan, world, device, folder)


def resolve_model(run: RunSpec, vocab_size: int) -> ModelSpec:
    """The model's specification with what the data decides: vocabulary and length."""
    defaults = {"vocab_size": vocab_size, "max_length": run.data.max_sequence_length}
    spec = specify(run.model.architecture, {**defaults, **run.model.fields()})
    check_size(spec)
    return check_against_data(spec, vocab_size, run.data.max_sequence_length)


def check_size(spec: ModelSpec) -> None:
    """A model that nobody could hold is refused before anybody tries."""
    if spec.depth > MOST_LAYERS:
        raise UserError(f"model.depth is {spec.depth:,}; {MOST_LAYERS:,} layers are the most")
    # Each layer has at least one matrix as wide and as high as the model.
    widths = spec.vocab_size + spec.depth * (spec.dim + (getattr(spec, "hidden", None) or 0))
    if spec.learned_positions:
        widths += spec.max_length
    if spec.dim * widths > MOST_PARAMETERS:
        raise UserError(
            f"model: dim {spec.dim:,} and depth {spec.depth:,} make more than {spec.dim * widths:,} parameters;"
            f" {MOST_PARAMETERS:,} are the most"
        )


def check_sample(run: RunSpec, spec: ModelSpec, tokenizer: Tokenizer) -> None:
    """A sample that learned positions cannot hold would stop the run at its first evaluation."""
    prompt, new_tokens = run.evaluation.sample_prompt, run.evaluation.sample_tokens
    if prompt is None or not (spec.causal and spec.learned_positions):
        return
    tokens = max(1, len(tokenizer.encode(prompt.encode())))
    if tokens + new_tokens > spec.max_length:
        raise UserError(
            f"evaluation.sample_prompt: {tokens} prompt tokens and sample_tokens {new_tokens} exceed"
            f" the {spec.max_length} positions of the model (model.max_length)"
        )


def check_held_out(run: RunSpec, objective: Objective, prepared: Prepared) -> None:
    """A validation split that cannot be scored would stop the run at its first evaluation."""
    tokens = prepared.tokens("valid")
    if run.evaluation.sequences is not None:
        tokens = tokens[: run.evaluation.sequences * run.data.max_sequence_length + 1]
    if len(tokens) < 2:
        raise UserError(f"the valid split has {len(tokens)} tokens; scoring needs at least two")
    if objective.masked and np.isin(tokens[1:], list(prepared.tokenizer.special_ids)).all():
        raise UserError(
            "the valid split has no token that could be masked: its characters are unknown to the tokenizer"
        )


def check_against_data(spec: ModelSpec, vocab_size: int, length: int) -> ModelSpec:
    """A model that the data would overrun is refused with both numbers."""
    if spec.vocab_size < vocab_size:
        raise UserError(f"model.vocab_size is {spec.vocab_size}, but the tokenizer has {vocab_size} tokens")
    if spec.learned_positions and spec.max_length < length:
        raise UserError(f"model.max_length is {spec.max_length}, but data.max_sequence_length is {length}")
    return spec


def check_same_code(checkpoint: Checkpoint, architecture: str) -> None:
    """An outsider's architecture that was edited since is another model: a run of both would be neither."""
    trained, now = checkpoint.metadata["architecture_source"], find(architecture).source
    if trained != now:
        raise UserError(
            f"{checkpoint.folder}: {architecture} was edited since (its sha256 was {str(trained)[:12]}, now"
            f" {str(now)[:12]}); bring back the old file, or start in another folder"
        )


def check_same_data(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """A corpus or tokenizer that is no longer the one a checkpoint was trained on is refused."""
    found = {
        "corpus_digest": prepared.corpus_digest,
        "tokenizer_fingerprint": prepared.tokenizer.fingerprint,
    }
    for key, value in found.items():
        trained = checkpoint.metadata[key]
        if trained != value:
            raise UserError(
                f"{checkpoint.folder}: trained with {key} {trained[:12]}, but {prepared.manifest.corpus} now has"
                f" {value[:12]}; bring back the old text, or start in another folder"
            )


def absolute(reference: str | None) -> str | None:
    """A corpus reference that does not depend on the working directory: paths in full, names as they are."""
    if reference is None or reference in corpus_names() or not Path(reference).expanduser().exists():
        return reference
    return str(Path(reference).expanduser().resolve())


def _prepare_once(run: RunSpec, world: World) -> Prepared:
    """The main process tokenizes; the others find it done."""
    if not world.is_main:
        dist.barrier()
        return prepare(run.data, run.tokenizer)
    try:
        return prepare(run.data, run.tokenizer)
    finally:
        if world.size > 1:
            dist.barrier()
