"""A benchmark as people read it in a terminal: a table for each quantity, and what is missing with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.study.bench_cells import Cell
from lockstep.tables import aligned, in_bytes


@dataclass(frozen=True)
class Shown:
    """How a quantity is written."""

    title: str
    written: Callable[[float], str]


def three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def four_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def in_milliseconds(seconds: float) -> str:
    return three_digits(1000 * seconds)


SHOWN = {
    "read_seconds": Shown("milliseconds to read a batch", in_milliseconds),
    "prefill_seconds": Shown("milliseconds to read one context", in_milliseconds),
    "decode_seconds": Shown("milliseconds to write a token after it", in_milliseconds),
    "prefill_peak_bytes": Shown("most held while reading it, beyond the weights", in_bytes),
    "decode_peak_bytes": Shown("most held while writing, beyond the weights", in_bytes),
    "state_bytes": Shown("state of a sequence", in_bytes),
    "training_tokens_per_second": Shown("tokens per second of training", three_digits),
    "training_peak_bytes": Shown("most held in a step of training, beyond the weights", in_bytes),
    "perplexity": Shown("perplexity on the test split", four_digits),
    "streamed_tokens_per_second": Shown("tokens per second of a stream", three_digits),
    "streamed_peak_bytes": Shown("most held while reading the stream, beyond the weights", in_bytes),
    "streamed_process_peak_bytes": Shown("growth of the process while reading the stream", in_bytes),
    "streamed_decode_seconds": Shown("milliseconds to write a token after the stream", in_milliseconds),
    "streamed_decode_peak_bytes": Shown("most held while writing after it", in_bytes),
}
MISSING = "-"


def bench_tables(cells: Sequence[Cell]) -> str:
    """One table for each quantity of which there is a number."""
    parts = []
    for quantity, shown in SHOWN.items():
        ours = [cell for cell in cells if cell.quantity == quantity]
        if any(cell.value is not None for cell in ours):
            parts.append("\n".join([shown.title, *aligned(list(rows(ours, shown)))]))
    missing = list(reasons(cells))
    if missing:
        parts.append("\n".join(["missing", *missing]))
    return "\n\n".join(parts)


def rows(cells: Sequence[Cell], shown: Shown) -> Iterator[list[str]]:
    """A model in each row, a length, or a length and a batch, in each column."""
    places = list(dict.fromkeys((cell.length, cell.batch) for cell in cells))
    several = len({batch for _, batch in places}) > 1
    yield ["", *(f"{length:,} × {batch}" if several else f"{length:,}" for length, batch in places)]
    for model in dict.fromkeys(cell.model for cell in cells):
        found = {(cell.length, cell.batch): cell.value for cell in cells if cell.model == model}
        values = [found.get(place) for place in places]
        yield [model, *(MISSING if value is None else shown.written(value) for value in values)]


def reasons(cells: Sequence[Cell]) -> Iterator[str]:
    """Each reason once for a model, with all that it leaves out."""
    lost: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.reason is not None:
            lost.setdefault((cell.model, cell.reason), []).append(cell)
    for (model, reason), missing in lost.items():
        first, *more = dict.fromkeys(cell.quantity for cell in missing)
        what = f"{first} and {len(more)} more" if more else first
        places = dict.fromkeys(f"{cell.length:,}" + (f" × {cell.batch}" if cell.batch else "") for cell in missing)
        yield f"  {model}, {what} at {', '.join(places)}: {reason}"
