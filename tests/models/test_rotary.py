"""Angles of places far on are turned back by whole turns, and mean what they meant."""

from __future__ import annotations

import math

import pytest
import torch

from lockstep.models.rotary import speeds, turns, within_a_turn
from tests.kernels.memories import DEVICE

PLACES = [0, 1, 3, 1_000, 105_614, 105_616, 1_048_576, 16_777_215]


def test_the_same_angles_within_a_turn() -> None:
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(10_000, generator=generator) * 10.0 ** torch.randint(-3, 8, (10_000,), generator=generator)
    angles = torch.cat((angles, -angles, torch.tensor(PLACES)))
    found = within_a_turn(angles)
    assert found.dtype == torch.float32
    assert float(found.abs().max()) <= math.pi * (1 + 1e-6)
    for function in (torch.cos, torch.sin):
        torch.testing.assert_close(function(found.double()), function(angles.double()), rtol=0, atol=3e-7)


@pytest.mark.parametrize("theta", [100.0, 10_000.0])
def test_turns_of_far_places(theta: float) -> None:
    """Angles are rounded to float32, as everywhere; what they mean is not. On a GPU they are within a turn then."""
    positions = torch.tensor([PLACES], device=DEVICE)
    angles = (positions[..., None].float() * speeds(8, theta, torch.float32, positions.device)).double()
    for found, wanted in zip(turns(positions, 8, theta, torch.float32), (angles.cos(), angles.sin()), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=3e-7)
