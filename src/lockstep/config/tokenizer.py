"""How text becomes tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from lockstep.config.spec import PathText, Spec

TokenizerType = Literal[
    "bytes", "gpt2", "sentencepiece", "unigram", "bpe", "wordpiece", "character", "word", "file", "symbols"
]

BYTES_VOCABULARY = 258
"""256 byte values, the document separator and the mask."""


class TokenizerSpec(Spec):
    """A tokenizer by kind; `sentencepiece` is the unigram model."""

    tokenizer_type: TokenizerType = "bytes"
    vocab_size: PositiveInt | None = None
    """Tokens to train for, or of `symbols`; fixed by the tokenizer itself for `bytes`, `gpt2` and `file`."""
    path: PathText | None = None
    """For `gpt2` and `file`: a tokenizer.json, or a folder with it or with vocab.json and merges.txt."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TokenizerSpec:
        if self.tokenizer_type == "bytes" and self.vocab_size not in (None, BYTES_VOCABULARY):
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}, but the byte tokenizer has {BYTES_VOCABULARY} tokens"
            )
        if self.tokenizer_type == "symbols" and (self.vocab_size or 0) < 2:
            raise ValueError("tokenizer.vocab_size: tokenizer_type symbols needs their number, 2 or more")
        if self.tokenizer_type == "file" and self.path is None:
            raise ValueError("tokenizer.path: tokenizer_type file needs the path of a tokenizer.json")
        if self.path is not None and self.tokenizer_type not in ("gpt2", "file"):
            raise ValueError(f"tokenizer.path: a {self.tokenizer_type} tokenizer is not read from a file")
        return self
