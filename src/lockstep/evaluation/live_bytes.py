"""How many bytes of tensors are held at once, counted exactly where the device does not count them itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(Protocol):
    """What is held beyond what was held at the beginning."""

    @property
    def peak(self) -> int:
        """The most bytes at once, since the beginning or the last restart."""

    def restart(self) -> None:
        """Look for a new peak from here on; what is held now goes on counting."""


class LiveBytes(TorchDispatchMode):
    """Follows every storage from the operation that makes it to its end.

    Storages that are older than the block do not count, whoever looks at them. What a kernel allocates and frees inside
    one operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it unannotated
        self.held = 0
        self.peak = 0
        self._known: set[int] = set()

    def restart(self) -> None:
        self.peak = self.held

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {address(tensor) for tensor in tensors((args, kwargs))}
        for tensor in tensors(result):
            if address(tensor) not in given and address(tensor) not in self._known:
                self._follow(tensor.untyped_storage())
        self.peak = max(self.peak, self.held)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), storage._cdata
        self._known.add(key)
        self.held += size
        weakref.finalize(storage, self._end, key, size).atexit = False

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


class CudaBytes:
    """The same by the allocator of a CUDA device, which rounds every allocation up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = torch.cuda.memory_allocated(device)
        self.restart()

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self.before

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    """The same for all tensors on one storage."""
    place: int = tensor.untyped_storage()._cdata
    return place


@contextmanager
def live_bytes() -> Iterator[LiveBytes]:
    """Counts what the block makes, on any device; slows it down."""
    with LiveBytes() as counter:
        yield counter


@contextmanager
def held_bytes(device: torch.device) -> Iterator[Held]:
    """By the device's own count where it has one."""
    if device.type == "cuda":
        yield CudaBytes(device)
        return
    with live_bytes() as counter:
        yield counter
