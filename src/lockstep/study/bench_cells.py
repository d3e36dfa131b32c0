"""The numbers of a benchmark, each a cell; one that cannot be had says why."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import torch

from lockstep.config.training import TrainingSpec
from lockstep.evaluation.inference import longest, measure_batch, measure_inference, random_tokens
from lockstep.evaluation.language import HeldOut, score_causal
from lockstep.evaluation.streaming import measure_streaming
from lockstep.evaluation.timing import Spread
from lockstep.evaluation.training_step import measure_training
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import as_in_training
from lockstep.models.spec import ModelSpec
from lockstep.study.bench_subjects import Benched
from lockstep.training.loop import AUTOCAST
from lockstep.training.optimizers import build_optimizers

SCORED = 65_536
"""Tokens of the test split that are scored, the same ones at every length; one window where that is longer."""
AT_ONCE = 8192
"""Of them in one batch."""

BIDIRECTIONAL = "it is bidirectional and cannot go token by token"

T = TypeVar("T")
Precision = Literal["fp32", "bf16"]
Numbers = Mapping[str, float | Spread | None]
"""By the name of the quantity."""


@dataclass(frozen=True)
class BenchSettings:
    """What is measured, and how thoroughly."""

    lengths: tuple[int, ...] = (128, 256, 512, 1024)
    batch_sizes: tuple[int, ...] = (1, 10)
    decoded: int = 32
    rounds: int = 5
    streamed: tuple[int, ...] = ()
    """Lengths of a stream that is read in pieces; none by default."""
    precision: Precision = "fp32"
    """With bf16, weights are in bfloat16 for reading and writing, and training is under autocast."""

    def lowered(self, model: LanguageModel) -> LanguageModel:
        """As it reads and writes."""
        return model.to(torch.bfloat16) if self.precision == "bf16" else model


@dataclass(frozen=True)
class Cell:
    """One number of one model."""

    model: str
    quantity: str
    length: int
    batch: int | None
    """Sequences at once; None where a batch has no meaning."""
    value: float | None
    """The median, where there are several measurements."""
    low: float | None = None
    high: float | None = None
    """5 % of the measurements lie below and above."""
    reason: str | None = None
    """Why there is no value."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


READ = ("read_seconds",)
INFERENCE = ("prefill_seconds", "decode_seconds", "prefill_peak_bytes", "decode_peak_bytes", "state_bytes")
TRAINING = ("training_tokens_per_second", "training_peak_bytes")
PERPLEXITY = ("perplexity",)
STREAMED = (
    "streamed_tokens_per_second",
    "streamed_peak_bytes",
    "streamed_process_peak_bytes",
    "streamed_decode_seconds",
    "streamed_decode_peak_bytes",
)


def count_steps(settings: BenchSettings) -> int:
    """How often `measure_cells` advances."""
    return len(settings.lengths) * (2 + 2 * len(settings.batch_sizes))


def measure_cells(
    subject: Benched, settings: BenchSettings, device: torch.device, advance: Callable[[float], None]
) -> Iterator[Cell]:
    """All but the stream; training has a model of its own, since it changes the weights."""
    model = settings.lowered(subject.model(device))
    for length in settings.lengths:
        for batch in settings.batch_sizes:
            yield from reading(subject, model, length, batch, settings.rounds, device)
            advance(1)
        yield from inferring(subject, model, length, settings, device)
        advance(1)
        yield from scoring(subject, model, length, device)
        advance(1)
    del model
    for length in settings.lengths:
        for batch in settings.batch_sizes:
            yield from training(subject, length, batch, settings, device)
            advance(1)


def reading(
    subject: Benched, model: LanguageModel, length: int, batch: int, rounds: int, device: torch.device
) -> Iterator[Cell]:
    def find() -> Numbers:
        return {READ[0]: measure_batch(model, length, batch, device, rounds).seconds}

    yield from attempted(subject, READ, length, batch, too_long(model, length), find)


def inferring(
    subject: Benched, model: LanguageModel, length: int, settings: BenchSettings, device: torch.device
) -> Iterator[Cell]:
    """One sequence, token by token after the context: decoding needs a position more."""

    def find() -> Numbers:
        found = measure_inference(model, length, device, settings.decoded, settings.rounds)
        return {name: getattr(found, name) for name in INFERENCE}

    refused = too_long(model, length + 1) if model.causal else BIDIRECTIONAL
    yield from attempted(subject, INFERENCE, length, 1, refused, find)


def training(
    subject: Benched, length: int, batch: int, settings: BenchSettings, device: torch.device
) -> Iterator[Cell]:
    """With AdamW; a fresh model each time."""

    def find() -> Numbers:
        model = subject.model(device)
        tokens = random_tokens(model, batch, length, device)
        optimizers = build_optimizers(model, TrainingSpec())
        lower = AUTOCAST.get(settings.precision)
        found = measure_training(model, tokens, optimizers, device, settings.rounds, lower)
        return dict(zip(TRAINING, (found.tokens_per_second, float(found.peak_bytes)), strict=True))

    most = subject.spec.max_length if subject.spec.learned_positions else None
    yield from attempted(subject, TRAINING, length, batch, beyond(most, length), find)


def scoring(subject: Benched, model: LanguageModel, length: int, device: torch.device) -> Iterator[Cell]:
    """The first tokens of the test split of its own corpus."""

    def find() -> Numbers:
        assert subject.prepared is not None
        data = HeldOut(subject.prepared, "test", length, max(1, AT_ONCE // length), max(1, SCORED // length))
        with as_in_training(model):
            loss = score_causal(model, data, device).loss
        return {PERPLEXITY[0]: math.exp(min(loss, 700.0))}

    refused = subject.unscored or too_long(model, length)
    if refused is None and subject.prepared is not None and "test" in subject.prepared.manifest.asked:
        refused = "it was trained on tasks; see lockstep evaluate --task"
    if refused is None and subject.prepared is not None:
        there = len(subject.prepared.tokens("test"))
        refused = None if length < there else f"the test split has {there:,} tokens"
    yield from attempted(subject, PERPLEXITY, length, None, refused, find)


def streaming(subject: Benched, settings: BenchSettings, device: torch.device) -> Iterator[Cell]:
    """One stream, measured at each length on the way."""
    lengths = settings.streamed
    found, refused = without_crash(lambda: measure_streaming(settings.lowered(subject.model(device)), lengths, device))
    by_length = {at.length: at for at in found or ()}
    for length in sorted(set(lengths)):

        def find(length: int = length) -> Numbers:
            return {name: getattr(by_length[length], name.removeprefix("streamed_")) for name in STREAMED}

        yield from attempted(subject, STREAMED, length, 1, refused or (None if found else unending(subject.spec)), find)


def unending(spec: ModelSpec) -> str:
    """Why a model cannot read a stream without end."""
    if not spec.causal:
        return BIDIRECTIONAL
    return "its positions end" if spec.learned_positions else "its state grows with the text"


def attempted(
    subject: Benched,
    names: Sequence[str],
    length: int,
    batch: int | None,
    refused: str | None,
    find: Callable[[], Numbers],
) -> Iterator[Cell]:
    """A cell for each name: what was found, or why not."""
    numbers: Numbers | None = None
    if refused is None:
        numbers, refused = without_crash(find)
    for name in names:
        found = (numbers or {}).get(name)
        ends = (found.low, found.high) if isinstance(found, Spread) else (None, None)
        value = found.median if isinstance(found, Spread) else found
        if value is None or not math.isfinite(value):
            why = refused or ("the system does not tell" if value is None else f"it is {value}")
            yield Cell(subject.label, name, length, batch, None, reason=why)
        else:
            yield Cell(subject.label, name, length, batch, value, *ends)


def without_crash(find: Callable[[], T]) -> tuple[T | None, str | None]:
    """What was found; or nothing, because memory was not enough."""
    try:
        return find(), None
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
    # Only here, where the error and all that its frames held are gone.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None, "out of memory"


def is_shortage(error: BaseException) -> bool:
    """The CPU's allocator has no error of its own kind."""
    told = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in told)


def too_long(model: LanguageModel, length: int) -> str | None:
    return beyond(longest(model), length)


def beyond(most: int | None, length: int) -> str | None:
    return None if most is None or length <= most else f"the model has {most:,} positions"
