"""Which tiles suit attention in windows and segments on this GPU: milliseconds of each kernel alone, as JSON lines.

    python benchmarks/tiles.py
    python benchmarks/tiles.py 128,64,8,3

Tiles are queries, keys, warps and stages. Of what is fastest, `lockstep.kernels.attention.operator` has the choice.
"""

from __future__ import annotations

import sys

import torch
from device import seconds_of
from side_by_side import emit

from lockstep.kernels.attention import operator
from lockstep.kernels.attention.operator import Row, Seen, Tiles
from lockstep.models.rotary import table

BATCH, HEADS, WIDTH, PERSISTENT, RUNS = 16, 8, 64, 4, 20
SEEN = {"window": (4096, 256, False), "segment": (1024, 1024, True)}
"""Tokens, how many are seen, and whether a memory says something to each."""
TRIED = [
    Tiles(queries, keys, warps, stages)
    for queries, keys, warps in ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 128, 4))
    for stages in (2, 3)
]


def main(words: list[str]) -> None:
    device = torch.device("cuda")
    for tiles in [Tiles(*map(int, word.split(","))) for word in words] or TRIED:
        for name in SEEN:
            try:
                found = milliseconds(name, tiles, device)
            except Exception as error:  # too large for the device, or for its compiler
                found = {"error": str(error).strip().splitlines()[0]}
            emit({"name": "tiles", "seen": name, **tiles._asdict(), **found})


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
    main(sys.argv[1:])
