"""Small studies whose numbers can be followed with a pencil."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from lockstep.report.results import (
    AuditResult,
    Clock,
    Comparison,
    Contestant,
    Cooled,
    Evaluated,
    Inference,
    Measured,
    Measurements,
    Profile,
    Results,
    Run,
    Score,
    Spread,
    StudyFacts,
    TaskRun,
    TaskScore,
    Tick,
    Track,
)

BYTES_PER_TOKEN = 4
STEPS, TOKENS_PER_STEP = 100, 1000
LENGTH = 512


def score(bits: float, accuracy: float = 0.3) -> Score:
    loss = bits * math.log(2) * BYTES_PER_TOKEN
    return Score(loss=loss, perplexity=math.exp(loss), bits_per_byte=bits, accuracy=accuracy, tokens=1000, bytes=4000)


def run(seed: int, bits: float | None, losses: Sequence[float] = ()) -> Run:
    """One that ended with so many bits per byte, or diverged; its validation losses are evenly spaced."""
    steps = [STEPS * (place + 1) // len(losses) for place in range(len(losses))]
    evaluated = [
        Evaluated(step=step, tokens=step * TOKENS_PER_STEP, score=score(1).model_copy(update={"loss": loss}))
        for step, loss in zip(steps, losses, strict=True)
    ]
    ended = bits is not None
    cooled = (
        [Cooled(share=1.0, step=STEPS, tokens=STEPS * TOKENS_PER_STEP, score=score(bits))] if bits is not None else []
    )
    return Run(
        folder=f"runs/{seed}",
        data_seed=seed,
        init_seed=seed,
        status="finished" if ended else "diverged",
        message=None if ended else "the loss was not finite",
        step=STEPS if ended else 40,
        tokens=(STEPS if ended else 40) * TOKENS_PER_STEP,
        curve=(),
        evaluated=tuple(evaluated),
        cooled=tuple(cooled),
    )


def contestant(
    name: str,
    bits: Sequence[float | None],
    *,
    losses: Sequence[float] = (),
    track: Track = "causal",
    group: str | None = None,
    **fields: Any,
) -> Contestant:
    """Named after its architecture; one run for each number of bits."""
    usual: dict[str, Any] = {
        "architecture": name,
        "model": {"dim": 64},
        "settings": {},
        "parameters": 50_000_000,
        "non_embedding_parameters": 48_000_000,
        "training_flops_per_token": 3e8,
        "decoding_flops_per_token": 1e8,
        "state_bytes": {LENGTH: 1000},
        "runs": tuple(run(seed, one, losses) for seed, one in enumerate(bits)),
    }
    return Contestant(name=name, track=track, group=group or track, **(usual | fields))


Metric = Literal["loss", "bits_per_byte", "perplexity", "accuracy"]


def compare(
    ours: str,
    theirs: str,
    effect: float,
    mean: float,
    ends: tuple[float, float] | None,
    metric: Metric = "bits_per_byte",
    **fields: Any,
) -> Comparison:
    """Separable where the interval leaves zero out, unless it is said otherwise."""
    low, high = ends if ends is not None else (None, None)
    usual = {
        "share": 1.0,
        "p": None,
        "p_adjusted": None,
        "samples": 3,
        "kind": "seeds",
        "separable": low is not None and high is not None and not low <= 0 <= high,
    }
    given = {"metric": metric, "contestant": ours, "baseline": theirs, "effect": effect, "baseline_mean": mean}
    return Comparison.model_validate({**usual, **given, "low": low, "high": high, **fields})


PASSED = AuditResult(passed=True, findings=(), notes=(), table=(("contestant",), ("a",)))


def study(
    contestants: Sequence[Contestant],
    comparisons: Sequence[Comparison] = (),
    audit: AuditResult | None = PASSED,
    **facts: Any,
) -> Results:
    """The first contestant is the baseline."""
    usual: dict[str, Any] = {
        "name": "by-hand",
        "corpus": "enwik8",
        "tokenizer": "byte",
        "vocab_size": 256,
        "bytes_per_token": BYTES_PER_TOKEN,
        "steps": STEPS,
        "tokens": STEPS * TOKENS_PER_STEP,
        "tokens_per_step": TOKENS_PER_STEP,
        "sequence_length": LENGTH,
        "schedule": "cosine",
        "precision": "fp32",
        "optimizer": "adamw",
        "noise": 0.0,
        "match": "parameters within 1 %",
        "seeds": tuple((seed, seed) for seed in range(len(contestants[0].runs))),
        "baseline": contestants[0].name,
        "primary": "bits_per_byte",
        "cooled_at": (1.0,),
        "device": "a machine",
        "versions": {"torch": "2.13.0"},
        "revision": "abc123",
        "corpus_digest": "c" * 64,
        "study_digest": "d" * 64,
        "finished": True,
    }
    return Results(
        study=StudyFacts(**(usual | facts)),
        contestants=tuple(contestants),
        comparisons=tuple(comparisons),
        sweeps=(),
        fits=(),
        audit=audit,
    )


def spread(median: float, width: float = 0.01) -> Spread:
    return Spread(median=median, low=median * (1 - width), high=median * (1 + width), count=10)


def measured(
    rate: float = 1000.0,
    decode: float = 0.001,
    *,
    length: int = LENGTH,
    parts: dict[str, float] | None = None,
    seconds: float = 100.0,
    peak: int | None = 2000,
) -> Measured:
    """Tokens per second, seconds per token, the decode profile by part, seconds of the whole training."""
    clock = Clock(
        data_seed=0,
        ticks=(Tick(step=STEPS, seconds=seconds, joules=None),),
        tokens_per_second=spread(rate),
    )
    inference = Inference(
        length=length,
        prefill_seconds=spread(decode * 10),
        decode_seconds=spread(decode),
        prefill_peak_bytes=peak,
        decode_peak_bytes=peak,
        state_bytes=1000,
    )
    profiles = () if parts is None else (Profile(what="decode", seconds=parts),)
    return Measured(
        device="a machine", kernel_backend="torch", clocks=(clock,), inference=(inference,), profiles=profiles
    )


NOTHING = Measurements(contestants={})


def answered(
    task: str,
    level: str,
    length: int,
    right: Sequence[int],
    answers: int = 100,
    chance: float = 0.01,
    **fields: Any,
) -> TaskScore:
    """So many right answers of each seed."""
    runs = tuple(TaskRun(data_seed=seed, answers=answers, right=one) for seed, one in enumerate(right))
    return TaskScore(task=task, level=level, length=length, chance=chance, runs=runs, bands=fields.get("bands", ()))
