"""Every kernel compiles for the GPUs it is meant for, which needs none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
MLP = {"anchor", "chain", "chain_backward", "read", "read_backward", "rewrite", "settle"}
COEFFICIENTS = {"coefficients", "coefficients_backward"}


@pytest.mark.parametrize(("memory", "kernels"), [("mlp", MLP), ("stale", {"linear_chain"}), ("exact", {"solve"})])
def test_kernels_compile_for_hopper(memory: str, kernels: set[str], tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", memory, "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {f"{name}_kernel" for name in kernels | COEFFICIENTS} <= set(json.loads(done.stdout.splitlines()[-1]))
