"""Kernels of torch's compiler begin early in graphs of which every kernel loads something, and in no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config

from lockstep.training.compilation import in_turn_unless_all_load


@torch.library.custom_op("lockstep_tests::sum_of_two", mutates_args=())
def _sum_of_two(x: Tensor, y: Tensor) -> Tensor:
    """Opaque, so that both must have been written before it."""
    return x.add(y)


@_sum_of_two.register_fake
def _(x: Tensor, _: Tensor) -> Tensor:
    return torch.empty_like(x)


def sum_of_two(x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = _sum_of_two(x, y)
    return found


def loaded(x: Tensor) -> Tensor:
    return sum_of_two(x * 3, x.softmax(dim=-1)).sum(dim=-1)


def counted(x: Tensor) -> Tensor:
    return sum_of_two(x * 3, torch.arange(4.0).expand(4, 4).contiguous())


def filled(x: Tensor) -> Tensor:
    return sum_of_two(torch.ones_like(x), x * 3)


def counted_where_it_is_used(x: Tensor) -> Tensor:
    return x * 3 + torch.arange(4.0)


@pytest.mark.parametrize(
    ("function", "early"), [(loaded, True), (counted, False), (filled, False), (counted_where_it_is_used, True)]
)
def test_kernels_begin_early_where_all_of_them_load(function: Callable[[Tensor], Tensor], early: bool) -> None:
    found: list[bool] = []

    def seen(nodes: list[Any]) -> list[Any]:
        nodes = in_turn_unless_all_load(nodes)
        found.append(config.triton.enable_pdl)
        return nodes

    torch._dynamo.reset()
    options: dict[str, Any] = {"triton.enable_pdl": True, "_post_fusion_custom_pass": seen}
    before, x = config.triton.enable_pdl, torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.compile(function, options=options)(x), function(x))
    assert found == [early]
    assert config.triton.enable_pdl == before
