"""A text read in pieces: the same as read at once, with the memory of one piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.evaluation.live_bytes import live_bytes
from lockstep.evaluation.reading import read_in_pieces
from lockstep.models.registry import build
from tests.evaluation.memory_models import SMALL, TITANS, random_model, random_tokens

BOUNDED = ("titans-lmm", "titans-mac", "gated-deltanet", "mamba2", "lstm")
TIME = 45


@pytest.mark.parametrize("piece", [1, 7, 16, 44, 64])
@pytest.mark.parametrize("architecture", [*BOUNDED, "transformer++"])
def test_pieces_are_the_whole(architecture: str, piece: int) -> None:
    model, tokens = random_model(architecture), random_tokens(3, TIME)
    with torch.no_grad():
        whole = model(tokens)
    starts, parts = zip(*read_in_pieces(model, tokens, piece), strict=True)
    assert list(starts) == list(range(0, TIME, piece))
    assert [part.shape[1] for part in parts] == [min(piece, TIME - start) for start in starts]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


def peak(architecture: str, time: int, piece: int, **fields: Any) -> int:
    torch.manual_seed(0)
    model = build(architecture, **SMALL, **TITANS.get(architecture, {}), **fields).eval()
    tokens = random_tokens(1, time)
    with live_bytes() as counted:
        for _ in read_in_pieces(model, tokens, piece):
            pass
    return counted.peak


@pytest.mark.parametrize("architecture", BOUNDED)
def test_memory_does_not_grow_with_the_text(architecture: str) -> None:
    short, long = (peak(architecture, times * 32, 16) for times in (1, 16))
    assert short <= long <= 1.1 * short
    assert peak(architecture, 64, 64) > 1.3 * short, "longer pieces hold more, so that the count sees something"


def test_a_cache_does_grow() -> None:
    short, long = (peak("transformer++", times * 64, 32) for times in (1, 16))
    assert long > 4 * short
