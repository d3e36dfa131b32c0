"""Which text is read, and how it is cut into batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from lockstep.config.spec import PathText, Spec


class DataSpec(Spec):
    """A corpus and the shape of a batch."""

    training_corpus: PathText | None = None
    """A corpus name, a text file or folder, or a prepared folder. Never written to."""
    source_corpus: PathText | None = None
    """Used where `training_corpus` does not exist."""
    batch_size: PositiveInt = 32
    """Sequences per micro-batch, over all ranks together."""
    max_sequence_length: PositiveInt = 512
    """Tokens per sequence."""
    document_boundary: Literal["continue"] = "continue"
    """Documents are packed one after another with a separator; context and state run on across it."""
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training tokens that are replaced by random ones; held-out text stays as it is."""

    @model_validator(mode="after")
    def _has_a_corpus(self) -> DataSpec:
        if self.training_corpus is None and self.source_corpus is None:
            raise ValueError("data.training_corpus: name a corpus, a text file or a prepared folder")
        return self
