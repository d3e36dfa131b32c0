"""How the operators of memories are differentiated: by an operator each, given what the first left for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.kernels.memory.call import Tokens

COUNT = len(Tokens._fields)


def differentiate(operator: Any, backward: Callable[..., tuple[Tensor, ...]]) -> None:
    """`operator` takes tokens, what is held and a setting, and gives reads, what is held last, and what is kept.

    `backward` takes the tokens, what was kept, the adjoints of the first two, and the setting.
    """

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:COUNT], *output[2:])
        ctx.setting = inputs[COUNT + 1 :]
        ctx.mark_non_differentiable(*output[2:])
        # Torch would make zeros for the copies, which are the largest.
        ctx.set_materialize_grads(False)

    def through(ctx: Any, reads_bar: Tensor | None, last_bar: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
        tokens, kept = ctx.saved_tensors[:COUNT], ctx.saved_tensors[COUNT:]
        values, copies = tokens[2], kept[0]
        reads_bar = torch.zeros_like(values) if reads_bar is None else reads_bar
        last_bar = torch.zeros_like(copies[:, 0], dtype=torch.float32) if last_bar is None else last_bar
        *bars, held_bar = backward(*tokens, *kept, reads_bar, last_bar, *ctx.setting)
        present = [None if token is None else bar.to(token.dtype) for token, bar in zip(tokens, bars, strict=True)]
        return (*present, held_bar, *[None] * len(ctx.setting))

    operator.register_autograd(through, setup_context=keep)
