"""What a batch asks of the model: the next token everywhere, or the hidden tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.run import RunSpec
from lockstep.data.masking import IGNORED, mask_tokens
from lockstep.data.prepared import ANSWER, UNASKED
from lockstep.data.stream import Windows, share
from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError


class Part(NamedTuple):
    """Of a step: [sequences, length] each."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A whole step, over all ranks: inputs and targets [sequences, length]."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    supervised: int
    weights: NDArray[np.float32] | None = None
    """How much each target counts, zero where there is none; None: all of them alike."""

    @property
    def total(self) -> float:
        """What the summed loss of the step is divided by."""
        return self.supervised if self.weights is None else float(self.weights.sum(dtype=np.float64))

    def part(self, micro: int, micros: int, rank: int, world_size: int, device: torch.device) -> Part:
        """One rank's share of one micro-batch."""

        def mine(rows: NDArray[Any]) -> Tensor:
            rows = np.ascontiguousarray(share(rows, micro, micros, rank, world_size))
            return torch.from_numpy(rows).to(device, non_blocking=True)

        return Part(mine(self.inputs), mine(self.targets), None if self.weights is None else mine(self.weights))


@dataclass(frozen=True, slots=True)
class Objective:
    """Turns windows into inputs and targets."""

    masked: bool
    probability: float
    tokenizer: Tokenizer
    seed: int
    task_weight: float = 1.0

    def batch(self, windows: Windows, kinds: NDArray[np.uint8] | None, step: int) -> StepBatch:
        """Inputs and targets of a step; masks depend on seed and step alone, never on rank or world size.

        kinds [sequences, length]: what each next token is among tasks; None where all is text.
        """
        if not self.masked:
            return self.next_tokens(windows, kinds)
        mask_id = self.tokenizer.mask_id
        assert mask_id is not None
        inputs, targets = mask_tokens(
            windows[:, :-1],
            self.probability,
            mask_id,
            self.tokenizer.special_ids,
            self.tokenizer.vocab_size,
            self.seed,
            step,
        )
        supervised = int((targets != IGNORED).sum())
        if not supervised:
            raise UserError(f"step {step + 1} has no token that could be masked: all of its tokens are special")
        return StepBatch(inputs, targets, supervised)

    def next_tokens(self, windows: Windows, kinds: NDArray[np.uint8] | None) -> StepBatch:
        """The next token everywhere, or where it is asked for."""
        if kinds is None:
            return StepBatch(windows[:, :-1], windows[:, 1:], windows[:, 1:].size)
        asked = kinds != UNASKED
        targets = np.where(asked, windows[:, 1:], IGNORED)
        weights = None
        if self.task_weight != 1:
            weights = np.where(kinds == ANSWER, self.task_weight, asked).astype(np.float32)
        return StepBatch(windows[:, :-1], targets, int(asked.sum()), weights)


def make_objective(run: RunSpec, causal: bool, tokenizer: Tokenizer) -> Objective:
    """The run's objective, checked against the architecture and the tokenizer."""
    masked = not causal
    stated = run.training.objective
    if stated is not None and (stated == "masked_lm") != masked:
        kind = "causal" if causal else "bidirectional"
        raise UserError(f"training.objective is {stated}, but {run.model.architecture} is {kind}")
    if masked and run.data.tasks:
        raise UserError(f"data.tasks are asked of causal models, and {run.model.architecture} is bidirectional")
    if masked and tokenizer.mask_id is None:
        raise UserError(
            f"tokenizer.tokenizer_type {run.tokenizer.tokenizer_type} has no mask token, which"
            f" {run.model.architecture} needs; use wordpiece, unigram or bytes"
        )
    return Objective(masked, run.training.mlm_probability, tokenizer, run.seed_for_data, run.data.task_weight)
