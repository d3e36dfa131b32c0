"""Derivatives that are written out have no derivative of their own; better to say so than to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def only_first(backward: Callable[P, R]) -> Callable[P, R]:
    """Refuse where a graph of the derivative itself is asked for (`create_graph`)."""

    @wraps(backward)
    def guarded(*arguments: P.args, **named: P.kwargs) -> R:
        if torch.is_grad_enabled():
            raise RuntimeError(
                'this derivative is written out and has no second derivative; a "sequential" memory has one'
            )
        return backward(*arguments, **named)

    return guarded
