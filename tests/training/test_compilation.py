"""Kernels of torch's compiler begin early in graphs of which every kernel loads something, and in no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config

from lockstep.models.registry import build
from lockstep.training import compilation
from lockstep.training.compilation import compile_steps, in_turn_unless_all_load


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


def telling(found: list[bool]) -> Callable[[list[Any]], list[Any]]:
    """The same, which notes of each graph whether its kernels are going to begin early."""

    def told(nodes: list[Any]) -> list[Any]:
        nodes = in_turn_unless_all_load(nodes)
        found.append(config.triton.enable_pdl)
        return nodes

    return told


@pytest.mark.parametrize(
    ("function", "early"), [(loaded, True), (counted, False), (filled, False), (counted_where_it_is_used, True)]
)
def test_kernels_begin_early_where_all_of_them_load(function: Callable[[Tensor], Tensor], early: bool) -> None:
    found: list[bool] = []
    torch._dynamo.reset()
    options: dict[str, Any] = {"triton.enable_pdl": True, "_post_fusion_custom_pass": telling(found)}
    before, x = config.triton.enable_pdl, torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.compile(function, options=options)(x), function(x))
    assert found == [early]
    assert config.triton.enable_pdl == before


# torch's compiler does so itself where it traces a derivative that is written out.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "asked", "wanted"),
    [("retnet", "1", {True}), ("retnet", "0", {False}), ("ttt-linear", "1", {True, False})],
)
@torch.inference_mode()
def test_steps_are_compiled_so(name: str, asked: str, wanted: set[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """That TTT keeps everything is said by a kernel that loads nothing."""
    found: list[bool] = []
    monkeypatch.setenv("LOCKSTEP_PDL", asked)
    monkeypatch.setattr(compilation, "in_turn_unless_all_load", telling(found))
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=1, heads=2).eval()
    tokens = torch.randint(17, (1, 6), generator=torch.Generator().manual_seed(0))
    _, state = model.step(tokens[:, :5], model.initial_state(1))
    said, _ = model.step(tokens[:, 5:], state)
    torch._dynamo.reset()
    compile_steps(model)
    torch.testing.assert_close(model.step(tokens[:, 5:], state)[0], said)
    assert set(found) == wanted
