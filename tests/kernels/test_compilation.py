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
HOPPER = "90"
"""As NVIDIA numbers architectures."""
COEFFICIENTS = {"coefficients", "coefficients_backward"}
DESCENT = COEFFICIENTS | {"chain", "chain_backward", "read", "read_backward", "rewrite", "settle"}
MLP = DESCENT | {"anchor"}
RETAINED = DESCENT - {"chain", "chain_backward"} | {"retained_chain", "retained_chain_backward"}
LINEAR = COEFFICIENTS | {
    "linear_chain",
    "linear_chain_backward",
    "linear_read",
    "linear_read_backward",
    "linear_settle",
}
STALE = LINEAR | {"linear_anchor", "restate", "through_head"}
DECAYS = {"decays", "through_decays"}

LAUNCHED = {
    "mlp": MLP,
    "mlp,descent": DESCENT,
    "hopper": MLP,
    "hopper,descent": DESCENT,
    "retained": RETAINED,
    "hopper,retained": RETAINED,
    "stale": STALE,
    "exact": LINEAR | {"solve", "through_solution"},
    "biases": MLP | STALE,
    "recall": {"recall", "recall_backward", "recall_matrices"},
    "token": {"token", "token_recall"},
    "decayed": DECAYS | {"chain", "read", "adjoint"},
    "delta": DECAYS | {"solve", "write", "delta_read", "unwrite", "delta_adjoint"},
    "recurrence token": {"recur"},
    "channel": {"channel_decays", "channel_chain", "channel_read", "channel_adjoint"},
    "selective": {"segment", "join", "read", "adjoint"},
    "rows": {"rows", "rows_backward"},
    "gated": {"gated", "gated_backward"},
    "joined": {"joined", "joined_backward"},
    "token rows": {"token_rows"},
    "window": {"turn", "window", "window_queries", "window_keys"},
    "look": {"look"},
    "overlapping": {"token", "token_recall", "recur", "token_rows", "look", "gated", "joined"},
}
"""What is asked of `compiled`, and the kernels of each: no more and no less."""


@pytest.mark.parametrize(("section", "kernels"), LAUNCHED.items(), ids=LAUNCHED)
def test_kernels_compile_for_hopper(section: str, kernels: set[str], tmp_path: Path) -> None:
    # Another process: this one may be interpreting, and what it decorated cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled", section, HOPPER]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) == {f"{name}_kernel" for name in kernels}


def test_constants_fit_32_bits() -> None:
    """Triton 3.6 takes a smaller one for a number of 64 bits, and with it all that it meets."""
    assert torch.finfo(torch.float32).tiny == biases.TINY.value
