"""Bytes counted while tensors come and go, against sums known beforehand."""

from __future__ import annotations

import pytest
import torch

from lockstep.evaluation.live_bytes import held_bytes, live_bytes

FLOAT = 4


def test_what_was_let_go_does_not_count_any_more() -> None:
    with live_bytes() as counted:
        x = torch.zeros(100)
        assert (counted.held, counted.peak) == (100 * FLOAT, 100 * FLOAT)
        del x
        assert counted.held == 0
        y = torch.zeros(60)
        z = y + 1
        assert (counted.held, counted.peak) == (120 * FLOAT, 120 * FLOAT)
        del y
        assert counted.held == 60 * FLOAT
        del z
    assert (counted.held, counted.peak) == (0, 120 * FLOAT)


def test_what_was_there_before_never_counts() -> None:
    old, view = torch.ones(50), torch.ones(3, 3)[1:]
    with live_bytes() as counted:
        old.add_(1)
        again = old.view(5, 10).t()[2:]
        shared = view.detach()
        del old
        assert counted.peak == 0
        new = again.sum()
    assert counted.peak == new.untyped_storage().nbytes() == FLOAT
    assert shared.shape == view.shape


def test_a_view_keeps_the_whole_alive_and_counts_once() -> None:
    with live_bytes() as counted:
        x = torch.zeros(100)
        part = x[:2]
        parts = part.split(1)
        del x, part
        assert counted.held == 100 * FLOAT
        del parts
        assert counted.held == 0
    assert counted.peak == 100 * FLOAT


@pytest.mark.parametrize("inference", [True, False])
def test_a_temporary_counts_while_it_lives(inference: bool) -> None:
    start = torch.ones(10)
    with torch.inference_mode(inference), live_bytes() as counted:
        result = (start * 2).exp().sum()
    assert counted.peak == 2 * 10 * FLOAT, "the product and its exponential, before the product goes"
    assert counted.held == result.untyped_storage().nbytes()


def test_a_restart_keeps_what_is_held() -> None:
    with live_bytes() as counted:
        kept = torch.zeros(10)
        gone = torch.zeros(1000)
        del gone
        counted.restart()
        assert counted.peak == 10 * FLOAT
        more = torch.zeros(5)
    assert counted.peak == (len(kept) + len(more)) * FLOAT


def test_backward_is_seen_too() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with live_bytes() as counted:
        weight.exp().sum().backward()
        assert counted.held == 1000 * FLOAT, "the gradient is left"
    assert 2000 * FLOAT <= counted.peak <= 2002 * FLOAT, "the kept exponential and the gradient; a sum and its own"
    weight.grad = None
    assert counted.held == 0, "the end of a tensor is noticed after the block as well"


def test_lists_of_results_and_of_arguments() -> None:
    with live_bytes() as counted:
        parts = [torch.zeros(10) for _ in range(4)]
        whole = torch.cat(parts)
        torch._foreach_add_(parts, 1)
        assert counted.held == (40 + 40) * FLOAT
        assert len(whole) == 40


def test_a_cpu_is_counted_by_its_storages() -> None:
    with held_bytes(torch.device("cpu")) as counted:
        x = torch.zeros(7)
    assert counted.peak == x.untyped_storage().nbytes()
