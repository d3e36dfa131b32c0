"""What the linear-time architectures cost beside a Transformer++ of the same size, on a CPU; prints JSON lines.

    python benchmarks/rivals.py
    python benchmarks/rivals.py --only forms

Models of equal non-embedding parameters (the width of the SwiGLU gives way, or the depth where there is none), fp32,
eager, two threads.

training  tokens per second of forward, loss, backward and AdamW
forms     a whole sequence at once beside the same sequence token by token, both without gradients

Contestants take turns inside a round, and a ratio is the median of the rounds' own ratios. The first round warms up.
Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from side_by_side import emit, in_turns, paired, report, say, training_step
from torch import Tensor

from lockstep.config.match import MatchSpec
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import specify
from lockstep.models.spec import ModelSpec
from lockstep.study.match import cost_on_meta, match

ROUNDS, THREADS = 6, 2
DIM, DEPTH, HEADS, VOCABULARY = 256, 4, 4, 258
LENGTH, LONG = 2048, 4096
STEPPED = 512
"""Tokens of the long sequence that are taken one by one; the state is constant, so that the rest would take as long."""
BASELINE = "transformer++"
RIVALS = ("mamba", "mamba2", "gated-deltanet", "deltanet", "retnet", "gla", "linear-attention", "ttt-linear", "ttt-mlp")
TRAINING_BARS = {"mamba2": 0.5, "gated-deltanet": 0.5}
FORMS_BAR = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description="What the linear-time architectures cost beside a Transformer++.")
    parser.add_argument("--only", choices=("training", "forms"), help="one measurement alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each, the first of which warms up")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    specs = matched()
    introduce(specs, arguments.rounds)
    if arguments.only in (None, "training"):
        say("training")
        measure_training(specs, arguments.rounds)
    if arguments.only in (None, "forms"):
        say("forms")
        measure_forms(specs, arguments.rounds)


def matched() -> dict[str, ModelSpec]:
    """Everybody as large as the baseline, at its width."""
    given: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": DIM, "heads": HEADS, "max_length": LONG}
    baseline = specify(BASELINE, {**given, "depth": DEPTH})
    wanted = MatchSpec(target=cost_on_meta(baseline, LENGTH).non_embedding_parameters, tolerance=0.05)
    specs = {BASELINE: baseline}
    for name in RIVALS:
        depth = {} if name in ("mamba", "mamba2") else {"depth": DEPTH}
        specs[name] = match(name, {**given, **depth}, wanted, LENGTH)
    return specs


def introduce(specs: dict[str, ModelSpec], rounds: int) -> None:
    sizes = {
        name: {
            "depth": spec.depth,
            "hidden": spec.hidden,
            "non_embedding_parameters": cost_on_meta(spec, LENGTH).non_embedding_parameters,
        }
        for name, spec in specs.items()
    }
    line = {"benchmark": "rivals", "torch": torch.__version__, "threads": torch.get_num_threads(), "rounds": rounds}
    emit({**line, "dim": DIM, "sequence": LENGTH, "sizes": sizes})


def measure_training(specs: dict[str, ModelSpec], rounds: int) -> None:
    tokens = torch.randint(VOCABULARY, (1, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    contestants = {}
    for name, spec in specs.items():
        model = built(spec)
        contestants[name] = partial(training_step, model, torch.optim.AdamW(model.parameters(), lr=1e-3), tokens)
    seconds = in_turns(contestants, rounds)
    for name, found in seconds.items():
        ratio = paired(seconds[BASELINE], found)
        report("training", name, LENGTH / statistics.median(found), "tokens/s", ratio, least=TRAINING_BARS.get(name))


def measure_forms(specs: dict[str, ModelSpec], rounds: int) -> None:
    tokens = torch.randint(VOCABULARY, (1, LONG), generator=torch.Generator().manual_seed(1))
    for name in RIVALS:
        model = built(specs[name]).eval()
        say(f" {name}")
        forms = {"at once": partial(at_once, model, tokens), "by token": partial(by_token, model, tokens)}
        whole, stepped = in_turns(forms, rounds).values()
        ratio = paired(stepped, whole) * LONG / STEPPED
        report("forms", name, LONG / statistics.median(whole), "tokens/s", ratio, least=FORMS_BAR, length=LONG)


@torch.inference_mode()
def at_once(model: LanguageModel, tokens: Tensor) -> None:
    model(tokens)


@torch.inference_mode()
def by_token(model: LanguageModel, tokens: Tensor) -> None:
    state = model.initial_state(1)
    for token in tokens[:, :STEPPED].split(1, dim=1):
        _, state = model.step(token, state)


def built(spec: ModelSpec) -> LanguageModel:
    torch.manual_seed(0)
    return spec.build()


if __name__ == "__main__":
    main()
