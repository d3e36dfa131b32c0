"""How much of a training step the token stream takes, and how long enwik8 takes to prepare; prints JSON.

    python benchmarks/stream.py

The stream's work for a step (finding the windows, inputs and targets, byte counts, the rolling hash) is timed beside
training steps of a small Transformer++ on the same batches. enwik8 is prepared when LOCKSTEP_DATA has it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from lockstep.config.data import DataSpec
from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpora import CORPORA
from lockstep.data.prepare import prepare
from lockstep.training.context import Context, make_context
from lockstep.training.distribution import World
from lockstep.training.ledger import Ledger
from lockstep.training.loop import Trainer

STEPS = 30

RUN = {
    "experiment_name": "stream-benchmark",
    "data": {"training_corpus": "pystdlib", "batch_size": 16, "max_sequence_length": 256},
    "model": {"architecture": "transformer++", "dim": 128, "depth": 4, "heads": 4},
    "training": {"train_steps": 10_000, "save_interval": None},
}


def stream_seconds(context: Context, steps: int) -> list[float]:
    """Seconds per step of everything that has to do with tokens."""
    ledger, seconds = Ledger(), []
    for step in range(steps):
        started = time.perf_counter()
        windows = context.stream.step(step)
        batch = context.batch(windows, step)
        batch.part(0, 1, 0, 1, context.device)
        context.prepared.byte_lengths("train", context.stream.target_places(step)).sum()
        ledger.record(windows, batch.supervised)
        seconds.append(time.perf_counter() - started)
    return seconds


def prepare_enwik8() -> float | None:
    """Seconds from the packed file to memory-mapped tokens, in an empty cache."""
    if not CORPORA["enwik8"].is_present():
        return None
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LOCKSTEP_CACHE"] = cache
        started = time.perf_counter()
        prepare(DataSpec(training_corpus="enwik8"), TokenizerSpec())
        return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        context = make_context(validate(RunSpec, RUN, "benchmark"), Path(folder), World())
        trainer, step_seconds = Trainer(context), []
        for _ in range(STEPS):
            started = time.perf_counter()
            trainer.step()
            step_seconds.append(time.perf_counter() - started)
        stream = statistics.median(stream_seconds(context, STEPS))
        trainer.recorder.close()
    step = statistics.median(step_seconds)
    result = {
        "benchmark": "stream",
        "stream_ms_per_step": 1e3 * stream,
        "training_step_ms": 1e3 * step,
        "share_percent": 100 * stream / step,
        "limit_percent": 2,
        "enwik8_prepare_seconds": prepare_enwik8(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
