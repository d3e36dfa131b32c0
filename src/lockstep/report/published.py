"""Published accuracies on needles and BABILong, with their sources.

Numbers are those that were printed; what was read off a figure says so. K is 1024 tokens and M 1024 K: how the papers
count is not stated, and lengths within a tenth of each other are taken for the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SAME_LENGTH = 0.1
K, M = 2**10, 2**20

VARIANTS = ("titans-lmm", "titans-mac", "titans-mag", "titans-mal")


@dataclass(frozen=True)
class Source:
    """Where numbers were printed, and what is known of the models."""

    name: str
    models: str


TITANS_TABLE = Source(
    "arXiv 2501.00663, table 2",
    "size not known here (the paper has 170M to 760M), FineWeb-Edu, sequences of 4K; S-NIAH of RULER",
)
MIRAS_TABLE = Source(
    "arXiv 2504.13173, table 3",
    "size not known here (the paper has 120M to 1.3B), FineWeb-Edu, sequences of 4K; S-NIAH of RULER",
)
NESTED_TABLE = Source(
    "arXiv 2512.24695, table 1",
    "size not known here, about 50B tokens of another mix, which Titans it is not stated; RULER",
)
FEW_SHOT = Source("arXiv 2501.00663, figure 6, read off", "few-shot, size not known here; BABILong")
FINE_TUNED = Source("arXiv 2501.00663, figure 6, read off", "fine-tuned on it, size not known here; BABILong")
GUIDE = Source("A guide to baselines for Titans and MIRAS", "expected, neither size nor training is stated; BABILong")


@dataclass(frozen=True)
class Row:
    """What one model was said to answer."""

    source: Source
    model: str
    architectures: tuple[str, ...]
    """Ours that it may be compared with; none where we have none."""
    task: str
    level: str | None
    """None: of all levels together."""
    percent: dict[int, float]
    """By length."""

    def at(self, length: int) -> float | None:
        """At about a length."""
        return next((value for there, value in self.percent.items() if same_length(there, length)), None)


def same_length(one: int, other: int) -> bool:
    return abs(one / other - 1) <= SAME_LENGTH


SNIAH_LEVELS = ("passkey", "number", "word")
SNIAH_LENGTHS = (2 * K, 4 * K, 8 * K, 16 * K)
SNIAH: dict[str, tuple[tuple[float, ...], ...]] = {
    "TTT": ((98.4, 98.8, 98.0, 88.4), (60.2, 36.6, 10.2, 4.4), (78.8, 28.0, 4.4, 0.0)),
    "Mamba2": ((98.6, 61.4, 31.0, 5.4), (98.4, 55.8, 14.2, 0.0), (42.2, 4.2, 0.0, 0.0)),
    "DeltaNet": ((96.8, 98.8, 98.6, 71.4), (47.2, 15.4, 12.8, 5.4), (46.2, 20.0, 1.6, 0.0)),
    "Titans LMM": ((99.8, 98.4, 98.2, 96.2), (100.0, 99.8, 93.4, 80.2), (90.4, 89.4, 85.8, 80.6)),
    "Titans MAC": ((99.2, 98.8, 99.0, 98.4), (99.6, 98.2, 97.6, 97.4), (98.2, 98.2, 95.6, 95.2)),
    "Titans MAG": ((99.4, 98.0, 97.4, 97.4), (99.2, 98.8, 97.2, 98.6), (98.0, 98.0, 90.2, 88.2)),
    "Titans MAL": ((98.8, 98.6, 98.8, 97.8), (99.8, 98.1, 96.8, 96.4), (98.0, 97.4, 92.0, 90.4)),
}
"""PK, N and W of table 2 of Titans, at 2K, 4K, 8K and 16K."""
MIRAS_SNIAH: dict[str, tuple[tuple[float, ...], ...]] = {
    "Moneta": ((99.4, 98.8, 98.8), (99.4, 99.4, 92.8), (92.2, 88.2, 70.8)),
    "Yaad": ((99.2, 98.6, 94.4), (99.8, 98.6, 93.2), (91.8, 89.6, 67.4)),
    "Memora": ((99.2, 98.8, 92.6), (98.4, 99.2, 93.2), (92.4, 88.2, 70.4)),
    "Gated DeltaNet": ((89.8, 91.4, 90.0), (99.2, 91.8, 26.4), (86.4, 82.6, 24.4)),
}
"""PK and N of table 3 of MIRAS at 2K, 4K and 8K, and W at 1K, 2K and 4K."""
MIRAS_LENGTHS = ((2 * K, 4 * K, 8 * K), (2 * K, 4 * K, 8 * K), (K, 2 * K, 4 * K))
NESTED: dict[str, tuple[float, ...]] = {
    "number": (99.6, 84.6, 75.4),
    "word": (74.2, 42.8, 21.2),
    "multi-key": (26.4, 23.6, 8.2),
    "multi-query": (22.8, 19.8, 9.4),
    "multi-value": (24.6, 15.1, 8.2),
}
"""Titans in table 1 of Nested Learning, at 4K, 8K and 16K: lower than in the paper of Titans."""

FIGURE_6 = (K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K, 64 * K, 128 * K, 512 * K, M, 10 * M)
BABILONG: dict[tuple[Source, str], tuple[int, ...]] = {
    (FEW_SHOT, "Titans MAC"): (76, 76, 74, 73, 71, 70, 66, 64, 61, 53),
    (FEW_SHOT, "GPT-4"): (81, 77, 74, 71, 64, 53, 43, 36),
    (FINE_TUNED, "Titans MAC"): (99, 99, 99, 98, 99, 99, 97, 98, 95, 94, 69),
    (FINE_TUNED, "Mamba"): (99, 99, 99, 99, 99, 98, 96, 92),
    (FINE_TUNED, "RMT"): (97, 95, 92, 90, 86, 78, 70, 59, 46, 43, 34),
    (FINE_TUNED, "Llama 3.1 8B with retrieval"): (48, 47, 46, 45, 45, 44, 42, 45, 42, 39, 37),
}
GUIDE_LENGTHS = (4 * K, 64 * K, 256 * K, M)
GUIDE_BABILONG: dict[str, tuple[int, ...]] = {
    "GPT-4": (95, 60, 30, 15),
    "Mamba-2": (90, 70, 45, 25),
    "Titans": (95, 85, 75, 60),
}

OURS: dict[str, tuple[str, ...]] = {
    "TTT": ("ttt-linear", "ttt-mlp"),
    "Mamba": ("mamba",),
    "Mamba2": ("mamba2",),
    "Mamba-2": ("mamba2",),
    "DeltaNet": ("deltanet",),
    "Gated DeltaNet": ("gated-deltanet",),
    "Titans": VARIANTS,
    "Titans LMM": ("titans-lmm",),
    "Titans MAC": ("titans-mac",),
    "Titans MAG": ("titans-mag",),
    "Titans MAL": ("titans-mal",),
    "Moneta": ("moneta",),
    "Yaad": ("yaad",),
    "Memora": ("memora",),
}
"""Architectures by the name that was printed; of TTT and, later, Titans, which kind it was is not stated."""


def row(
    source: Source, model: str, task: str, level: str | None, lengths: Iterable[int], numbers: Iterable[float]
) -> Row:
    return Row(source, model, OURS.get(model, ()), task, level, dict(zip(lengths, numbers, strict=False)))


PUBLISHED: tuple[Row, ...] = (
    *(
        row(TITANS_TABLE, model, "needles", level, SNIAH_LENGTHS, numbers)
        for model, kinds in SNIAH.items()
        for level, numbers in zip(SNIAH_LEVELS, kinds, strict=True)
    ),
    *(
        row(MIRAS_TABLE, model, "needles", level, lengths, numbers)
        for model, kinds in MIRAS_SNIAH.items()
        for level, lengths, numbers in zip(SNIAH_LEVELS, MIRAS_LENGTHS, kinds, strict=True)
    ),
    *(row(NESTED_TABLE, "Titans", "needles", level, SNIAH_LENGTHS[1:], numbers) for level, numbers in NESTED.items()),
    *(row(source, model, "babilong", None, FIGURE_6, numbers) for (source, model), numbers in BABILONG.items()),
    *(row(GUIDE, model, "babilong", None, GUIDE_LENGTHS, numbers) for model, numbers in GUIDE_BABILONG.items()),
)


def find(source: Source, model: str, level: str | None) -> Row:
    return next(one for one in PUBLISHED if (one.source, one.model, one.level) == (source, model, level))
