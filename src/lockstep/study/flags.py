"""A study from flags: on top of a file, of the quick study, or of a pair made for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lockstep.config.files import apply_override, load_study, read_yaml, refuse_the_other_kind
from lockstep.config.spec import validate
from lockstep.config.study import StudySpec, set_setting
from lockstep.errors import UserError
from lockstep.models.registry import find

QUICK = Path(__file__).with_name("quick.yaml")
LARGEST_CHUNK = 64

PAIR: dict[str, Any] = {
    "study_name": "compare",
    "data": {"training_corpus": "pystdlib", "batch_size": 16, "max_sequence_length": 1024},
    "training": {"train_steps": 1000, "schedule": "wsd", "cooled_at": [0.25, 0.5]},
    "evaluation": {"interval": 100},
    "measurements": {"sequences": 256, "prompts": ["The "]},
    "contestants": {"transformer++": {}, "titans-mac": {}},
}
"""What flags change when they name a corpus, sizes or contestants: a Transformer and a Titans."""


@dataclass(frozen=True)
class Flags:
    """What was given on the command line; None was not."""

    dim: int | None = None
    depth: int | None = None
    heads: int | None = None
    dim_head: int | None = None
    segment_len: int | None = None
    use_memory: bool | None = None
    use_flex_attn: bool | None = None
    scale: str | None = None
    contestants: str | None = None
    dataset: str | None = None
    wikitext_version: str | None = None
    tokenizer: str | None = None
    batch_size: int | None = None
    eval_batch_size: int | None = None
    seq_len: int | None = None
    steps: int | None = None
    lr: float | None = None
    warmup_steps: int | None = None
    log_interval: int | None = None
    eval_interval: int | None = None
    eval_steps: int | None = None
    save_interval: int | None = None
    seeds: int | None = None
    device: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


SIZES = ("dim", "depth", "heads", "dim_head")
CHOICES = (*SIZES, "scale", "contestants", "dataset", "segment_len", "use_memory", "use_flex_attn")
"""Flags that ask for a study of their own where no file is given."""
TITANS_FIELDS = {"segment_len": "segment", "use_memory": "use_memory", "use_flex_attn": "use_flex_attn"}
"""Flags that speak to Titans alone."""
PLACES = {
    "batch_size": "data.batch_size",
    "seq_len": "data.max_sequence_length",
    "eval_batch_size": "evaluation.batch_size",
    "eval_interval": "evaluation.interval",
    "steps": "training.train_steps",
    "lr": "training.learning_rate",
    "warmup_steps": "training.warmup_steps",
    "save_interval": "training.save_interval",
    "log_interval": "logging.log_interval",
    "device": "training.device",
    "scale": "scale",
    "seeds": "seeds",
}
"""Where a flag's value goes as it is."""


def study_from(file: Path | None, flags: Flags, overrides: Sequence[str] = ()) -> StudySpec:
    """The study that a file, flags and dotted overrides ask for, in this order."""
    given = flags.given
    if file is not None:
        data = read_yaml(file)
        if given:
            load_study(file)  # says what is wrong with the file before flags are laid over it
    elif any(name in given for name in CHOICES):
        data = {key: dict(value) if isinstance(value, dict) else value for key, value in PAIR.items()}
    else:
        data = read_yaml(QUICK)
    set_corpus(data, flags)
    set_contestants(data, flags)
    for name, key in PLACES.items():
        if name in given:
            set_setting(data, key, given[name], "--" + name.replace("_", "-"))
    if flags.eval_steps is not None:
        per_step = flags.eval_batch_size or data["data"].get("batch_size", 32)
        set_setting(data, "evaluation.sequences", flags.eval_steps * per_step, "--eval-steps")
    for override in overrides:
        apply_override(data, override)
    source = file or Path("flags")
    refuse_the_other_kind(StudySpec, data, source)
    return validate(StudySpec, data, str(source))


def set_corpus(data: dict[str, Any], flags: Flags) -> None:
    """`wikitext` means WikiText-103, unless its version is given; GPT-2's tokenizer is its default."""
    if flags.wikitext_version not in (None, "2", "103"):
        raise UserError(f"--wikitext-version {flags.wikitext_version}: expected 2 or 103")
    corpus = flags.dataset
    if flags.wikitext_version is not None:
        if corpus not in (None, "wikitext"):
            raise UserError(f"--wikitext-version: --dataset is {corpus}, not wikitext")
        corpus = f"wikitext-{flags.wikitext_version}"
    if corpus is not None:
        set_setting(data, "data.training_corpus", corpus, "--dataset")
    tokenizer = flags.tokenizer or ("gpt2" if corpus is not None and corpus.startswith("wikitext") else None)
    if tokenizer is not None:
        given = Path(tokenizer).expanduser()
        asked = {"tokenizer_type": "file", "path": str(given)} if given.exists() else {"tokenizer_type": tokenizer}
        data["tokenizer"] = asked


def set_contestants(data: dict[str, Any], flags: Flags) -> None:
    """Names, sizes and the fields of Titans; sizes given by hand are not matched."""
    if flags.contestants is not None:
        names = [name.strip() for name in flags.contestants.split(",") if name.strip()]
        if len(set(names)) < len(names):
            raise UserError(f"--contestants {flags.contestants}: each name once")
        known = data.get("contestants") or {}
        data["contestants"] = {name: known.get(name) or {} for name in names}
        data.pop("baseline", None)
    sizes = sizes_of(flags)
    if sizes:
        if flags.scale is not None:
            raise UserError(f"--scale solves for sizes, but --{next(iter(sizes))} gives one; leave one of them out")
        data.pop("scale", None)
        data["match"] = "none"
    if flags.scale is not None:
        data.pop("match", None)
    entries = data.get("contestants")
    if not isinstance(entries, dict):
        return  # what is wrong with it is said when the study is validated
    kinds = {name: find(str((own or {}).get("architecture", name))).model_fields for name, own in entries.items()}
    for flag, field in TITANS_FIELDS.items():
        if flag in flags.given and not any(field in kind for kind in kinds.values()):
            raise UserError(f"--{flag.replace('_', '-')}: no contestant has a {field}; it is a field of Titans")
    for name, section in entries.items():
        own, kind = dict(section or {}), kinds[name]
        own |= {key: value for key, value in sizes.items() if key in kind}
        entries[name] = own | titans_fields(flags, own, kind)


def sizes_of(flags: Flags) -> dict[str, int]:
    """dim, depth and heads; the width of a head is a way to say how many there are."""
    sizes = {name: value for name in ("dim", "depth", "heads") if (value := getattr(flags, name)) is not None}
    if flags.dim_head is None:
        return sizes
    if flags.dim is None or flags.dim % flags.dim_head:
        raise UserError(f"--dim-head {flags.dim_head}: heads fill the width, so --dim must be a multiple of it")
    if sizes.setdefault("heads", flags.dim // flags.dim_head) != flags.dim // flags.dim_head:
        raise UserError(f"--heads {flags.heads} of --dim-head {flags.dim_head} do not fill --dim {flags.dim}")
    return sizes


def titans_fields(flags: Flags, own: Mapping[str, Any], kind: Mapping[str, Any]) -> dict[str, Any]:
    """Segments, memory and attention of a contestant that has them."""
    found: dict[str, Any] = {}
    if flags.segment_len is not None and "segment" in kind:
        found = {"segment": flags.segment_len, "window": flags.segment_len}
        chunk = own.get("chunk", LARGEST_CHUNK)
        # What is no number is refused where the model is specified.
        found["chunk"] = math.gcd(flags.segment_len, chunk) if isinstance(chunk, int) else chunk
    if flags.use_memory is not None and "use_memory" in kind:
        found["use_memory"] = flags.use_memory
    if flags.use_flex_attn is not None and "use_flex_attn" in kind:
        found["use_flex_attn"] = flags.use_flex_attn
    return found
