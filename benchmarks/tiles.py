"""Which tiles suit attention in windows and segments on this GPU: milliseconds of each kernel alone, as JSON lines.

    python benchmarks/tiles.py
    python benchmarks/tiles.py 128,64,8,3

Tiles are queries, keys, warps and stages. Of what is fastest, `lockstep.kernels.attention.operator` has the choice.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

import torch
from device import found, seconds_of
from gpu import listed, number
from side_by_side import emit, in_one_line, say

from lockstep.models.rotary import table

INSTALLED = importlib.util.find_spec("triton") is not None
if INSTALLED:  # else there is still the help, and a line that says what is missing
    from lockstep.kernels.attention import operator
    from lockstep.kernels.attention.operator import Row, Seen, Tiles

BATCH, HEADS, WIDTH, PERSISTENT, RUNS = 16, 8, 64, 4, 20
SEEN = {"window": (4096, 256, False), "segment": (1024, 1024, True)}
"""Tokens, how many are seen, and whether a memory says something to each."""
TRIED = [
    (queries, keys, warps, stages)
    for queries, keys, warps in ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 128, 4))
    for stages in (2, 3)
]


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 1 where no tiles could be measured."""
    tried, device = parsed(words), torch.device("cuda")
    if not INSTALLED or not found(device):
        missing = "a GPU, and torch finds no device cuda here" if INSTALLED else "Triton, which is not installed here"
        say(f"tiles.py needs {missing}")
        return 2
    lines = []
    for tiles in (Tiles(*numbers) for numbers in tried):
        for name in SEEN:
            try:
                taken = milliseconds(name, tiles, device)
            except Exception as error:  # too large for the device, or for its compiler
                taken = {"error": in_one_line(error)}
            lines.append({"name": "tiles", "seen": name, **tiles._asdict(), **taken})
            emit(lines[-1])
    return int(all("error" in line for line in lines))


def parsed(words: Sequence[str] | None) -> list[tuple[int, ...]]:
    parser = argparse.ArgumentParser(description=f"{(__doc__ or '').partition(':')[0]}. Needs a GPU, and Triton.")
    usual = " ".join(",".join(map(str, numbers)) for numbers in TRIED)
    parser.add_argument(
        "tiles",
        nargs="*",
        type=four,
        default=TRIED,
        metavar="QUERIES,KEYS,WARPS,STAGES",
        help=f"what to try (default: {usual})",
    )
    asked: list[tuple[int, ...]] = parser.parse_args(words).tiles
    return asked


def four(text: str) -> tuple[int, ...]:
    numbers = listed(number)(text)
    if len(numbers) != len(TRIED[0]):
        raise argparse.ArgumentTypeError(f"{text!r} is not queries, keys, warps and stages, such as 128,64,8,3")
    return numbers


def milliseconds(name: str, tiles: Tiles, device: torch.device) -> dict[str, float | str]:
    """Of the three kernels, each with these tiles."""
    operator.READING = operator.THROUGH_QUERIES = operator.THROUGH_KEYS = tiles
    seen = drawn(name, device)
    queries, row, said = seen.compared()
    reads, totals = operator.forward(seen)
    bars = seen.headed(reads), seen.headed(torch.randn_like(reads))
    row_bar = Row(*map(torch.empty_like, row))
    _, shared = operator.through_queries(seen, queries, row, said, *bars, totals, torch.empty_like(queries))

    def read() -> None:
        operator.forward(seen)

    def through_queries() -> None:
        operator.through_queries(seen, queries, row, said, *bars, totals, torch.empty_like(queries))

    def through_keys() -> None:
        operator.through_keys(seen, queries, row, bars[1], totals, shared, row_bar)

    through_keys()
    kernels = {"reads": read, "through_queries": through_queries, "through_keys": through_keys}
    return {name: 1e3 * seconds_of(run, RUNS, device) for name, run in kernels.items()}


def drawn(name: str, device: torch.device) -> Seen:
    time, window, second = SEEN[name]
    generator = torch.Generator(device).manual_seed(0)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    qkv, said = rows(BATCH, time, 3 * HEADS * WIDTH), rows(BATCH, time, 2 * HEADS * WIDTH) if second else None
    own_keys, own_values = rows(2, HEADS, PERSISTENT, WIDTH)
    return Seen(qkv, said, own_keys, own_values, table(time, WIDTH // 4, 1e4, device), window)


if __name__ == "__main__":
    sys.exit(main())
