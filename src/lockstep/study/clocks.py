"""What clocks said: of training, from timings.jsonl, and of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.evaluation.timing import spread
from lockstep.report.results import BatchTime, Clock, Inference, Measured, Profile, Spread, Streamed, Tick
from lockstep.study.run_results import found_in, stored_in
from lockstep.study.run_status import run_status
from lockstep.training.run_folder import read_log

MOST_TICKS = 60
OF_A_MODEL = ("inference", "streamed", "profile")
"""Files in a run's folder `measured`."""


def measured_of(folders: Sequence[Path]) -> Measured:
    """All repeats' clocks, and what was measured of the first repeat's model."""
    metadata: dict[str, Any] = next((found for one in folders if (found := run_status(one).metadata)), {})
    inference, streamed, profiled = (found_in(folders[0], name, "measured") for name in OF_A_MODEL)
    clocks = (clock(folder) for folder in folders)
    return Measured(
        device=" and ".join(devices(folders)),
        kernel_backend=str(metadata.get("kernel_backend")),
        clocks=tuple(one for one in clocks if one is not None),
        inference=tuple(Inference(**one) for one in inference.get("inference", ())),
        batches=tuple(BatchTime(**one) for one in inference.get("batches", ())),
        streamed=tuple(Streamed(**one) for one in streamed.get("streamed", ())),
        profiles=tuple(Profile(**one) for one in profiled.get("profiles", ())),
        training_peak_bytes=profiled.get("training_peak_bytes"),
    )


def devices(folders: Sequence[Path]) -> list[str]:
    """On which runs were trained, and the first one's model was measured."""
    models = (stored_in(folders[0], name, "measured") for name in OF_A_MODEL)
    return list(dict.fromkeys([*trained_on(folders), *(one["device"] for one in models if one)]))


def trained_on(folders: Sequence[Path]) -> list[str]:
    """The devices of runs that have a checkpoint, each once: a study may go on elsewhere."""
    runs = (run_status(folder).metadata for folder in folders)
    return list(dict.fromkeys(one["device"] for one in runs if one))


def clock(folder: Path) -> Clock | None:
    """How long training took, without what else was done meanwhile; the first line warms up and gives no rate."""
    log = folder / "timings.jsonl"
    lines = read_log(log) if log.exists() else []
    if not lines:
        return None
    seconds = np.cumsum([line["seconds"] for line in lines])
    counted = all("joules" in line for line in lines)
    joules = np.cumsum([line["joules"] for line in lines]) if counted else None
    places = sorted({*range(0, len(lines), -(-len(lines) // MOST_TICKS)), len(lines) - 1})
    rates = [line["tokens_per_second"] for line in lines[1:]]
    return Clock(
        data_seed=int(folder.name.rpartition("-")[2]),
        ticks=tuple(
            Tick(
                step=lines[place]["step"],
                seconds=float(seconds[place]),
                joules=None if joules is None else float(joules[place]),
            )
            for place in places
        ),
        tokens_per_second=Spread(**asdict(spread(rates))) if rates else None,
    )
