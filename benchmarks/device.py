"""Seconds and bytes on a device, what it can do at most, and which kernels took the time."""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

PEAK_REPEATS, PEAK_RUNS = 5, 10
LONGEST_NAME = 100


def found(device: torch.device) -> bool:
    """Whether torch can use it; a CPU it always can."""
    on_gpu = device.type == "cuda"
    return not on_gpu or (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())


def seconds_of(run: Callable[[], object], times: int, device: torch.device) -> float:
    """What one run takes when several follow each other: CUDA events around them, or a CPU's clock."""
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - started) / times
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    before.record()
    for _ in range(times):
        run()
    after.record()
    torch.cuda.synchronize(device)
    milliseconds: float = before.elapsed_time(after)
    return milliseconds / 1e3 / times


def allocated(device: torch.device) -> int:
    """Bytes of the tensors that are alive; 0 on a CPU, where nobody counts."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_bytes_of(run: Callable[[], object], others: int, device: torch.device) -> int | None:
    """The most that was allocated while it ran, less what others hold; None on a CPU."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - others


def release(device: torch.device) -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    # A device that an earlier kernel has brought down has nothing to give; whoever uses it next will say so.
    with suppress(torch.AcceleratorError):
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measured_peaks(device: torch.device) -> dict[str, float]:
    """A large product of bfloat16 matrices, and a large copy, whose bytes count once read and once written."""
    side, numbers = (8192, 2**30) if device.type == "cuda" else (256, 2**20)
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)

    def median_of(run: Callable[[], object]) -> float:
        run()
        return statistics.median(seconds_of(run, PEAK_RUNS, device) for _ in range(PEAK_REPEATS))

    return {
        "bf16_matmul_tflops": 2 * side**3 / median_of(lambda: left @ right) / 1e12,
        "copy_gb_per_second": 2 * source.nbytes / median_of(lambda: target.copy_(source)) / 1e9,
    }


class Spent(NamedTuple):
    """On one kernel, or on a CPU one operator, over all runs."""

    name: str
    seconds: float
    calls: int


def kernels_of(run: Callable[[], object], times: int, device: torch.device) -> list[Spent]:
    """Where the time of several runs goes, most first."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities, acc_events=True) as found:
        seconds_of(run, times, device)
    kind = "CUDA" if on_gpu else "CPU"
    events: list[Any] = [one for one in found.key_averages() if one.device_type.name == kind]
    spent = [
        Spent(short(one.key), (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1e6, one.count)
        for one in events
        if not getattr(
            one, "is_user_annotation", False
        )  # such as the optimizer's, which spans kernels that are listed themselves
    ]
    return sorted(spent, key=lambda one: -one.seconds)


def short(kernel: str) -> str:
    """A kernel's name without the namespaces and the return type that all of them have."""
    return re.sub(r"^void |at::native::|\(anonymous namespace\)::|c10::", "", kernel)[:LONGEST_NAME]
