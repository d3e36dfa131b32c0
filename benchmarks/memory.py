"""What the memory architectures cost beside a Transformer++ of the same size, on a CPU; prints JSON lines.

    python benchmarks/memory.py
    python benchmarks/memory.py --only decoding --rounds 4

Models of equal non-embedding parameters (the width of the SwiGLU gives way), fp32, eager, two threads.

training  tokens per second of forward, loss, backward and AdamW
peer      tokens per second of forward, loss and backward, beside titans-pytorch where installed
memory    peak memory that one forward and backward add, each in a fresh process (Linux)
decoding  milliseconds per token of `step` after a short and after a long context

Contestants take turns inside a round, and a ratio is the median of the rounds' own ratios: whatever disturbs the
machine disturbs a whole round. The first round warms up. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peer import PEER, import_peer, peer_model, peer_parameters, peer_version
from side_by_side import emit, forward_backward, in_turns, paired, report, say, training_step
from torch import Tensor, nn

from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build
from lockstep.models.state import State

ROUNDS, PROCESSES, THREADS = 10, 3, 2
DIM, DEPTH, HEADS, VOCABULARY = 256, 4, 4, 258
BATCH, LENGTH = 2, 1024
CHUNK, EXPANSION, SEGMENT, PERSISTENT = 64, 2, 256, 4
SHORT, LONG, PREFILL, DECODED = 1024, 16_384, 1024, 128

BASELINE = "transformer++"
TITANS = ("titans-lmm", "titans-mac", "titans-mag", "titans-mal")
MIRAS = ("yaad", "moneta", "memora")
LEADING = ("titans-lmm", "titans-mac")
"""Those with bars of their own."""
TRAINING_BARS = {"titans-lmm": 0.6, "titans-mac": 0.45}
PEER_BAR, MEMORY_BAR, DECODING_BAR, GROWTH_BAR = 15.0, 1.5, 1.5, 1.1

ALLOCATORS: dict[str, dict[str, str]] = {
    "what tensors need": {"MALLOC_MMAP_THRESHOLD_": "131072"},
    "as the system's allocator leaves it": {},
}
"""glibc keeps freed blocks between blocks in use; with a fixed threshold it gives each tensor's memory back at once."""

PEER_STEP = 0.1
"""Its largest step. With its own default, 1, the loss of an untrained model is NaN at updated weights."""
PEER_VARIANTS: dict[str, dict[str, Any]] = {
    f"{PEER}, gradients at updated weights": {"neural_memory_batch_size": CHUNK, "num_residual_streams": 1},
    f"{PEER}, gradients at the first weights": {"neural_memory_batch_size": None, "num_residual_streams": 1},
    f"{PEER}, gradients at updated weights, its four residual streams": {
        "neural_memory_batch_size": CHUNK,
        "num_residual_streams": 4,
    },
}
"""One stream as everybody else has; four are its default, and no part of a memory. Its memory stands still for the 64
tokens of a chunk, where ours gives each token its own: that is what it does at the granularities below."""
GRANULARITIES, FEW = (1, 4), 256
"""Tokens that share one state of the peer's memory: its constructor's default and its training script's. One sequence
of FEW tokens: at 1,024 its weights per token would take tens of gigabytes."""

Widths = Mapping[str, int | None]
"""Hidden width of each contestant's SwiGLU; None is the architecture's own."""


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(THREADS)
    if arguments.peak_of is not None:
        print(peak_megabytes(arguments.peak_of, arguments.hidden))
        return
    widths, counts = matched()
    introduce(widths, counts, arguments.rounds)
    for name, measure in MEASURES.items():
        if arguments.only in (None, name):
            say(name)
            measure(widths, arguments.rounds)
            gc.collect()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the memory architectures cost beside a Transformer++.")
    parser.add_argument("--only", choices=tuple(MEASURES), help="one measurement alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each, the first of which warms up")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)  # what this file asks of its fresh processes
    parser.add_argument("--hidden", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("the first round warms up: at least 2")
    return arguments


def model_of(name: str, hidden: int | None) -> LanguageModel:
    torch.manual_seed(0)
    memory = {"chunk": CHUNK, "expansion": EXPANSION}
    attention = {"segment": SEGMENT, "window": SEGMENT, "persistent": PERSISTENT}
    fields: dict[str, Any] = {"hidden": hidden}
    if name != BASELINE:
        fields |= memory
    if name in TITANS:
        fields |= attention
    return build(name, vocab_size=VOCABULARY, dim=DIM, depth=DEPTH, heads=HEADS, **fields)


def parameters_of(name: str, hidden: int | None) -> int:
    return model_of(name, hidden).cost(LENGTH).non_embedding_parameters


def matched() -> tuple[dict[str, int | None], dict[str, int]]:
    """Widths at which everybody has as many parameters as the baseline, and how many that are."""
    target = parameters_of(BASELINE, None)
    widths: dict[str, int | None] = {BASELINE: None}
    counts = {BASELINE: target}
    for name in (*TITANS, *MIRAS):
        widths[name] = width_for(target, partial(parameters_of, name))
        counts[name] = parameters_of(name, widths[name])
    return widths, counts


def width_for(target: int, count: Callable[[int], int]) -> int:
    """The even width whose parameters, which grow linearly with it, are nearest to the target."""
    two, four = count(2), count(4)
    return 2 + 2 * round((target - two) / (four - two))


def introduce(widths: Widths, counts: Mapping[str, int], rounds: int) -> None:
    shape = {
        "dim": DIM,
        "depth": DEPTH,
        "heads": HEADS,
        "vocabulary": VOCABULARY,
        "sequence": LENGTH,
        "batch": BATCH,
        "chunk": CHUNK,
        "memory_expansion": EXPANSION,
        "segment_and_window": SEGMENT,
        "persistent": PERSISTENT,
    }
    emit(
        {
            "benchmark": "memory",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "rounds": rounds,
            "shape": shape,
            "non_embedding_parameters": dict(counts),
            "hidden": dict(widths),
        }
    )


def tokens_for_training() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


def both_ways(model: nn.Module, tokens: Tensor) -> None:
    """Forward and backward, and no step."""
    forward_backward(model, tokens)
    model.zero_grad(set_to_none=True)


def speed(seconds: Sequence[float], tokens: int = BATCH * LENGTH) -> float:
    return tokens / statistics.median(seconds)


def measure_training(widths: Widths, rounds: int) -> None:
    tokens = tokens_for_training()
    contestants: dict[str, Callable[[], None]] = {}
    for name, hidden in widths.items():
        model = model_of(name, hidden)
        contestants[name] = partial(training_step, model, torch.optim.AdamW(model.parameters(), lr=1e-3), tokens)
    seconds = in_turns(contestants, rounds)
    for name, found in seconds.items():
        ratio = paired(seconds[BASELINE], found)
        report("training", name, speed(found), "tokens/s", ratio, least=TRAINING_BARS.get(name))


def measure_peer(widths: Widths, rounds: int) -> None:
    """Without an optimizer: with several memory heads the peer's weights are expanded, and no step can be taken."""
    try:
        peer = import_peer()
    except ImportError:
        emit({"name": "peer", "contestant": PEER, "value": None, "status": "not installed"})
        return
    target = parameters_of(BASELINE, None)
    settings = {name: peer_settings(peer, variant, target) for name, variant in PEER_VARIANTS.items()}
    beside_peer(peer, widths, settings, tokens_for_training(), rounds)
    fine = {
        f"{PEER}, memory moved every {size} tokens": peer_settings(
            peer,
            {"neural_memory_segment_len": size, "neural_memory_batch_size": CHUNK, "num_residual_streams": 1},
            target,
        )
        for size in GRANULARITIES
    }
    beside_peer(peer, widths, fine, tokens_for_training()[:1, : FEW + 1], max(rounds // 2, 2))


def beside_peer(peer: Any, widths: Widths, settings: Mapping[str, dict[str, Any]], tokens: Tensor, rounds: int) -> None:
    models: dict[str, nn.Module] = {name: model_of(name, widths[name]) for name in LEADING}
    models |= {name: peer_model(peer, chosen) for name, chosen in settings.items()}
    seconds = in_turns({name: partial(both_ways, model, tokens) for name, model in models.items()}, rounds)
    count = tokens[:, 1:].numel()
    version = peer_version()
    for name, chosen in settings.items():
        counted, loss = peer_parameters(models[name]), forward_backward(models[name], tokens)
        more: dict[str, Any] = {"non_embedding_parameters": counted, "loss": loss, "settings": chosen}
        report("peer", name, speed(seconds[name], count), "tokens/s", version=version, tokens=count, **more)
    for name in LEADING:
        for other in settings:
            ratio = paired(seconds[other], seconds[name])
            report("peer", name, speed(seconds[name], count), "tokens/s", ratio, least=PEER_BAR, against=other)


def peer_settings(peer: Any, variant: Mapping[str, Any], target: int) -> dict[str, Any]:
    """Its constructor's arguments: our sizes, and a feed-forward width that brings its parameters to the target."""
    fixed = {
        "num_tokens": VOCABULARY,
        "dim": DIM,
        "depth": DEPTH,
        "heads": HEADS,
        "dim_head": DIM // HEADS,
        "segment_len": SEGMENT,
        "num_persist_mem_tokens": PERSISTENT,
        "num_longterm_mem_tokens": 0,
        "neural_memory_segment_len": CHUNK,
        "neural_memory_kwargs": {
            "dim_head": DIM // HEADS,
            "heads": HEADS,
            "default_step_transform_max_lr": PEER_STEP,
            "default_model_kwargs": {"depth": 2, "expansion_factor": float(EXPANSION)},
        },
        **variant,
    }

    def with_width(hidden: int) -> dict[str, Any]:
        # It rounds dim × mult × 2/3 down.
        return fixed | {"ff_mult": 1.5 * (hidden + 0.5) / DIM}

    return with_width(width_for(target, lambda hidden: peer_parameters(peer_model(peer, with_width(hidden)))))


def measure_memory(widths: Widths, rounds: int) -> None:
    if not Path("/proc/self/status").exists():
        emit({"name": "memory", "value": None, "status": "peaks are read from Linux's /proc"})
        return
    names = (BASELINE, *LEADING)
    for kind, environment in ALLOCATORS.items():
        peaks: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(min(rounds - 1, PROCESSES)):
            for name in names:
                peaks[name].append(peak_in_a_process(name, widths[name], environment))
                say(f"  {name} {peaks[name][-1]:.1f} MB, {kind}")
        for name in names:
            most = MEMORY_BAR if name in LEADING else None
            ratio = paired(peaks[name], peaks[BASELINE])
            report("memory", name, statistics.median(peaks[name]), "MB", ratio, most=most, allocator=kind)


def peak_in_a_process(name: str, hidden: int | None, environment: Mapping[str, str]) -> float:
    width = [] if hidden is None else ["--hidden", str(hidden)]
    command = [sys.executable, str(Path(__file__).resolve()), "--peak-of", name, *width]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    return float(child.stdout)


def peak_megabytes(name: str, hidden: int | None) -> float:
    """What one forward and backward add to the memory of this process, gradients included."""
    model, tokens = model_of(name, hidden), tokens_for_training()
    both_ways(model, tokens[:, : CHUNK + 1])
    gc.collect()
    before = status_megabytes("VmRSS")
    both_ways(model, tokens)
    return status_megabytes("VmHWM") - before


def status_megabytes(field: str) -> float:
    """From Linux's account of this process; ru_maxrss would begin at what the parent process had held."""
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def measure_decoding(widths: Widths, rounds: int) -> None:
    names, contexts = (BASELINE, *LEADING), (SHORT, LONG)
    contestants: dict[str, Callable[[], None]] = {}
    for name in names:
        model = model_of(name, widths[name]).eval()
        for context in contexts:
            say(f"  {name} reads {context} tokens")
            contestants[f"{name} {context}"] = partial(decode, model, prefilled(model, context))
    seconds = in_turns(contestants, rounds)
    for name in names:
        most = DECODING_BAR if name in LEADING else None
        short, long = seconds[f"{name} {SHORT}"], seconds[f"{name} {LONG}"]
        for context, found, bar in ((SHORT, short, most), (LONG, long, None)):
            ratio = paired(found, seconds[f"{BASELINE} {context}"])
            value = 1e3 * statistics.median(found) / DECODED
            report("decoding", name, value, "ms/token", ratio, most=bar, context=context)
        bar = GROWTH_BAR if name in LEADING else None
        growth = paired(long, short)
        report("decoding-growth", name, growth, "times", growth, most=bar, contexts=contexts)


def random_tokens(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VOCABULARY, (1, count), generator=generator)


@torch.inference_mode()
def prefilled(model: LanguageModel, context: int) -> State:
    """The state after so many tokens, with room for those that are to be decoded."""
    state = model.initial_state(1, capacity=context + DECODED)
    for piece in random_tokens(context).split(PREFILL, dim=1):
        _, state = model.step(piece, state)
    return state


@torch.inference_mode()
def decode(model: LanguageModel, state: State) -> None:
    """Token by token over whole chunks. A step leaves the state it began at as it was: one serves every round."""
    for token in random_tokens(DECODED).split(1, dim=1):
        _, state = model.step(token, state)


MEASURES: dict[str, Callable[[Widths, int], None]] = {
    "training": measure_training,
    "peer": measure_peer,
    "memory": measure_memory,
    "decoding": measure_decoding,
}


if __name__ == "__main__":
    main()
