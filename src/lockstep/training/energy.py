"""Energy that a device has used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

MILLIJOULES = 1000.0


def energy_counter(device: torch.device) -> Callable[[], float] | None:
    """Joules that the whole device has used since its driver was loaded; None where nothing counts them.

    Only differences mean something, and only as long as nobody else uses the device. The counter is NVML's, so that the
    package pynvml must be there; the device is found by its UUID, which CUDA_VISIBLE_DEVICES does not change.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:  # no driver library, a part of a device, or a device too old to count
        return None
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / MILLIJOULES
