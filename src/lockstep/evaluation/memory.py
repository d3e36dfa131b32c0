"""The memory section of a result: probes and ablations on a few held-out sequences, and both as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep.evaluation.language import HeldOut, Progress
from lockstep.evaluation.memory_ablations import score_ablations
from lockstep.evaluation.memory_hooks import neural_memories
from lockstep.evaluation.memory_probes import finite, probe_memory
from lockstep.models.language_model import LanguageModel
from lockstep.tables import aligned

SEQUENCES = 8
"""Read by probes and ablations; as many others warm the memory up."""
SEGMENTS = 4
"""Parts of a sequence between which `reset` empties the memory: the same for every architecture."""


def measure_memory(
    model: LanguageModel, data: HeldOut, device: torch.device, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Probes and ablations on the first windows of a split; None for a model without memory.

    A split of few windows is halved between those that are read and those that warm the memory up; with one window
    nothing is left for the latter.
    """
    if not neural_memories(model):
        return None
    windows, targets, lengths = next(replace(data, batch_size=2 * SEQUENCES, sequences=2 * SEQUENCES).read())
    read = (len(windows) + 1) // 2
    tokens, other = torch.from_numpy(windows).to(device).tensor_split([read])
    bytes_, time = int(lengths[:read].sum()), tokens.shape[1] - 1
    segment = math.ceil(time / SEGMENTS)
    probes = [probe.as_dict() for probe in probe_memory(model, tokens[:, :-1])]
    if progress is not None:
        progress(0.5)
    asked = torch.from_numpy(targets[:read]).to(device)
    losses = score_ablations(model, tokens, other[:, :-1] if len(other) else None, segment=segment, targets=asked)
    bits = read * time / math.log(2) / bytes_ if bytes_ else math.nan
    scores = {kind: {"loss": loss, "bits_per_byte": loss * bits} for kind, loss in losses.items()}
    if progress is not None:
        progress(1)
    about = {"sequences": read, "tokens": read * time, "bytes": bytes_, "reset_every": segment}
    return {**about, "probes": probes, "ablations": finite(scores)}


def memory_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The memory sections of results as aligned text; one line where there is no memory."""
    without = {f"{result['architecture']} has no memory: nothing to probe" for result in results if not has(result)}
    return "\n".join([*sorted(without), *(section_text(result) for result in results if has(result))])


def has(result: Mapping[str, Any]) -> bool:
    return "memory" in result


def section_text(result: Mapping[str, Any]) -> str:
    """One result's memory: losses by ablation, then a line or two per layer."""
    section = result["memory"]
    head = f"memory of {result['experiment_name']}  {result['checkpoint']}  {result['split']}"
    lines = [f"{head}  ({section['sequences']} sequences, {section['tokens']:,} tokens)"]
    rows = [["ablation", "loss", "bits/byte", "change of loss"]]
    intact = section["ablations"]["intact"]["loss"]
    for kind, score in section["ablations"].items():
        change = None if None in (score["loss"], intact) else score["loss"] - intact
        name = f"{kind} every {section['reset_every']}" if kind == "reset" else kind
        rows.append([name, text(score["loss"]), text(score["bits_per_byte"]), text(change, "+.4f")])
    lines += aligned(rows)
    lines += aligned(layer_rows(section["probes"]))
    return "\n".join(lines)


def layer_rows(probes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Two rows per layer: its numbers and its cosines by age, and how often the stored value is the nearest.

    The last column is that of the memory before its first write, over all ages.
    """
    places = range(0, len(probes[0]["retrieval"]), 2)
    ages = [str(probes[0]["retrieval"][place]["age"]) for place in places]
    rows = [["layer", "update", "surprise", "stable rank", "half-life", "read at age", *ages, "untouched"]]
    for probe in probes:
        shares = "/".join(text(one["stable_share"], ".1%") for one in probe["utilisation"])
        numbers = [text(probe["update"]), text(probe["surprise"]), shares, span(probe["half_life"])]
        for row, name, title in ([probe["layer"], *numbers], "cosine", "cosine"), ([""] * 5, "top1", "top-1"):
            said = [text(probe["retrieval"][place][name], ".3f") for place in places]
            rows.append([*row, title, *said, text(over_ages(probe["retrieval"], f"initial_{name}"), ".3f")])
    return rows


def over_ages(groups: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The mean over all tokens of all groups, if every group has the number."""
    if any(group[name] is None for group in groups):
        return None
    tokens = sum(group["tokens"] for group in groups)
    return float(sum(group[name] * group["tokens"] for group in groups) / tokens)


def span(lives: Sequence[float | None]) -> str:
    """Half-lives from the shortest to the longest head."""
    known = [math.inf if life is None else life for life in lives]
    ends = ["never" if math.isinf(life) else f"{life:,.0f}" for life in (min(known), max(known))]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def text(number: float | None, form: str = ".4f") -> str:
    return "n/a" if number is None else format(number, form)
