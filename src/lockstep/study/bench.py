"""Benchmarks of models side by side: their table, their files and their picture.

bench.json               every number with its spread, what was measured, and on what
bench.csv                the numbers alone
benchmark_results.png    time and perplexity over the length; also as .svg
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lockstep.durable import whole_file
from lockstep.errors import UserError
from lockstep.kernels.record import backend, recorded_in
from lockstep.progress import showing
from lockstep.report.bench import write_picture
from lockstep.report.files import table
from lockstep.study.bench_cells import BenchSettings, Cell, Precision, count_steps, measure_cells, streaming
from lockstep.study.bench_subjects import Benched, find_benched
from lockstep.training.distribution import World, find_device
from lockstep.training.provenance import provenance

DEFAULT = ("transformer++", "titans-mac")
MOST = 2**40
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def bench(
    names: Sequence[str], settings: BenchSettings, sizes: Mapping[str, int], device: str, folder: Path
) -> tuple[list[Cell], list[Path]]:
    """Measure whatever is named, by default a Transformer and a Titans; the numbers, and the files they are in.

    sizes: dim, depth and heads of untrained models.
    """
    place = bench_device(device)
    subjects = find_benched(names or DEFAULT, sizes, max(settings.lengths) + 1)
    make_folder(folder)
    cells: list[Cell] = []
    backends: dict[str, str] = {}
    for subject in subjects:
        with recorded_in(set()):
            with showing(subject.label, "steps", count_steps(settings)) as progress:
                cells += measure_cells(subject, settings, place, progress.add)
            if settings.streamed:
                cells += streaming(subject, settings, place)
            backends[subject.label] = backend()
    return cells, write_bench(subjects, cells, settings, place, backends, folder)


def numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """What a user wrote with commas, ascending."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not least <= found[0] <= found[-1] <= MOST:
        raise UserError(f"{option} {text}: expected whole numbers from {least} on, with commas between them")
    return tuple(found)


def precision(text: str) -> Precision:
    for known in PRECISIONS:
        if text == known:
            return known
    raise UserError(f"--precision {text}: expected {' or '.join(PRECISIONS)}")


def bench_device(asked: str) -> torch.device:
    try:
        return find_device(asked, World())
    except UserError as error:
        raise UserError(str(error).replace("training.device", "--device")) from None


def make_folder(folder: Path) -> None:
    """Before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be used as a folder: {error.strerror}; choose another --output-dir"
        ) from None


def write_bench(
    subjects: Sequence[Benched],
    cells: Sequence[Cell],
    settings: BenchSettings,
    device: torch.device,
    backends: Mapping[str, str],
    folder: Path,
) -> list[Path]:
    """The paths that were written; the picture comes last. By their labels, `backends` are what ran of each."""
    here = provenance(device)
    del here["kernel_backend"]  # each model has its own
    about = {
        "asked": asdict(settings),
        "precision": settings.precision,
        **here,
        "models": [{**identity(subject), "kernel_backend": backends[subject.label]} for subject in subjects],
        "cells": [cell.as_dict() for cell in cells],
    }
    whole_file(folder / "bench.json", json.dumps(about, indent=1) + "\n")
    whole_file(folder / "bench.csv", table([cell.as_dict() for cell in cells]))
    batch = max(settings.batch_sizes)
    times = [
        {"contestant": one.model, "length": one.length, "milliseconds": 1000 * one.value}
        for one in cells
        if one.quantity == "read_seconds" and one.batch == batch and one.value is not None
    ]
    scores = [
        {"contestant": one.model, "length": one.length, "perplexity": one.value}
        for one in cells
        if one.quantity == "perplexity" and one.value is not None
    ]
    drawn = write_picture([subject.label for subject in subjects], times, scores, batch, folder)
    return [folder / "bench.json", folder / "bench.csv", *drawn]


def identity(subject: Benched) -> dict[str, Any]:
    """What a number is a number of."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in subject.spec.build().parameters())
    return {
        "name": subject.label,
        "where": subject.where,
        "checkpoint": None if subject.checkpoint is None else subject.checkpoint.label,
        "checkpoint_digest": None if subject.checkpoint is None else subject.checkpoint.digest,
        "parameters": parameters,
        "model_config": {"architecture": subject.spec.architecture, **subject.spec.model_dump(mode="json")},
    }
