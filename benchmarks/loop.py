"""What the training loop costs beyond a bare torch loop of the same model; prints JSON.

    python benchmarks/loop.py

Both loops run in this process, in turns, over the same tokens: forward, loss, backward, clipping, AdamW. Ours also
finds its batch, keeps the ledger and the stream hash, and writes metrics. The ratio of medians is the overhead.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from lockstep.config.run import RunSpec
from lockstep.config.spec import validate
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.training.context import make_context
from lockstep.training.distribution import World
from lockstep.training.loop import Trainer
from lockstep.training.optimizers import build_optimizers
from lockstep.training.stopping import StopRequest

ROUNDS, STEPS = 12, 5

RUN = {
    "experiment_name": "loop-benchmark",
    "data": {"training_corpus": "pystdlib", "batch_size": 8, "max_sequence_length": 256},
    "model": {"architecture": "transformer++", "dim": 256, "depth": 4, "heads": 4},
    "training": {"train_steps": 10_000, "save_interval": None},
}


def bare_steps(model: LanguageModel, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, steps: int) -> None:
    """What everybody writes first."""
    for _ in range(steps):
        loss = token_losses(model(tokens[:, :-1]), tokens[:, 1:]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    run = validate(RunSpec, RUN, "benchmark")
    request = StopRequest()
    with tempfile.TemporaryDirectory() as folder:
        context = make_context(run, Path(folder), World())
        trainer = Trainer(context)
        model = context.model_spec.build()
        (optimizer,) = build_optimizers(model, run.training)
        tokens = torch.from_numpy(context.stream.step(0))
        ours: list[float] = []
        bare: list[float] = []
        for round_number in range(ROUNDS):
            started = time.perf_counter()
            bare_steps(model, optimizer, tokens, STEPS)
            middle = time.perf_counter()
            for _ in range(STEPS):
                trainer.step()
                trainer.after_step(request)
            ended = time.perf_counter()
            if round_number > 0:  # the first round warms up
                bare.append((middle - started) / STEPS)
                ours.append((ended - middle) / STEPS)
        trainer.recorder.close()
    # Paired rounds: whatever disturbs the machine disturbs both halves of a round.
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    result = {
        "benchmark": "loop",
        "bare_ms_per_step": 1e3 * statistics.median(bare),
        "ours_ms_per_step": 1e3 * statistics.median(ours),
        "overhead_percent": 100 * (statistics.median(ratios) - 1),
        "limit_percent": 5,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
