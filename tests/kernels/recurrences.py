"""What tests of our kernels of recurrences share: cases to draw, and the comparison with the torch form in float64.

Without a GPU kernels run in Triton's interpreter, on small cases. Both forms are given the same rounded numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.kernels.recurrences.decayed import CHUNK as OF_MODELS
from lockstep.kernels.recurrences.decayed import token_wise
from tests.kernels.memories import DEVICE
from tests.memory.cases import Named

ON_A_GPU = torch.cuda.is_available()
on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
CHUNK = OF_MODELS if ON_A_GPU else 16
"""Tokens worked on as one: narrower tiles are nothing to a GPU in 16 bits, and wider ones take the interpreter long."""
EXACTLY, ROUNDED = 1e-4, 1e-2
"""Relative errors of norms with tokens of float32 and of bfloat16."""
BOUNDS = {torch.float32: EXACTLY, torch.bfloat16: ROUNDED}
in_each_precision = pytest.mark.parametrize("low", BOUNDS, ids=str)
KEEPS = ("slowly", "random", "little", "nothing", "everything", "now and then")
"""Gates of every recurrence that has some."""

Form = Callable[..., tuple[Tensor, Tensor]]
"""From the tensors of a case, in their order, to reads and the last state."""
Takes = Callable[[Tensor, Tensor], bool]
"""Whether kernels should run on keys and values."""
Drawn = TypeVar("Drawn", bound=NamedTuple)
"""A case: all that a recurrence is given, by name. What may be absent is None."""


class Size(NamedTuple):
    """Heads and how wide they are; `chunks` of `chunk` tokens."""

    heads: int = 2
    chunks: int = 3
    key_dim: int = 16
    value_dim: int = 32
    chunk: int = CHUNK
    batch: int = 1


SIZES = {
    "batch": Size(heads=3, batch=2, chunks=2),
    "one chunk": Size(chunks=1),
    "many chunks": Size(heads=1, chunks=7),
    "odd widths": Size(key_dim=5, value_dim=15),
    "blocks of values": Size(heads=1, chunks=2, value_dim=160, batch=2),
    "blocks of keys": Size(chunks=2, key_dim=128),
}
"""For kernels that take keys of any width."""


def normals() -> Callable[..., Tensor]:
    """What draws numbers in any shape, the same on every machine."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return normal


def drawn_keep(normal: Tensor, keep: str) -> Tensor:
    """Logarithms of shares, weak and strong, of 0 and 1, and of anything with zeros among it."""
    plain = -normal.abs()
    sometimes = plain.masked_fill(normal > 1, -1e4).masked_fill(normal < -1.5, -torch.inf)
    return {
        "slowly": plain / 50,
        "as a model": F.logsigmoid(normal) / 16,
        "random": plain,
        "little": 30 * plain,
        "e^-30": torch.full_like(normal, -30.0),
        "1 - 1e-4": torch.full_like(normal, -1e-4),
        "nothing": torch.full_like(normal, -1e4),
        "everything": torch.zeros_like(normal),
        "now and then": sometimes.masked_fill(normal.abs() < 0.3, 0.0),
    }[keep]


def drawn_keep_if_any(normal: Tensor, keep: str) -> Tensor | None:
    """There is no gate where "all" is kept."""
    return None if keep == "all" else drawn_keep(normal, keep)


def inputs(case: NamedTuple) -> Named:
    """Every tensor that is there, by name."""
    return {name: x for name, x in case._asdict().items() if x is not None}


def each(function: Callable[[Tensor], Tensor], case: Drawn) -> Drawn:
    """A case with a function applied to every tensor that is there."""
    return case._replace(**{name: function(x) for name, x in inputs(case).items()})


def on_device(case: Drawn) -> Drawn:
    return each(lambda x: x.to(DEVICE), case)


def everything(case: NamedTuple, found: tuple[Tensor, Tensor], adjoints: torch.dtype) -> Named:
    """What came out and the gradients of all that went in, in double precision; adjoints are the same for any."""
    given, generator = inputs(case), torch.Generator().manual_seed(5)
    drawn = [torch.randn(x.shape, generator=generator).to(adjoints).to(x) for x in found]
    gradients = torch.autograd.grad(found, list(given.values()), drawn)
    named = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: x.detach().double() for name, x in {"reads": found[0], "state": found[1], **named}.items()}


def require_close(found: Named, wanted: Named, bound: float) -> None:
    assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in wanted.items()}
    # Where nothing is kept some gradients are none but for what no number holds.
    far = {name: float((found[name] - x).norm() / x.norm().clamp_min(1e-6)) for name, x in wanted.items()}
    assert {name: error for name, error in far.items() if not error < bound} == {}


class Recurrence(NamedTuple):
    """A recurrence by torch and by our kernels."""

    name: str
    """As the record of what ran has it."""
    form: Form
    kernels: Form
    adjoints: torch.dtype = torch.bfloat16
    """What adjoints are numbers of: most kernels multiply them in 16 bits."""
    reads: torch.dtype = torch.float32
    """What kernels say in; the last state is in 32 bits in any case."""

    def by_torch(self, case: NamedTuple) -> Named:
        exact = each(lambda x: x.detach().double().requires_grad_(), case)
        return everything(exact, self.form(*exact), self.adjoints)

    def by_kernels(self, case: NamedTuple) -> Named:
        """In the precision in which each tensor comes."""
        tracked = each(lambda x: x.detach().clone().requires_grad_(), case)
        found = self.kernels(*tracked)
        assert f"({self.name})" in backend()
        assert [x.dtype for x in found] == [self.reads, torch.float32]
        return everything(tracked, found, self.adjoints)

    def require_close(self, case: NamedTuple, bound: float) -> None:
        """Reads, states and gradients."""
        require_close(self.by_kernels(case), self.by_torch(case), bound)

    def require_given_left_alone(self, case: NamedTuple) -> None:
        """Nothing that the kernels are given is written over, the state least of all."""
        before = inputs(each(torch.clone, case))
        self.kernels(*case)
        assert [name for name, x in inputs(case).items() if not torch.equal(x, before[name])] == []

    def require_whole_chunks_taken(self, takes: Takes, case: NamedTuple, misfit: Tensor) -> None:
        """Under bfloat16 autocast on a GPU; all else is left to others, as are keys of a width that does not fit."""
        keys, values = case[1:3]
        assert not takes(keys, values)
        if not ON_A_GPU:
            return
        with torch.autocast("cuda", torch.bfloat16):
            assert takes(keys, values)
            assert not takes(keys[:, :, :100], values[:, :, :100])
            assert not takes(misfit, values)
            self.form(*case)
        assert f"({self.name})" in backend()
        with torch.autocast("cuda", torch.float16):
            assert not takes(keys, values)


def require_operator(
    operator: Any, case: NamedTuple, tokens: int, chunk: int, low: torch.dtype = torch.float32
) -> None:
    """Torch's own examination, where so many of a case's tensors have tokens before heads, rounded to `low`."""
    given = [*(token_wise(x, low) for x in case[:tokens]), *case[tokens:]]
    examined = tuple(x.detach().requires_grad_() for x in given)
    torch.library.opcheck(operator, (*examined, chunk), atol=1e-4, rtol=1e-4)
