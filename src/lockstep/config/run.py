"""One run: everything that decides its outcome, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from lockstep.config.data import DataSpec
from lockstep.config.evaluation import EvaluationSpec
from lockstep.config.logging import LoggingSpec
from lockstep.config.model import ModelSection
from lockstep.config.spec import Name, Spec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.config.training import TrainingSpec

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class RunSpec(Spec):
    """A run as its YAML states it."""

    experiment_name: Annotated[Name, Field(max_length=200, pattern=r"^[^/\\]+$")]
    data: DataSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    model: ModelSection
    training: TrainingSpec = TrainingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    logging: LoggingSpec = LoggingSpec()
    random_seed: Seed = 0
    """Seeds whatever has no seed of its own."""
    init_seed: Seed | None = None
    """Initial weights and dropout."""
    data_seed: Seed | None = None
    """Order of the sequences, and masks."""
    dataset_manipulation: tuple[Any, ...] = ()
    """Understood only when empty: a corpus is trained on as it stands."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> RunSpec:
        if self.experiment_name in (".", ".."):
            raise ValueError(f"experiment_name: {self.experiment_name} is not a name for a folder")
        if self.dataset_manipulation:
            raise ValueError("dataset_manipulation is not supported; prepare the corpus beforehand and remove the key")
        stated = self.training.tokens_per_step
        if stated is not None and stated != self.tokens_per_step:
            raise ValueError(
                f"training.tokens_per_step is {stated}, but batch_size {self.data.batch_size}"
                f" × gradient_accumulation_steps {self.training.gradient_accumulation_steps}"
                f" × max_sequence_length {self.data.max_sequence_length} = {self.tokens_per_step}"
            )
        return self

    @property
    def effective_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.data.batch_size * self.training.gradient_accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.effective_batch_size * self.data.max_sequence_length

    @property
    def seed_for_init(self) -> int:
        return self.random_seed if self.init_seed is None else self.init_seed

    @property
    def seed_for_data(self) -> int:
        return self.random_seed if self.data_seed is None else self.data_seed

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.training.output_dir or Path("output", self.experiment_name)).expanduser()
