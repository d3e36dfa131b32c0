"""Energy is counted where a device counts it, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from lockstep.training.energy import energy_counter


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_a_device_without_a_counter_has_none(kind: str) -> None:
    assert energy_counter(torch.device(kind)) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_has_none() -> None:
    assert energy_counter(torch.device("cuda")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_busy_device_uses_energy() -> None:
    pytest.importorskip("pynvml")
    counter = energy_counter(torch.device("cuda"))
    if counter is None:
        pytest.skip("the device does not count")
    before, x = counter(), torch.ones(4096, 4096, device="cuda")
    while counter() == before:
        x = x @ x * 0
    assert counter() > before
