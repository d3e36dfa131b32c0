"""Why our results may differ from those of the papers: each of our numbers beside theirs, with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.report.claims_table import TITANS
from lockstep.report.results import Contestant, Measurements, Results, Sweep
from lockstep.report.wording import joined, sentence, span, times
from lockstep.tables import in_short

SETUP = f"{TITANS}, section 5.1"
SMALLEST, LARGEST = 170e6, 760e6
FEWEST_TOKENS, MOST_TOKENS = 15e9, 30e9
LENGTH, BATCH, RATE = 4096, 0.5e6, 4e-4
"""Of the paper's models, their training, its sequences, its steps."""


@dataclass(frozen=True)
class Reason:
    topic: str
    text: str


def why_results_may_differ(results: Results, measurements: Measurements) -> list[Reason]:
    """Facts of this study beside facts of the paper."""
    texts = {
        "scale": _scale(results),
        "tokens": _tokens(results),
        "corpus": _corpus(results),
        "sequence length": _length(results),
        "batch": _batch(results),
        "tuning": _tuning(results),
        "seeds": _seeds(results),
        "hardware": _hardware(results, measurements),
        "kernels": _kernels(measurements),
        "architecture": _architecture(results.contestants),
    }
    return [Reason(topic, sentence(text)) for topic, text in texts.items() if text]


def beside(ours: float, theirs: float) -> str:
    """How many times ours theirs is, or the other way round."""
    return f"{times(theirs / ours)} times ours" if theirs >= ours else f"ours is {times(ours / theirs)} times theirs"


def _scale(results: Results) -> str:
    sizes = [one.parameters for one in results.contestants]
    if not sizes:
        return ""
    head = f"Our models have {span(sizes)} parameters, those of the paper {span((SMALLEST, LARGEST))} ({SETUP})"
    return f"{head}: its smallest has {times(SMALLEST / max(sizes))} times those of our largest"


def _tokens(results: Results) -> str:
    ours = results.study.tokens
    head = f"Ours were trained on {in_short(ours)} tokens, theirs on {span((FEWEST_TOKENS, MOST_TOKENS))} ({SETUP})"
    return f"{head}: the fewest of them are {beside(ours, FEWEST_TOKENS)}"


def _corpus(results: Results) -> str:
    study = results.study
    ours = f"{study.corpus} with {study.tokenizer} of {study.vocab_size:,} tokens"
    return f"Ours read {ours}, theirs FineWeb-Edu with the Llama-2 tokenizer of 32K tokens ({SETUP})"


def _length(results: Results) -> str:
    ours = results.study.sequence_length
    return f"Our sequences have {ours:,} tokens, theirs {LENGTH:,} ({SETUP}): {beside(ours, LENGTH)}"


def _batch(results: Results) -> str:
    ours = results.study.tokens_per_step
    return f"Our steps have {in_short(ours)} tokens, theirs {in_short(BATCH)} ({SETUP}): {beside(ours, BATCH)}"


def _tuning(results: Results) -> str:
    theirs = f"The paper states AdamW at {RATE:g} with cosine decay and no sweep ({SETUP})"
    return f"{_tuned(results.sweeps)}; {results.study.optimizer} with the schedule {results.study.schedule}. {theirs}"


def _tuned(sweeps: Sequence[Sweep]) -> str:
    if not sweeps:
        return "Ours were not tuned"
    counts = sorted({len(one.trials) for one in sweeps})
    head = f"Ours were tuned with {joined([str(count) for count in counts])} trials each"
    edges = [one.contestant for one in sweeps if one.at_edge]
    return f"{head}, and the optimum of {joined(edges)} lies at the edge of the grid" if edges else head


def _seeds(results: Results) -> str:
    count = len(results.study.seeds)
    ours = f"Ours ran {count} {'time' if count == 1 else 'times'} each"
    return f"{ours}; table 1 of {TITANS} prints one number for each model, without an interval"


def _hardware(results: Results, measurements: Measurements) -> str:
    devices = list(dict.fromkeys(one.device for one in measurements.contestants.values())) or [results.study.device]
    ours = f"Our times are those of {joined(devices)} in {results.study.precision}"
    return f"{ours}; the hardware of figure 9 is not stated ({TITANS})"


def _kernels(measurements: Measurements) -> str:
    users: dict[str, list[str]] = {}
    for name, one in measurements.contestants.items():
        users.setdefault(one.kernel_backend, []).append(name)
    if not users:
        return ""
    ours = "; ".join(f"{backend} for {joined(names)}" for backend, names in users.items())
    theirs = f"it credits FlashAttention and Mamba-2's kernel for speed ({TITANS}, figure 9)"
    return f"Our kernels: {ours}. No code of the paper is public; {theirs}"


def _architecture(contestants: Sequence[Contestant]) -> str:
    """Sizes that the paper does not state and we had to choose."""
    told = []
    for one in contestants:
        fields = [
            f"{name} {one.model[name]}" for name in ("chunk", "segment", "window", "persistent") if name in one.model
        ]
        if one.architecture.startswith("titans") and fields:
            told.append(f"{one.name} {joined(fields)}")
    if not told:
        return ""
    theirs = f"the paper states none of these sizes, nor the memory's width ({TITANS}, sections 3 and 4)"
    return f"Ours has {'; '.join(told)}; {theirs}"
