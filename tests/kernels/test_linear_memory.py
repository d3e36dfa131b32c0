"""The form "kernel" of memories of one matrix is the definition, with gradients at chunk starts and at every token.

Without a GPU the kernels run in Triton's interpreter, on small memories. Both forms are given the same rounded numbers,
and the definition computes with them in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.record import backend
from lockstep.memory import Form, Gates, Memory, MemorySpec, Outer, begin, stream
from lockstep.memory.kernel import unsuited
from tests.kernels.memories import DEVICE, each_tensor, errors, everything, in_precision
from tests.kernels.rounding import ProductsOfBfloat16
from tests.memory.cases import Case, Fields, assert_close, held

pytest.importorskip("triton")

from lockstep.kernels.memory import linear_operator as operator

ON_A_GPU = torch.cuda.is_available()
EXACTLY, AT_CORNERS = 1e-4, 1e-3
"""Relative errors of norms with tokens of float32."""
ROUNDED, GATES_ROUNDED, BESIDE = 1e-2, 2e-2, 1.5
"""The same with bfloat16: of all tensors, of the gates' gradients, and on average beside torch with such products."""

DESCENT: Fields = {"rule": "gradient-descent"}
ANCHORED: Fields = {"decay_to": "initial"}
STALE: dict[str, Fields] = {
    "titans": {},
    "delta,anchored": {**DESCENT, **ANCHORED},
    "ttt": {**DESCENT, "norm": True, "residual": True},
    "whole": {**ANCHORED, "norm": True, "residual": True},
    "l3,residual": {**ANCHORED, "bias": "lp", "p": 3, "residual": True},
    "huber": {"bias": "huber"},
    "huber,norm": {**DESCENT, **ANCHORED, "bias": "huber", "norm": True},
    "dot": {**ANCHORED, "bias": "dot", "residual": True},
    "dot,descent": {**DESCENT, "bias": "dot"},
}
"""Gradients at the starts of chunks."""
EXACT: dict[str, Fields] = {
    "every token": {},
    "every token,descent": {**DESCENT},
    "every token,whole": {**ANCHORED, "residual": True},
    "every token,descent,anchored": {**DESCENT, **ANCHORED},
    "every token,dot": {**ANCHORED, "bias": "dot"},
}
"""Gradients at every token."""
CORNERED: dict[str, Fields] = {
    "l1.5": {**ANCHORED, "bias": "lp", "p": 1.5, "residual": True},
    "coordinate": {**DESCENT, "bias": "huber", "huber_form": "coordinate"},
    "yaad": {**DESCENT, "bias": "huber", "huber_form": "switch", "norm": True, "residual": True},
}
"""Losses whose gradients jump, or nearly."""
POINTS = {**STALE, **EXACT, **CORNERED}


class Size(NamedTuple):
    """Keys `width` and values `out` wide; `span` tokens are a chunk, or a tile where each has a gradient."""

    width: int = 16
    out: int = 16
    span: int = 16
    batch: int = 1
    heads: int = 2


SMALL = Size()


def draw(name: str, length: int, size: Size = SMALL, seed: int = 0, samples: bool = False, **fields: Any) -> Case:
    """Keys of about unit length, everything forgotten now and then, and exact zeros in every gate; of float32.

    A threshold of zero is a corner where derivatives are anyone's choice: there are none with the loss by coordinates.
    """
    by_token = name in EXACT
    place = {"chunk": 1, "tile": size.span} if by_token else {"chunk": size.span}
    spec = MemorySpec(**{"structure": "linear", **POINTS[name], **place, **fields})
    assert spec.exact == by_token
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=random) * scale

    def holed(gate: Tensor) -> Tensor:
        return gate.masked_fill(torch.rand(gate.shape, generator=random) < 0.1, 0.0)

    leading, matrix = (size.batch, size.heads), (size.width, size.out)
    rows = (*leading, length)
    threshold = 0.2 + F.softplus(normal(*rows)) * (1.0 if name == "coordinate" else 3.0)
    gates = Gates(
        keep=holed((normal(*rows) + 3).sigmoid()),
        rate=holed(normal(*rows).sigmoid() * (1.0 if by_token else 4 / size.span)),
        momentum=holed(normal(*rows).sigmoid()) if spec.has_momentum else None,
        threshold=(threshold if name == "coordinate" else holed(threshold)) if spec.bias == "huber" else None,
    )
    anchor = normal(*(leading if samples else leading[1:]), *matrix, scale=size.width**-0.5)
    velocity = normal(*leading, *matrix, scale=0.1)
    case = Case(
        spec=spec,
        queries=normal(*rows, size.width, scale=size.width**-0.5),
        keys=normal(*rows, size.width, scale=size.width**-0.5),
        values=normal(*rows, size.out),
        gates=gates,
        memory=Memory((normal(*leading, *matrix),), (velocity,) if spec.has_momentum else None),
        outer=Outer(
            gain=1 + normal(size.heads, size.out, scale=0.3) if spec.norm else None,
            shift=normal(size.heads, size.out, scale=0.3) if spec.norm else None,
            initial=(anchor,) if spec.decay_to == "initial" else None,
        ),
    )
    return each_tensor(lambda x: x.to(DEVICE), case)


def too_large(found: dict[str, float], bound: float, gates_bound: float) -> dict[str, float]:
    return {name: error for name, error in found.items() if not error < (gates_bound if "gates." in name else bound)}


def require_close(case: Case, bound: float) -> None:
    """Reads, the last memory and every gradient are those of the definition."""
    definition: Form = "sequential" if case.keys.shape[2] < 100 else "chunked"
    found = errors(everything(case, "kernel"), everything(each_tensor(Tensor.double, case), definition))
    assert too_large(found, bound, bound) == {}
    assert "(linear memory)" in backend()


@pytest.mark.parametrize("name", POINTS)
def test_float32(name: str) -> None:
    """With tokens over, which torch takes."""
    require_close(draw(name, 37), AT_CORNERS if name in CORNERED else EXACTLY)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["whole", "every token,whole"])
def test_float32_in_other_draws(name: str, seed: int) -> None:
    require_close(draw(name, 32, seed=seed + 1), EXACTLY)


@pytest.mark.parametrize("name", ["titans", "ttt", "whole", "huber,norm", "dot", *list(EXACT)[:4], "yaad"])
def test_bfloat16(name: str) -> None:
    """Where little is left of a memory a norm enlarges what was rounded: there, and at corners, we compare with torch.

    Of the loss by coordinates this says nothing: one number on the other side of its corner outweighs all rounding.
    """
    case = in_precision(draw(name, 37, seed=1), torch.bfloat16)
    wanted = everything(each_tensor(Tensor.double, case), "sequential")
    found = errors(everything(case, "kernel"), wanted)
    with ProductsOfBfloat16() as products:
        beside = errors(everything(case, "chunked"), wanted)
    assert products.seen
    ratios = [math.log(error / beside[name]) for name, error in found.items()]
    assert math.exp(sum(ratios) / len(ratios)) < BESIDE
    if name not in CORNERED and not (case.spec.norm and case.spec.decay_to == "zero"):
        assert too_large(found, ROUNDED, GATES_ROUNDED) == {}


SHAPES = {
    "wide": (Size(16, 64, 32, heads=2), 70, ("huber,norm", "every token,whole")),
    "narrow": (Size(64, 16, 16, batch=2, heads=3), 32, ("titans", "every token")),
    "odd": (Size(heads=1), 5 * 16, ("whole", "every token,descent,anchored")),
    "long": (Size(16, 16, 64), 128, ("whole", "every token")),
    "longest": (Size(16, 32, 128), 130, ("delta,anchored", "every token,descent")),
}


@pytest.mark.parametrize(
    ("shape", "name"), [(shape, name) for shape, (_, _, names) in SHAPES.items() for name in names]
)
def test_other_shapes(shape: str, name: str) -> None:
    """Also outputs that programs share, and a number of chunks that none divides."""
    size, length, _ = SHAPES[shape]
    fields = {"residual": False} if size.width != size.out else {}
    require_close(draw(name, length, size, **fields), EXACTLY)


@pytest.mark.parametrize("name", ["whole", "every token,whole"])
def test_an_anchor_of_each_sample(name: str) -> None:
    require_close(draw(name, 32, Size(batch=2, heads=2), samples=True), EXACTLY)


@pytest.mark.parametrize("name", ["delta,anchored", "every token,descent,anchored"])
def test_the_memory_itself_as_anchor(name: str) -> None:
    case = draw(name, 32, Size(batch=2, heads=2))
    require_close(case._replace(outer=Outer()), EXACTLY)


@pytest.mark.parametrize("length", [64, 128])
def test_the_same_key_again_and_again(length: int) -> None:
    """Written in full each time. Powers of such a system are as large as 2 to the length; its inverse is not."""
    case = draw("every token,descent", length, Size(span=length, heads=1))
    key = F.normalize(case.keys[:, :, :1], dim=-1).expand_as(case.keys).contiguous()
    ones = torch.ones_like(case.gates.keep)
    require_close(case._replace(keys=key, gates=Gates(ones * 0.999, ones * 0.999)), EXACTLY)


@pytest.mark.parametrize("cut", [16, 21])
@pytest.mark.parametrize("name", ["whole", "every token"])
def test_a_text_that_is_cut(name: str, cut: int) -> None:
    case = draw(name, 70)
    wanted, last = case.run("sequential")
    state, reads = begin(case.memory), []
    for piece in (case.between(0, cut), case.between(cut, 70)):
        said, state = stream(*piece[1:5], state, case.spec, case.outer, by_kernel=True)
        reads.append(said)
    assert_close({"reads": torch.cat(reads, dim=2)}, {"reads": wanted}, tolerance=1e-4)
    assert_close(held(last._replace(weights=state.weights, velocity=state.velocity or None)), held(last), 1e-4)
    assert "(linear memory)" in backend()


def test_what_is_not_known_is_named() -> None:
    known = draw("titans", 16)
    assert unsuited(known.queries, known.memory.weights, known.spec) is None
    for fields, named in (
        ({"read": "before"}, "read after writing"),
        ({"clip": 1.0}, "without clip"),
        ({"bias": "dot", "norm": True}, "dot"),
        ({"chunk": 8}, "8"),
        ({"chunk": 1, "tile": 48}, "48"),
    ):
        case = known.with_spec(**fields)
        assert named in (unsuited(case.queries, case.memory.weights, case.spec) or "")
        with pytest.raises(ValueError, match="the kernels know"):
            case.run("kernel")


@pytest.mark.parametrize("name", ["huber,norm", "every token"])
def test_what_a_compiler_is_told(name: str) -> None:
    """Shapes without numbers, what is differentiated, and that nothing given is changed."""
    case, seen = draw(name, 16, Size(heads=1)), []
    real = operator.linear_memory

    def watched(*given: Any) -> Any:
        seen.append(given)
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "linear_memory", watched)
        case.run("kernel")
    (given,) = seen
    free = tuple(x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in given)
    torch.library.opcheck(real, free, atol=1e-4, rtol=1e-4)
