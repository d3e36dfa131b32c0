"""Which architecture, in our field names or in those of seed-style configuration blocks.

    model: {architecture: transformer++, dim: 256, depth: 4, heads: 4}
    model: {architecture: gpt2, transformer: {layers: 12, hidden_size: 768, attention_heads: 12, …}}

The fields of an architecture are declared and checked where it is defined; this file knows only the blocks.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, NonNegativeFloat, PositiveInt, model_validator

from lockstep.config.spec import Name, Spec


class Block(Spec):
    """A seed-style block: its keys are translated into an architecture's own field names."""

    translation: ClassVar[dict[str, str]] = {}
    """Keys that our architectures call by another name."""

    def fields(self) -> dict[str, Any]:
        """What the block says, under our names."""
        given = self.model_dump(exclude_none=True)
        return {self.translation.get(key, key): value for key, value in given.items()}


class TransformerBlock(Block):
    """`model.transformer`."""

    translation: ClassVar[dict[str, str]] = {
        "layers": "depth",
        "hidden_size": "dim",
        "intermediate_hidden_size": "hidden",
        "attention_heads": "heads",
        "activation_function": "activation",
    }
    layers: PositiveInt | None = None
    embedding_size: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    intermediate_hidden_size: PositiveInt | None = None
    attention_heads: PositiveInt | None = None
    activation_function: str | None = None
    dropout: NonNegativeFloat | None = None
    attention_dropout: NonNegativeFloat | None = None

    def fields(self) -> dict[str, Any]:
        return one_width(super().fields())


class RecurrentBlock(Block):
    """`model.rnn`, for lstm, gru and rnn."""

    translation: ClassVar[dict[str, str]] = {"num_layers": "depth", "hidden_size": "dim"}
    embedding_size: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    num_layers: PositiveInt | None = None
    bidirectional: bool = False
    rnn_type: str | None = None
    dropout: NonNegativeFloat | None = None

    @model_validator(mode="after")
    def _is_causal(self) -> RecurrentBlock:
        if self.bidirectional:
            raise ValueError("bidirectional: true would let a causal model read its own answer; remove it")
        return self

    def fields(self) -> dict[str, Any]:
        fields = super().fields()
        del fields["bidirectional"]
        fields.pop("rnn_type", None)
        return one_width(fields)


class MambaBlock(Block):
    """`model.mamba`."""

    translation: ClassVar[dict[str, str]] = {"d_model": "dim", "n_layers": "depth"}
    d_model: PositiveInt | None = None
    n_layers: PositiveInt | None = None
    d_state: PositiveInt | None = None
    d_conv: PositiveInt | None = None
    expand: PositiveInt | None = None
    dropout: NonNegativeFloat | None = None


class BertBlock(Block):
    """`model.bert`, beside `model.transformer`.

    A packed stream has one segment, so that segment vectors would only shift the position table: there are none.
    """

    type_vocab_size: PositiveInt | None = None
    pooler_type: str | None = None

    @model_validator(mode="after")
    def _has_no_pooler(self) -> BertBlock:
        if self.pooler_type is not None:
            raise ValueError(f"pooler_type {self.pooler_type}: a masked language model has no pooler; remove the key")
        return self

    def fields(self) -> dict[str, Any]:
        return {}


class ModelSection(Spec):
    """`model`: an architecture, its fields, and at most the blocks that belong to it."""

    model_config = ConfigDict(extra="allow")

    architecture: Name
    transformer: TransformerBlock | None = None
    mamba: MambaBlock | None = None
    rnn: RecurrentBlock | None = None
    bert: BertBlock | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ModelSection:
        kind = self.rnn.rnn_type if self.rnn else None
        if kind is not None and kind.lower() != self.architecture:
            raise ValueError(f"model.rnn.rnn_type is {kind}, but model.architecture is {self.architecture}")
        self.fields()
        return self

    def fields(self) -> dict[str, Any]:
        """Every field the user gave, under the architecture's own names."""
        fields = dict(self.model_extra or {})
        for block in (self.transformer, self.mamba, self.rnn, self.bert):
            for key, value in (block.fields() if block else {}).items():
                if fields.setdefault(key, value) != value:
                    raise ValueError(f"model.{key} is given twice: {fields[key]} and {value}")
        return fields


def one_width(fields: dict[str, Any]) -> dict[str, Any]:
    """Embeddings are as wide as the model in every architecture here."""
    embedding = fields.pop("embedding_size", None)
    if embedding is not None and fields.setdefault("dim", embedding) != embedding:
        raise ValueError(f"embedding_size is {embedding}, but hidden_size is {fields['dim']}; they must be equal")
    return fields
