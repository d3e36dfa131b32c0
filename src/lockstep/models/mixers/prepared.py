"""What shapes alone decide, made once: a compiled model finds it ready, where it would make it again in every call.

Importing this module loads torch's compiler, so that whoever needs it does so on use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch

T = TypeVar("T")


class Shelf:
    """What is ready, each thing an attribute: of those a compiler looks at the one it is asked for, and no other."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}

    def name(self, make: Callable[..., object], *arguments: Hashable) -> str:
        """Where the thing stands, after making it if it was not there."""
        key = (make, *arguments)
        if key not in self._names:
            name = f"{make.__name__}_{len(self._names)}"
            # What is made for an inference may be wanted by a derivative later.
            with torch.inference_mode(False), torch.no_grad():
                setattr(self, name, make(*arguments))
            self._names[key] = name
        return self._names[key]


SHELF = Shelf()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch leaves it untyped
def placed(make: Callable[..., object], *arguments: Hashable) -> str:
    """The compiler calls this as it is, once, and keeps the answer."""
    return SHELF.name(make, *arguments)


def prepared(make: Callable[..., T], *arguments: Hashable) -> T:
    """make(*arguments), from the second time on as it was made.

    Arguments are numbers, dtypes and devices, which a compiler hands on as they are; of tuples it does not. Lengths go
    through `operator.index`, so that where they are symbols one is compiled for.
    """
    found: T = getattr(SHELF, placed(make, *arguments))
    return found
