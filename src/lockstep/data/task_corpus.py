"""Tasks to train on, prepared as a corpus is: one instance after another, each as long as a sequence.

Alone, they fill all three splits. Among text, they follow it in the train split, and what is held out stays text, so
that scores on it mean what they do elsewhere; the tasks themselves are tested by `evaluation.tasks`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.config.data import DataSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpus import SPLITS
from lockstep.data.locations import appearing_whole, cache_folder
from lockstep.data.prepared import (
    ANSWER,
    FORMAT,
    MANIFEST,
    TEXT,
    TOKENIZER,
    UNASKED,
    VERSION,
    Manifest,
    Prepared,
    SplitFacts,
    asked_file,
    has_lengths_file,
    lengths_file,
    open_prepared,
    token_type,
    tokens_file,
)
from lockstep.data.tasks.registry import make_task
from lockstep.data.tasks.task import Task
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.data.tokenizers import make_tokenizer
from lockstep.durable import sha256
from lockstep.progress import showing

RULE = 2
"""Changed when instances, or their order, are defined anew."""
HELD_OUT_SEQUENCES = 512
BLOCK = 1024
"""Sequences written at once."""


def with_tasks(data: DataSpec, spec: TokenizerSpec, text: Prepared | None) -> Prepared:
    """The tasks of `data`, after `text` where there is any; made once, then only opened."""
    tokenizer = make_tokenizer(spec, None) if text is None else text.tokenizer
    tasks = [make_task(one, tokenizer) for one in data.tasks]
    digest = digest_of(data, text)
    key = hashlib.sha256(f"{VERSION} {digest} {tokenizer.fingerprint}".encode()).hexdigest()[:16]
    folder = cache_folder() / "prepared" / f"{name_of(data, text)}-{key}"
    if not folder.is_dir():
        with appearing_whole(folder) as aside:
            write(aside, data, tokenizer, tasks, text, digest)
    return open_prepared(folder)


def name_of(data: DataSpec, text: Prepared | None) -> str:
    before = [] if text is None else [text.manifest.corpus]
    return "-".join((*before, *(one.name for one in data.tasks)))


def digest_of(data: DataSpec, text: Prepared | None) -> str:
    """Of everything that decides the instances; how they are tested does not."""
    tasks = [one.model_dump(mode="json", exclude={"lengths", "instances"}) for one in data.tasks]
    about: dict[str, Any] = {"rule": RULE, "tasks": tasks, "length": data.max_sequence_length}
    about |= {"sequences": data.task_sequences, "text": None if text is None else text.corpus_digest}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write(
    folder: Path, data: DataSpec, tokenizer: Tokenizer, tasks: Sequence[Task], text: Prepared | None, digest: str
) -> None:
    splits = {}
    counts = {"train": data.task_sequences, "valid": HELD_OUT_SEQUENCES, "test": HELD_OUT_SEQUENCES}
    with_instances = SPLITS if text is None else ("train",)
    total = sum(counts[split] for split in with_instances)
    with showing(f"making {name_of(data, text)}", "steps", total) as progress:
        for split in SPLITS:
            if split in with_instances:
                blocks = instances(tasks, split, counts[split], data.max_sequence_length)
                splits[split] = write_split(folder, split, tokenizer, blocks, text, data, progress.add)
            elif text is not None:
                splits[split] = copy_split(folder, split, text)
    tokenizer.save(folder / TOKENIZER)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        corpus=name_of(data, text),
        corpus_digest=digest,
        tokenizer_type=tokenizer.kind,
        requested_vocab_size=None if text is None else text.manifest.requested_vocab_size,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        tokenizer_fingerprint=tokenizer.fingerprint,
        splits=splits,
        asked=with_instances,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")


Block = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Tokens [sequences, length], and what each of them is."""


def instances(tasks: Sequence[Task], split: str, count: int, length: int) -> Iterator[Block]:
    """The tasks in turn; their order in training is the stream's."""
    for first in range(0, count, BLOCK):
        numbers = range(first, min(first + BLOCK, count))
        made = [tasks[n % len(tasks)].instance(split, n // len(tasks), length) for n in numbers]
        kinds = np.stack([np.where(one.answers > 0, ANSWER, UNASKED) for one in made])
        yield np.stack([one.tokens for one in made]), kinds.astype(np.uint8)


def write_split(
    folder: Path,
    split: str,
    tokenizer: Tokenizer,
    blocks: Iterator[Block],
    text: Prepared | None,
    data: DataSpec,
    advance: Any,
) -> SplitFacts:
    dtype, length, count, sequences = token_type(tokenizer.vocab_size), data.max_sequence_length, 0, 0
    names = (tokens_file(split), asked_file(split))
    with (folder / names[0]).open("wb") as tokens, (folder / names[1]).open("wb") as asked:
        if text is not None:
            # Whole sequences only, so that instances begin where sequences do.
            written = text.tokens(split)[: len(text.tokens(split)) // length * length]
            tokens.write(np.ascontiguousarray(written, dtype=dtype).data)
            asked.write(np.full(len(written), TEXT, dtype=np.uint8).data)
            count += len(written)
        for ids, kinds in blocks:
            tokens.write(ids.astype(dtype).data)
            asked.write(kinds.data)
            count, sequences = count + ids.size, sequences + len(ids)
            advance(len(ids))
        # The last sequence, too, has a token after it.
        tokens.write(np.array([tokenizer.eos_id], dtype=dtype).data)
        asked.write(bytes([UNASKED]))
    checksums = {name: sha256(folder / name) for name in names}
    documents = sequences + (0 if text is None else text.manifest.splits[split].documents)
    size = 0 if text is None else text.split_bytes(split)
    return SplitFacts(tokens=count + 1, documents=documents, bytes=size, sha256=checksums)


def copy_split(folder: Path, split: str, text: Prepared) -> SplitFacts:
    """Held-out text as it is."""
    names = [tokens_file(split), *([lengths_file(split)] if has_lengths_file(text.manifest.tokenizer_type) else ())]
    for name in names:
        (folder / name).write_bytes((text.folder / name).read_bytes())
    return text.manifest.splits[split]
