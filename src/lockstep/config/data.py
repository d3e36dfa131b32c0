"""Which text is read, and how it is cut into batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from lockstep.config.spec import PathText, Spec
from lockstep.config.tasks import AnyTask


def named(tasks: Any) -> Any:
    """`recall` is short for `{name: recall}`."""
    return [{"name": one} if isinstance(one, str) else one for one in tasks] if isinstance(tasks, list) else tasks


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

    tasks: Annotated[tuple[AnyTask, ...], BeforeValidator(named)] = ()
    """Generated tasks to train on, alone or among the text of a corpus; one instance fills one sequence."""
    task_sequences: PositiveInt = 20_000
    """Training instances, of all tasks together."""
    task_weight: PositiveFloat = 1.0
    """How many times as much a token of an answer counts in the loss as one of text: answers are few."""

    @model_validator(mode="after")
    def _has_something_to_read(self) -> DataSpec:
        if not self.has_text and not self.tasks:
            raise ValueError("data.training_corpus: name a corpus, a text file or a prepared folder; or add data.tasks")
        return self

    @property
    def title(self) -> str:
        """What is held out, in words: text where there is any, else the tasks."""
        return self.training_corpus or self.source_corpus or " and ".join(one.name for one in self.tasks)

    @property
    def has_text(self) -> bool:
        return self.training_corpus is not None or self.source_corpus is not None
