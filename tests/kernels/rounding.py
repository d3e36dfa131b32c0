"""The torch forms compute in float32 by design; here is what they would give if matrix units took 16-bit operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "baddbmm_": 1}
"""Operations of torch, and the place of the first operand: before it stands what is added."""


class ProductsOfBfloat16(TorchDispatchMode):
    """Inside, the operands of every matrix product are rounded to bfloat16; sums and all else stay as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first = PRODUCTS.get(func.overloadpacket.__name__)
        if first is not None:
            self.seen += 1
            args = (*args[:first], *map(rounded, args[first : first + 2]), *args[first + 2 :])
        return func(*args, **(kwargs or {}))


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)
