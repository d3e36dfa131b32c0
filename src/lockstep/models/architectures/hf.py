"""Any causal language model of the transformers library, by a configuration or by a local folder with weights.

    model: {architecture: hf, hf: {config: path/to/config.json}}
    model: {architecture: hf, hf: {config: {model_type: qwen3}}, dim: 256, depth: 4, heads: 4, hidden: 768}
    model: {architecture: hf, hf: {folder: path/to/model}}

The library is imported when such a model is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, PrivateAttr, model_validator

from lockstep.config.spec import PathText, Spec
from lockstep.errors import UserError
from lockstep.models.hugging_face import HuggingFaceModel, layout_of
from lockstep.models.hugging_face_config import (
    Configuration,
    grows_with,
    library_config,
    read_configuration,
    resized,
    said,
    shapes,
    word,
)
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec

NOT_KNOWN_YET = 1
"""The vocabulary of a run whose tokenizer has not been read."""


def _read(config: Any) -> Any:
    return read_configuration(Path(config)) if isinstance(config, str) else config


class HuggingFaceSource(Spec):
    """Where a model comes from; what is read becomes part of the specification, so that a run needs no other file."""

    config: Annotated[Configuration | None, BeforeValidator(_read)] = None
    """A config.json, a folder with one, or its contents; weights are drawn at random."""
    folder: PathText | None = None
    """A local folder with a config.json and .safetensors weights, which are loaded."""

    @model_validator(mode="after")
    def _is_read(self) -> HuggingFaceSource:
        if self.folder is not None:
            folder = Path(self.folder).expanduser().absolute()
            object.__setattr__(self, "folder", str(folder))
            if self.config is None:
                object.__setattr__(self, "config", read_configuration(folder))
        if self.config is None:
            raise ValueError("give config, for a model with random weights, or folder, for one with its weights")
        return self


def check(configuration: Configuration) -> None:
    """What the library has against a configuration is told before anything is spent."""
    config = library_config(configuration)
    heads, groups = word(config, "num_attention_heads"), word(config, "num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise ValueError(f"heads {heads} is not divisible by the configuration's num_key_value_heads {groups}")
    shapes(configuration)


def usual_hidden(configuration: Configuration, dim: int) -> int | None:
    """Four times the width, where that is what a family means by none."""
    return 4 * dim if shapes(configuration, hidden=4 * dim) == shapes(configuration) else None


LLAMA: Configuration = {"model_type": "llama"}
WINDOWED: Configuration = {
    "model_type": "mistral",
    "intermediate_size": 24,
    "num_key_value_heads": 1,
    "sliding_window": 5,
    "tie_word_embeddings": False,
}
"""At the laws' size."""


@architecture("hf")
class HuggingFaceSpec(ModelSpec):
    """A model of the transformers library; without a source, a Llama of the common fields' sizes.

    The common fields resize a configuration where its family has a word for them, and then say what the model has. With
    weights they must agree with these.
    """

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"hf": {"config": {"model_type": "gpt2"}}},
        {"hf": {"config": WINDOWED}},
    )

    hf: HuggingFaceSource | None = None

    _configuration: Configuration = PrivateAttr(default_factory=dict)
    _words: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="after")
    def _says_what_it_is(self) -> HuggingFaceSpec:
        asked = {field: getattr(self, field) for field in self.model_fields_set - {"hf"}}
        if self.hf is None:
            asked = self.model_dump(exclude={"hf"}) | {"hidden": self.hidden or -(-self.dim * 8 // 3 // 32) * 32}
        if self.folder is not None:
            asked = self._agreeing_with_weights(asked)
        length = asked.pop("max_length", None)
        found = resized(self._source, asked)
        bounded = bool(grows_with(found, "max_length"))
        if bounded and length is not None and self.folder is None:
            found = resized(found, {"max_length": length})
        check(found)
        settled = said(library_config(found))
        if not bounded:
            settled.pop("max_length", None)
        if settled.get("hidden", 0) is None:
            settled["hidden"] = usual_hidden(found, settled["dim"])
        for field, value in ({"dropout": 0.0} | settled).items():
            object.__setattr__(self, field, value)
        # Written out, so that a specification that was stored and read again is the same.
        self._configuration, self._words = resized(self._source, settled), frozenset(settled)
        return self

    def _agreeing_with_weights(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What may be asked of weights: another dropout. Whatever else disagrees with them is refused."""
        known = said(library_config(self._source))
        for field in sorted(asked.keys() & known.keys() - {"dropout", "max_length"}):
            if asked[field] == known[field] or (field == "vocab_size" and asked[field] == NOT_KNOWN_YET):
                continue
            remedy = "remove the key"
            if field == "vocab_size":
                remedy = f"use their tokenizer, or add model.vocab_size: {known[field]} if the rest is padding"
            raise ValueError(
                f"{field} is {asked[field]}, but the weights in {self.folder} have {known[field]}; {remedy}"
            )
        return {field: value for field, value in asked.items() if field == "dropout"}

    @property
    def folder(self) -> Path | None:
        """Where weights come from."""
        return None if self.hf is None or self.hf.folder is None else Path(self.hf.folder)

    @property
    def _source(self) -> Configuration:
        return LLAMA if self.hf is None or self.hf.config is None else self.hf.config

    @property
    def configuration(self) -> Configuration:
        """The library's configuration of this model, at its sizes."""
        return self._configuration

    @property
    def learned_positions(self) -> bool:  # type: ignore[override] # here it is a matter of the configuration
        """Whether positions run out: a table of them, learned or not, is as long as the configuration says."""
        return "max_length" in self._words

    @property
    def has_heads(self) -> bool:  # type: ignore[override] # here it is a matter of the configuration
        return "heads" in self._words

    @property
    def mlp_width(self) -> int | None:
        """In the proportion that the configuration has, whatever width it is resized to."""
        source = said(library_config(self._source))
        if self.hf is None or source.get("hidden") is None or not source.get("dim"):
            return self.hidden
        return int(source["hidden"] * self.dim / source["dim"])

    @classmethod
    def brings_weights(cls, fields: Mapping[str, Any]) -> bool:
        source = fields.get("hf")
        return isinstance(source, Mapping) and source.get("folder") is not None

    @property
    def reach(self) -> int | None:
        layout = layout_of(self, torch.float32)
        return None if isinstance(layout, str) else layout.reach

    def build(self) -> HuggingFaceModel:
        return HuggingFaceModel(self, self.folder)

    def unfilled(self) -> HuggingFaceModel:
        return HuggingFaceModel(self)

    def mixer(self, layer: int) -> Mixer:
        raise UserError("hf is a whole model: its layers cannot be parts of another")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.model_dump_json())
