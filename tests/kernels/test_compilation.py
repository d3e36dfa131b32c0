"""Every kernel compiles for the GPUs it is meant for, which needs none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from lockstep.kernels.memory import biases

ROOT = Path(__file__).resolve().parents[2]
MLP = {"anchor", "chain", "chain_backward", "read", "read_backward", "rewrite", "settle"}
COEFFICIENTS = {"coefficients", "coefficients_backward"}


LAUNCHED = {
    "mlp": MLP,
    "mlp,descent": MLP - {"anchor"},
    "hopper": MLP,
    "hopper,descent": MLP - {"anchor"},
    "stale": {"linear_chain"},
    "exact": {"solve"},
    "biases": MLP | {"linear_chain", "linear_settle"},
}


@pytest.mark.parametrize(("memory", "kernels"), LAUNCHED.items(), ids=LAUNCHED)
def test_kernels_compile_for_hopper(memory: str, kernels: set[str], tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", memory, "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {f"{name}_kernel" for name in kernels | COEFFICIENTS} <= set(json.loads(done.stdout.splitlines()[-1]))


def test_constants_fit_32_bits() -> None:
    """Triton 3.6 takes a smaller one for a number of 64 bits, and with it all that it meets."""
    assert torch.finfo(torch.float32).tiny == biases.TINY.value
