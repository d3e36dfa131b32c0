"""What a batch asks of the model: the next token everywhere, or the hidden tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.run import RunSpec
from lockstep.data.masking import IGNORED, mask_tokens
from lockstep.data.stream import Windows, share
from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A whole step, over all ranks: inputs and targets [sequences, length]."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    supervised: int

    def part(self, micro: int, micros: int, rank: int, world_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """One rank's share of one micro-batch."""
        where = (micro, micros, rank, world_size)
        inputs, targets = share(self.inputs, *where), share(self.targets, *where)
        return (
            torch.from_numpy(np.ascontiguousarray(inputs)).to(device, non_blocking=True),
            torch.from_numpy(np.ascontiguousarray(targets)).to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """Turns windows into inputs and targets."""

    masked: bool
    probability: float
    tokenizer: Tokenizer
    seed: int

    def batch(self, windows: Windows, asked: NDArray[np.bool_], step: int) -> StepBatch:
        """Inputs and targets of a step; masks depend on seed and step alone, never on rank or world size.

        asked [sequences, length]: whether the next token is to be predicted; a task asks for some of them only.
        """
        if not self.masked:
            return StepBatch(windows[:, :-1], np.where(asked, windows[:, 1:], IGNORED), int(asked.sum()))
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
    return Objective(masked, run.training.mlm_probability, tokenizer, run.seed_for_data)
