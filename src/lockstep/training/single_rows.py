"""Products with a single row, as torch's compiler is shown them: one kernel with the norm before and the bias behind.

What a norm divides by is the same for all that a row's product gives, and may come last:

    linear(rms_norm(x)) = Σₖ matrix·(x·weight) / √(mean x² + ε)

Both sums go over the row. Written as often as there are outputs, the second one goes where the first one does, and
torch's compiler computes them in one kernel: each program sums the row's squares again, which takes less than a kernel
of their own that all others wait for. Whoever takes what is normalised without multiplying it is given it by such a
kernel too, whose outputs are enough for that. A product with a bias torch's compiler would leave to a library, made for
more rows.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.lowering import register_lowering
from torch.fx import Graph, Node
from torch.nn import functional as F

RMS_NORM = (torch.rms_norm, F.rms_norm)


class Norm(NamedTuple):
    """Of one row."""

    x: Any  # a graph's node, and so on
    weight: Any
    epsilon: Any


class SingleRows(CustomGraphPass):
    """To be called with a graph as it was traced, before torch takes operations apart."""

    def __call__(self, graph: Graph) -> None:
        for node in [one for one in graph.nodes if is_norm(one)]:
            put_inside(graph, node, Norm(node.args[0], *node.args[2:]))
        for node in [one for one in graph.nodes if is_biased_product(one)]:
            replace(graph, node, product, node.args)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Of what it does: where that changes, nothing is found that was compiled before."""
        return get_hash_for_files((__file__,))


def put_inside(graph: Graph, node: Node, norm: Norm) -> None:
    """A norm into the products of what it gives; whoever else takes that has it of one of them, if one is wide enough.

    If none is, the norm stays for those others.
    """
    products = [user for user in node.users if is_product(user) and user.args[0] is node]
    others = [user for user in node.users if user not in products and user.target is not getattr]  # such as its device
    wide = next((one for one in products if others and may_give(one, value_of(norm.x).shape[-1])), None)
    if wide is not None:
        with graph.inserting_after(node):
            both = graph.call_function(product_and_normed, (*norm, *wide.args[1:]))
        with graph.inserting_after(both):
            said, normed = (graph.call_function(getitem, (both, place)) for place in range(2))
        for other in others:
            other.replace_input_with(node, normed)
        wide.replace_all_uses_with(said)
        graph.erase_node(wide)
    for one in products:
        if one is not wide:
            replace(graph, one, product_of_normed, (*norm, *one.args[1:]))


def may_give(node: Node, width: int) -> bool:
    """Whether a product has as many outputs as the row has numbers, or twice as many and so on, and may come early."""
    parameters = [one for one in node.args[1:] if isinstance(one, Node)]
    there = all(one.op in ("placeholder", "get_attr") for one in parameters)
    return there and len(value_of(parameters[0])) % width == 0


def replace(graph: Graph, node: Node, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        other = graph.call_function(function, arguments)
    node.replace_all_uses_with(other)
    graph.erase_node(node)


def is_norm(node: Node) -> bool:
    """Over all of a row, whose weight, if it has one, is of the same precision."""
    arguments: tuple[Any, ...] = node.args
    if node.target not in RMS_NORM or node.kwargs or len(arguments) != 4:
        return False
    x, shape, weight, epsilon = arguments
    if not is_row(x) or epsilon is None or list(shape) != [value_of(x).shape[-1]]:
        return False
    return weight is None or value_of(weight).dtype is value_of(x).dtype


def is_product(node: Node) -> bool:
    return node.target is F.linear and not node.kwargs


def is_biased_product(node: Node) -> bool:
    """Of a row."""
    return is_product(node) and is_row(node.args[0]) and len(node.args) == 3 and node.args[2] is not None


def is_row(node: Any) -> bool:
    """Whether it is a tensor all of whose numbers are in its last dimension."""
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value.ndim > 0 and value.numel() == value.shape[-1]


def value_of(node: Any) -> Tensor:
    """What stood there while the graph was traced, without its numbers."""
    value: Tensor = node.meta["example_value"]
    return value


def product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """As `F.linear`."""
    return finished(x, (matrix * exact(x)).sum(dim=-1), bias)


def product_of_normed(
    x: Tensor, weight: Tensor | None, epsilon: float, matrix: Tensor, bias: Tensor | None = None
) -> Tensor:
    """As `F.linear` of `F.rms_norm`."""
    row, scaled = before(x, weight)
    return finished(x, (matrix * scaled).sum(dim=-1) * scale_for_each(row, len(matrix), epsilon), bias)


def product_and_normed(
    x: Tensor, weight: Tensor | None, epsilon: float, matrix: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, and what was normalised: of several outputs for each of its numbers, the first ones."""
    row, scaled = before(x, weight)
    scale = scale_for_each(row, len(matrix), epsilon)
    normed = kept((scaled.expand(len(matrix) // len(row), -1).reshape(-1) * scale).to(x.dtype))[: len(row)]
    return finished(x, (matrix * scaled).sum(dim=-1) * scale, bias), normed.view(x.shape)


def before(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The row, [in], and that times the weight of a norm."""
    row = exact(x)
    return row, row if weight is None else row * weight


def exact(x: Tensor) -> Tensor:
    """The row, [in], in 32 bits at least, in which whatever it meets is computed."""
    return x.reshape(-1).to(torch.promote_types(x.dtype, torch.float32))


def scale_for_each(row: Tensor, outputs: int, epsilon: float) -> Tensor:
    """What a norm multiplies by, [outputs]: the same number, summed for each of them."""
    squares = (row * row).expand(outputs, -1).sum(dim=-1)
    return torch.rsqrt(squares / len(row) + epsilon)


def finished(x: Tensor, said: Tensor, bias: Tensor | None) -> Tensor:
    """What a layer says, [..., out], of its product with a row, [out]."""
    y = said if bias is None else said + bias
    return kept(y.to(x.dtype)).view(*x.shape[:-1], -1)


def kept(x: Tensor) -> Tensor:
    """The same, which torch's compiler puts into memory.

    Else whoever takes a part of what a layer says is given the sums, to make that part of, by one kernel more each.
    """
    found: Tensor = _kept(x)
    return found


@torch.library.custom_op("lockstep::kept", mutates_args=())
def _kept(x: Tensor) -> Tensor:
    return x.clone()


@_kept.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_lowering(torch.ops.lockstep.kept, type_promotion_kind=None)
def _(x: Any) -> Any:
    x.realize()
    return x
