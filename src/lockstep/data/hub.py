"""A dataset of the Hugging Face hub as a corpus, with the `hub` extra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.data.corpus import SPLITS, Corpus
from lockstep.data.user_text import CutText
from lockstep.errors import UserError

PREFIX = "hub:"
COLUMN = "text"
HUB_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}


def hub_corpus(reference: str) -> Corpus:
    """`hub:OWNER/NAME[:CONFIG]`: each row's text is a document."""
    name, _, config = reference.removeprefix(PREFIX).partition(":")
    if not name:
        raise UserError(f"{reference}: name a dataset, as in hub:OWNER/NAME or hub:OWNER/NAME:CONFIG")
    tables = _load(reference, name, config or None)
    own = {split: tables[hub] for split in SPLITS for hub in HUB_NAMES[split] if hub in tables}
    if "train" not in own:
        raise UserError(f"{reference}: has no train split (it has {', '.join(tables)}); choose another dataset")
    for table in own.values():
        if COLUMN not in table.column_names:
            columns = ", ".join(table.column_names)
            raise UserError(f"{reference}: has no column {COLUMN} (it has {columns}); choose another dataset")
    missing = tuple(split for split in SPLITS if split not in own)
    cut = CutText(reference, lambda: _texts(own["train"]), missing)

    def read(split: str) -> Iterator[bytes]:
        return _texts(own[split]) if split != "train" and split in own else cut.documents(split)

    return Corpus(name.rpartition("/")[2], f"{reference} of the Hugging Face hub", read)


def _load(reference: str, name: str, config: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(f"{reference}: needs the datasets library; pip install 'lockstep-lm[hub]'") from None
    try:
        return datasets.load_dataset(name, config)
    except Exception as error:  # the library raises many kinds: not found, offline, bad configuration
        reason = str(error).partition("\n")[0]
        raise UserError(f"{reference}: not loaded ({reason}); check the name and the network") from None


def _texts(table: Any) -> Iterator[bytes]:
    for row in table:
        yield str(row[COLUMN]).encode("utf-8", "surrogateescape")
