"""How sure a verdict can be: seeds, intervals, tuning, sizes, devices and kernels."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.report.outcome import groups, metric_of, share_of
from lockstep.report.results import Comparison, Measurements, Results, Sweep
from lockstep.report.wording import UNITS, Sentence, joined, sentence, span
from lockstep.tables import in_short

FEW_TOKENS = 100e6
"""Below which a language model has hardly begun to learn what architectures differ in."""


def certainty(results: Results, measurements: Measurements) -> list[Sentence]:
    texts = [
        told_apart(results),
        seeds_in_words(results),
        correction_in_words(results),
        *tuning_in_words(results.sweeps),
        sizes_in_words(results),
        kernels_in_words(results, measurements),
    ]
    return [Sentence("certainty", sentence(text)) for text in texts if text]


def told_apart(results: Results) -> str:
    """The short answer: how many pairs differ for sure, and what speaks against trusting even that."""
    pairs = ranking_pairs(results)
    seeds = len(results.study.seeds)
    count = f"{sum(one.separable and one.kind == 'seeds' for one in pairs)} of {len(pairs)}"
    noun = "pair" if len(pairs) == 1 else "pairs"
    answer = f"{count} {noun} can be told apart, from {seeds} {'repeat' if seeds == 1 else 'repeats'}" if pairs else ""
    doubts = ["sizes are not matched"] if results.study.match is None else []
    doubts += ["nothing was tuned"] if not results.sweeps else []
    doubts += ["an optimum lies at the edge of its grid"] if any(one.at_edge for one in results.sweeps) else []
    doubts += [f"{in_short(results.study.tokens)} tokens are few"] if results.study.tokens < FEW_TOKENS else []
    return "; ".join(one for one in (answer, *doubts) if one)


def ranking_pairs(results: Results) -> list[Comparison]:
    """Those that verdicts rest on."""
    found = []
    for group in groups(results).values():
        share, names = share_of(group), {one.name for one in group}
        if share is not None:
            key = (metric_of(results, group, share), share)
            every = [one for one in results.comparisons if (one.metric, one.share) == key]
            found += [one for one in every if {one.contestant, one.baseline} <= names]
    return found


def seeds_in_words(results: Results) -> str:
    """What the intervals are over; one seed says nothing about others."""
    count = len(results.study.seeds)
    if count > 1:
        which = "contestants are paired" if results.study.finished else "only those that both have finished count"
        return f"{count} repeats, each with seeds of its own; intervals are over them, and {which}"
    primary = [one for one in results.comparisons if one.low is not None]
    if any(one.kind == "documents" for one in primary):
        return "One seed: intervals are over documents within one run and say nothing about other seeds"
    return "One seed: there is no interval, and nothing is known about other seeds"


def correction_in_words(results: Results) -> str:
    """Whether many pairs were allowed for."""
    told = []
    for group in groups(results).values():
        share = share_of(group)
        if share is None or len(group) < 2:
            continue
        metric, names = metric_of(results, group, share), {one.name for one in group}
        pairs = [
            one
            for one in results.comparisons
            if {one.contestant, one.baseline} <= names and (one.metric, one.share) == (metric, share)
        ]
        adjusted = [one for one in pairs if one.p_adjusted is not None]
        if adjusted:
            pair_word = "pair" if len(adjusted) == 1 else "pairs"
            told.append(f"P values in {UNITS[metric]} are adjusted by Holm over {len(adjusted)} {pair_word}")
        elif pairs:
            told.append(f"Differences in {UNITS[metric]} are judged by their intervals alone, one by one")
    return ". ".join(dict.fromkeys(told))


def tuning_in_words(sweeps: Sequence[Sweep]) -> list[str]:
    """How much everybody was tuned, and whose optimum may lie beyond the grid."""
    if not sweeps:
        return ["Nothing was tuned: settings are as stated in the study"]
    budgets = sorted({(len(one.trials), one.tokens) for one in sweeps})
    told = [
        f"Tuned with {joined([f'{trials} trials of {in_short(tokens)} tokens' for trials, tokens in budgets])} each"
    ]
    for one in sweeps:
        if one.at_edge:
            best = one.trials[one.best].settings if one.best is not None else {}
            fields = [f"{field} {best[field]:.4g}" if field in best else field for field in one.at_edge]
            told.append(f"{one.contestant} is provisional: its optimum lies at the edge of the grid ({joined(fields)})")
    return told


def sizes_in_words(results: Results) -> str:
    """Matched, or by hand."""
    sizes = [one.parameters for one in results.contestants]
    if not sizes:
        return ""
    if results.study.match is None:
        return f"Sizes were stated by hand and not matched: {span(sizes)} parameters"
    return f"Sizes are {results.study.match}: {span(sizes)} parameters in all"


def kernels_in_words(results: Results, measurements: Measurements) -> str:
    """Times are those of a device and of kernels, and not of an architecture alone."""
    users: dict[tuple[str, str], list[str]] = {}
    for one in results.contestants:
        found = measurements.contestants.get(one.name)
        if found is not None:
            users.setdefault((found.device, found.kernel_backend), []).append(one.name)
    if not users:
        return "Nothing was measured with a clock"
    told = [f"{joined(names)} with {backend} kernels on {device}" for (device, backend), names in users.items()]
    return f"Times hold for these kernels and devices only: {'; '.join(told)}"
