"""Compiling before anybody is measured, by several processes at once.

Of each contestant one layer of each kind is built: all others are like it. What compilers leave on disk is found again
by whoever is measured. What they found best is not to be: the device had other work while they tried it out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from device import release
from gpu_contestants import GUESTS, PEERS
from side_by_side import in_one_line, say
from torch._inductor.runtime.cache_dir_utils import cache_dir

Part = tuple[str, Any]
"""A contestant and a case."""
Play = Callable[[str, Any, argparse.Namespace], object]
"""What compiles all that measuring them will."""


def rehearse(play: Play, parts: Sequence[Part], asked: argparse.Namespace) -> None:
    """As many processes as are asked for; one is none, because whoever is measured compiles what is missing.

    Other packages' models are left out: their kernels may be tried out for minutes.
    """
    parts = [part for part in parts if part[0] not in (*GUESTS, *PEERS)]
    count = min(asked.processes, len(parts))
    if count < 2:
        return
    context = multiprocessing.get_context("spawn")
    alike = argparse.Namespace(**{**vars(asked), "one_of_each": True})
    # Each compiles by processes of its own, all together as many as the machine has cores.
    threads = max((os.cpu_count() or 1) // count, 1)
    running = [context.Process(target=play_all, args=(play, parts[first::count], alike)) for first in range(count)]
    say(f"{count} processes compile beforehand")
    with patch.dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS=str(threads)), all_over(running):
        for one in running:
            one.start()
        for one in running:
            one.join()
            if one.exitcode:
                say(f"a process that compiled beforehand ended with {one.exitcode}; what it leaves is compiled later")


@contextmanager
def all_over(processes: Sequence[Any]) -> Iterator[None]:
    """None of them goes on behind it, also where it is cut off."""
    try:
        yield
    finally:
        for one in processes:
            if one.is_alive():
                one.kill()


def play_all(play: Play, parts: Sequence[Part], asked: argparse.Namespace) -> None:
    """In a process of its own. Who fails will say so again where it is measured."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    for name, case in parts:
        started = time.perf_counter()
        try:
            play(name, case, asked)
        except Exception as error:
            say(f"beforehand: {name}: {in_one_line(error)}")
        else:
            say(f"beforehand: {name} at {case.length} is compiled after {time.perf_counter() - started:.1f} s")
        release(asked.device)


@contextmanager
def nothing_found_before() -> Iterator[None]:
    """Inside, torch's compiler knows nothing of what it once found best. Kernels that are compiled are kept.

    It tries out kernels of single rows, which take 2 µs, and keeps on disk what it found: maybe on a device that had
    other work.
    """
    kernels = Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache")
    # What torch itself adds to the environment, such as folders inside this one, is taken back as well.
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        patch.dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=folder,
            TRITON_CACHE_DIR=os.environ.get("TRITON_CACHE_DIR") or str(kernels),
        ),
    ):
        yield


@contextmanager
def nothing_found_inside() -> Iterator[None]:
    """Behind it, torch's compiler has all that was compiled inside, but nothing that it found best there."""
    before = found_best()
    try:
        yield
    finally:
        for found in found_best() - before:
            found.unlink()


def found_best() -> set[Path]:
    return set(Path(cache_dir()).rglob("*.best_config"))
