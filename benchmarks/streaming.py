"""Whether a stream of a million tokens needs more memory than one of 65,536, on a CPU; prints JSON lines.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --lengths 4096,16384 --only mamba2

Small models with a state of fixed size read one stream in pieces of 1,024 tokens and are measured at each length on the
way. A ratio is that of the most tensors held at the last length to those at the first.
"""

from __future__ import annotations

import argparse

import torch
from side_by_side import report, say

from lockstep.evaluation.streaming import measure_streaming
from lockstep.models.registry import build

LENGTHS = "65536,1048576"
ARCHITECTURES = ("titans-lmm", "gated-deltanet", "mamba2")
SIZE = {"vocab_size": 258, "dim": 64, "depth": 2, "heads": 2}
MEMORY_BAR = 1.1


def stream(architecture: str, lengths: list[int]) -> None:
    torch.manual_seed(0)
    found = measure_streaming(build(architecture, **SIZE), lengths, torch.device("cpu"))
    assert found is not None
    for at in found:
        more = at.as_dict()
        del more["peak_bytes"], more["tokens_per_second"]
        ratio = at.peak_bytes / found[0].peak_bytes if at is not found[0] else None
        report("peak while streaming", architecture, at.peak_bytes, "bytes", ratio, most=MEMORY_BAR, **more)
        report("speed of streaming", architecture, at.tokens_per_second, "tokens per second", length=at.length)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(";")[0])
    parser.add_argument("--lengths", default=LENGTHS, help="tokens, ascending, with commas between them")
    parser.add_argument("--only", choices=ARCHITECTURES)
    asked = parser.parse_args()
    lengths = [int(part) for part in asked.lengths.split(",")]
    for architecture in ARCHITECTURES if asked.only is None else (asked.only,):
        say(architecture)
        stream(architecture, lengths)


if __name__ == "__main__":
    main()
