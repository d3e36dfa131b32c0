"""What the memory architectures cost beside a Transformer++ of the same size, on one GPU; prints JSON lines.

    python benchmarks/gpu.py training
    python benchmarks/gpu.py training --contestants transformer++,titans-lmm --lengths 4096,16384 --rounds 3
    python benchmarks/gpu.py training --profile titans-lmm --lengths 4096
    python benchmarks/gpu.py decoding --contestants transformer++,titans-lmm --lengths 1024,65536

training  tokens per second and peak memory of forward, loss, backward and AdamW, and the share that the FLOPs which
          `cost` counts have of a large bfloat16 product's, measured in the same run. Masked scores count as FLOPs, so
          that attention over a long sequence looks up to twice as busy as it is
decoding  a context is read, and the likeliest tokens are written after it, each step a replayed CUDA graph:
          milliseconds a token, tokens per second of reading, bytes of a sequence's state

Models of equal non-embedding parameters (the width of the SwiGLU gives way, or the depth where there is none),
torch.compile; training under bfloat16 autocast, decoding with weights in bfloat16. First everybody is warmed up; then
contestants take turns inside a round, and a ratio is the median of the rounds' own ratios.
A contestant that fails gets a line that says why. Progress and a table go to stderr.

Guests are a plain Transformer, titans-pytorch, and the layers that flash-linear-attention and mamba-ssm have for two of
the rivals, where these are installed. They come to sequences of 4096 tokens, and wherever they are named; their lines
say their version and their size. The latter two run as their packages have them, not compiled, and
train from a recording as everybody does; as writers they start kernel by kernel.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpu_decoding
import torch
from device import measured_peaks, release
from gpu_contestants import CHUNK, EXPANSION, LONGEST, NAMES, SEGMENT, VOCABULARY, Size
from gpu_training import ALONE, CASES, Case, measure, show_kernels, table
from side_by_side import emit, say


def main(words: Sequence[str] | None = None) -> None:
    asked = parsed(words)
    # A forward that contestants share is compiled once for each; beyond a few, torch would leave it as it is.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1024
    say("measuring a large product and a large copy")
    peaks = measured_peaks(asked.device)
    introduce(asked, peaks)
    asked.measurement(asked, peaks["bf16_matmul_tflops"])


def train(asked: argparse.Namespace, tflops: float) -> None:
    """The table of training, or the kernels of one contestant."""
    lines = []
    for case in asked.cases:
        if asked.profile is not None:
            show_kernels(asked.profile, case, asked)
        else:
            lines += measure(case, asked, tflops)
        torch._dynamo.reset()
        release(asked.device)
    if lines:
        say("\n".join(table(lines)))


def decode(asked: argparse.Namespace, _: float) -> None:
    """The table of decoding."""
    lines: list[dict[str, Any]] = []
    for case in gpu_decoding.cases(asked.lengths, asked.several):
        shortest = [line for line in lines if line["length"] == 1024 and line["batch"] == 1 and "error" not in line]
        before = {line["contestant"]: line["milliseconds_per_token"] / 1e3 for line in shortest}
        lines += gpu_decoding.measure(case, asked, before)
        torch._dynamo.reset()
        release(asked.device)
    say("\n".join(gpu_decoding.table(lines)))


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(";")[0])
    measurements = parser.add_subparsers(required=True, metavar="MEASUREMENT")
    training, decoding = (measurements.add_parser(name) for name in ("training", "decoding"))
    training.set_defaults(measurement=train)
    training.add_argument("--profile", choices=NAMES, help="the kernels of this one instead, by time")
    training.add_argument("--batch1", action="store_true", help=f"one sequence of {LONGEST} tokens")
    training.add_argument("--tokens", type=int, help="of a step, whatever the length")
    training.add_argument("--steps", type=int, default=5, help="of a turn; fewer where they are slow")
    decoding.set_defaults(measurement=decode)
    decoding.add_argument("--several", action="store_true", help="also a batch, at the first of the lengths")
    for one in (training, decoding):
        one.add_argument("--contestants", type=names, help="with commas between them; all by default")
        one.add_argument("--lengths", type=numbers(","), help="of a sequence, with commas between them")
        one.add_argument("--rounds", type=int, default=5)
        one.add_argument("--size", type=numbers("/"), default=Size(), help="dim/depth/heads, for a trial")
        one.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
        one.add_argument("--no-compile", dest="compiled", action="store_const", const="nothing", default="blocks")
    training.add_argument("--compile-model", dest="compiled", action="store_const", const="model", help="as one graph")
    asked = parser.parse_args(words)
    if len(asked.size) != len(Size._fields):
        parser.error("--size takes dim/depth/heads, such as 512/16/8")
    asked.size = Size(*asked.size)
    if asked.measurement is train:
        asked.cases = [Case(length) for length in asked.lengths or ()] + [ALONE] * asked.batch1 or list(CASES)
    return asked


def names(text: str) -> tuple[str, ...]:
    unknown = [name for name in text.split(",") if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return tuple(text.split(","))


def numbers(between: str) -> Callable[[str], list[int]]:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(between)]

    return numbers


def introduce(asked: argparse.Namespace, peaks: Mapping[str, float]) -> None:
    on_gpu = asked.device.type == "cuda"
    triton = importlib.util.find_spec("triton") and importlib.import_module("triton").__version__
    shape = {"vocabulary": VOCABULARY, "chunk": CHUNK, "memory_expansion": EXPANSION, "segment": SEGMENT}
    emit(
        {
            "benchmark": "gpu",
            "machine": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton,
            "device": torch.cuda.get_device_name(asked.device) if on_gpu else "cpu",
            **peaks,
            "shape": {**asked.size._asdict(), **shape},
            "compiled": asked.compiled,
            "rounds": asked.rounds,
        }
    )


if __name__ == "__main__":
    main()
