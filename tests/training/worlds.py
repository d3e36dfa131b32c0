"""Runs shared by several processes, forked from one that has already imported everything."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import secrets
import socket
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import torch

from lockstep.config.run import RunSpec
from lockstep.errors import UserError
from lockstep.training.run import train
from tests.training.faults import Crash, crashing
from tests.training.processes import GIVE_UP_SECONDS

CRASHED = 3
"""The exit status of a process that crashed as it was told to."""


def forking() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lockstep.training.run", "lockstep.models.architectures"])
    return context


def train_together(run: RunSpec, folder: Path, processes: int, crash_at: int = -1) -> list[int]:
    """Train in a world of so many gloo processes, all of which may crash at one step; their exit statuses."""
    context, port = forking(), free_port()
    worlds = [(run, folder, rank, processes, port, crash_at) for rank in range(processes)]
    members = [context.Process(target=member, args=one) for one in worlds]
    for one in members:
        one.start()
    try:
        return [status(one) for one in members]
    finally:
        for one in members:
            one.kill()


def status(process: ForkServerProcess) -> int:
    process.join(GIVE_UP_SECONDS)
    assert process.exitcode is not None, "a process of the world hangs"
    return process.exitcode


def member(run: RunSpec, folder: Path, rank: int, size: int, port: int, crash_at: int) -> None:
    """One process, told about its world as torchrun tells it."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(GIVE_UP_SECONDS - 5)  # a world that hangs says where
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    try:
        with crashing("a step is taken", crash_at):
            train(run, folder)
    except Crash:
        # At once, as a crash does: torch's own threads may wait for each other when an interpreter ends in order.
        os._exit(CRASHED)
    except UserError:
        os._exit(2)


def free_port() -> int:
    """A port that nobody listens on, outside the range from which systems take ports for connections."""
    while True:
        # Not the seeded generator: test processes that run side by side would choose the same port.
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
