"""States are trees of tensors that can be selected, stacked, reset, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.models.state import (
    State,
    load_state,
    map_state,
    named_tensors,
    reset,
    save_state,
    select,
    stack,
    state_bytes,
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def tree(batch: int, offset: float = 0.0) -> State:
    rows = torch.arange(batch, dtype=torch.float32) + offset
    return {
        "position": rows.to(torch.int64),
        "layers": (Pair(rows[:, None].repeat(1, 3), rows.double()), (rows[:, None, None].bfloat16(),)),
    }


def require_equal(actual: State, expected: State) -> None:
    for (name, one), (same_name, other) in zip(named_tensors(actual), named_tensors(expected), strict=True):
        assert name == same_name
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert type(actual["layers"][0]) is Pair
    assert type(actual["layers"]) is tuple


def test_names_and_bytes() -> None:
    names = [name for name, _ in named_tensors(tree(2))]
    assert names == ["state.position", "state.layers.0.0", "state.layers.0.1", "state.layers.1.0"]
    assert state_bytes(tree(2)) == 2 * (8 + 3 * 4 + 8 + 2)


def test_map_walks_several_trees_together() -> None:
    require_equal(map_state(torch.add, tree(3), tree(3)), map_state(lambda tensor: tensor * 2, tree(3)))


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 1], [3]])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_select_gives_rows_in_order(rows: list[int], as_tensor: bool) -> None:
    picked = select(tree(4), torch.tensor(rows) if as_tensor else rows)
    require_equal(picked, stack([tree(1, offset=row) for row in rows]))


def test_stack_then_select_gives_back() -> None:
    batch = stack([tree(2), tree(1, offset=7), tree(3, offset=20)])
    require_equal(select(batch, [2]), tree(1, offset=7))
    require_equal(select(batch, [3, 4, 5]), tree(3, offset=20))


def test_reset_touches_marked_rows_only() -> None:
    state, initial = tree(3, offset=10), tree(3)
    mixed = reset(state, torch.tensor([False, True, False]), initial)
    require_equal(mixed, stack([select(state, [0]), select(initial, [1]), select(state, [2])]))
    require_equal(state, tree(3, offset=10))


def test_saved_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    # Views and expanded tensors are not contiguous; a file must hold them all the same.
    state = map_state(lambda tensor: tensor.flip(0)[::2], tree(6))
    save_state(state, path)
    require_equal(load_state(path, like=tree(1)), state)
