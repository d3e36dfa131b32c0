"""Training a study: all contestants of one repeat side by side, or one after another where memory is short."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from lockstep.config.run import RunSpec
from lockstep.study.plan import StudyPlan
from lockstep.study.run_status import branches, divergence
from lockstep.training.run import train_side_by_side

Runs = Sequence[tuple[RunSpec, Path]]
MEMORY_SHARE = 0.8
"""Of what is free; estimates are estimates."""


def train_runs(runs: Runs, together: bool) -> None:
    """Bring every run to its last step; one that diverged stays as it is, because it would again."""
    going = [(run, folder) for run, folder in runs if not any(map(divergence, (folder, *branches(folder))))]
    groups = [going] if together else [[one] for one in going]
    for group in groups:
        if group:
            train_side_by_side(group)


def fit_together(plan: StudyPlan) -> bool:
    """Whether all contestants' weights, and the activations of one, are estimated to fit into free memory."""
    if plan.study.side_by_side is not None:
        return plan.study.side_by_side
    needed = [one.estimate for one in plan.contestants]
    weights, activations = sum(one.weight_bytes for one in needed), max(one.activation_bytes for one in needed)
    return weights + activations < MEMORY_SHARE * free_bytes(plan.device)


def free_bytes(device: torch.device) -> int:
    """Memory that nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    names = ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES")
    pages = next(os.sysconf(name) for name in names if name in os.sysconf_names)
    return pages * os.sysconf("SC_PAGE_SIZE")
