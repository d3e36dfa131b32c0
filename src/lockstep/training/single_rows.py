"""Products with a single row, as torch's compiler is shown them: one kernel with the norm before and the bias behind.

What a norm divides by is the same for all that a row's products give, and may come last:

    linear(rms_norm(x)) = Σₖ matrix·(x·weight) / √(mean x² + ε)

Both sums go over the row. Written as often as there are outputs, the second one goes where the first one does, and
torch's compiler computes them in one kernel: each program sums the row's squares again, which takes less than a kernel
of their own that all others wait for. All products of what one norm gives are rows of one matrix then, and whoever
takes it without multiplying is given it by the same kernel. A product with a bias torch's compiler would leave to a
library, made for more rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.lowering import pointwise_cat, register_lowering
from torch.fx import Graph, Node
from torch.nn import functional as F

RMS_NORM = (torch.rms_norm, F.rms_norm)
IN_PLACE = (operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv)


class Norm(NamedTuple):
    """Of one row."""

    x: Any  # a graph's node, and so on
    weight: Any
    epsilon: Any


class SingleRows(CustomGraphPass):
    """To be called with a graph as it was traced, before torch takes operations apart.

    Where derivatives may be wanted it does nothing: its operators have none.
    """

    def __call__(self, graph: Graph) -> None:
        if torch.is_grad_enabled():
            return
        # Of these nobody may be asked at another time than they were.
        changing = {storage_of(node) for written in graph.nodes for node in written_over(written)}
        for node in [one for one in graph.nodes if is_norm(one)]:
            if not changing & {storage_of(node), storage_of(node.args[0])}:
                put_inside(graph, node, Norm(node.args[0], *node.args[2:]))
        for node in [one for one in graph.nodes if is_biased_product(one)]:
            replace(graph, node, product, node.args)

    def uuid(self) -> Any:
        """Of what it does: where that changes, newer versions of torch find nothing that was compiled before."""
        return get_hash_for_files((__file__,))


SINGLE_ROWS = SingleRows()
"""One for all: what is compiled with another is compiled anew."""


def put_inside(graph: Graph, node: Node, norm: Norm) -> None:
    """A norm into the products of what it gives; whoever else takes that has it of those that are joined.

    If there are none, the norm stays for those others.
    """
    # Such as a question for its device. No more than this: what writes over a tensor has no users either.
    for dead in [user for user in node.users if user.target is getattr and not user.users]:
        graph.erase_node(dead)
    row = value_of(norm.x)
    products = [user for user in node.users if is_product(user) and user.args[0] is node]
    others = [user for user in node.users if user not in products]
    together = [one for one in products if may_be_joined(one, row)]
    if len(together) > 1 or (together and others):
        with graph.inserting_after(node):
            all_said = graph.call_function(products_and_normed, (*norm, [one.args[1] for one in together]))
        with graph.inserting_after(all_said):
            *said, normed = (
                graph.call_function(operator.getitem, (all_said, place)) for place in range(len(together) + 1)
            )
        for one, new in zip(together, said, strict=True):
            give_way(graph, one, new)
        normed.meta.update(node.meta)
        for other in others:
            other.replace_input_with(node, normed)
        products = [one for one in products if one not in together]
    for one in products:
        replace(graph, one, product_of_normed, (*norm, *one.args[1:]))
    if not node.users:
        graph.erase_node(node)


def may_be_joined(node: Node, row: Tensor) -> bool:
    """Whether a product has no bias, and a matrix that is there from the beginning, as precise as the row, and as wide.

    Of fewer outputs something is made at once, such as a gate: joined, that would be a kernel more.
    """
    matrix, *bias = node.args[1:]
    there = isinstance(matrix, Node) and matrix.op == "placeholder" and bias in ([], [None])
    return there and value_of(matrix).dtype is row.dtype and len(value_of(matrix)) >= row.shape[-1]


def replace(graph: Graph, node: Node, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        other = graph.call_function(function, arguments)
    give_way(graph, node, other)


def give_way(graph: Graph, node: Node, other: Node) -> None:
    other.meta.update(node.meta)  # what stood there stands there
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
    """With a matrix, in the precision of what it is given, which autocast would lower."""
    parts: tuple[Any, ...] = (node, *node.args[:2])
    if node.target is not F.linear or node.kwargs or not all("example_value" in one.meta for one in parts):
        return False
    said, x, matrix = map(value_of, parts)
    return matrix.ndim == 2 and said.dtype is x.dtype


def is_biased_product(node: Node) -> bool:
    """Of a row."""
    return is_product(node) and is_row(node.args[0]) and len(node.args) == 3 and node.args[2] is not None


def is_row(node: Any) -> bool:
    """Whether it is a tensor all of whose numbers are in its last dimension."""
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value.ndim > 0 and value.numel() == value.shape[-1]


def written_over(node: Node) -> Iterator[Node]:
    """What an operation writes over, as torch's names and schemas tell."""
    if node.op not in ("call_function", "call_method"):
        return
    name, schema = str(getattr(node.target, "__name__", node.target)), getattr(node.target, "_schema", None)
    if schema is not None:
        named = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
        given = [named.get(one.name) for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    elif node.target in IN_PLACE or node.kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__")):
        given = [node.args[0]]
    else:
        given = [node.kwargs.get("out")]
    for one in given:
        yield from (each for each in (one if isinstance(one, (list, tuple)) else [one]) if isinstance(each, Node))


def storage_of(node: Any) -> int:
    """Which memory it is in: views are where their base is."""
    value = node.meta.get("example_value")
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else 0


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


def products_and_normed(
    x: Tensor, weight: Tensor | None, epsilon: float, matrices: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The same of several matrices, and what was normalised: as many of their outputs as there are numbers."""
    row, scaled = before(x, weight)
    matrix = joined(matrices)
    scale = scale_for_each(row, len(matrix), epsilon)
    said = finished(x, (matrix * scaled).sum(dim=-1) * scale, None).split([len(one) for one in matrices], dim=-1)
    times = -(-len(matrix) // len(row))  # as many numbers as all outputs are, which are one loop then
    normed = kept((scaled.repeat(times)[: len(matrix)] * scale).to(x.dtype))[: len(row)]
    return *said, normed.view(x.shape)


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


def joined(matrices: Sequence[Tensor]) -> Tensor:
    """One below the other, which torch's compiler looks up in each of them: they are not copied."""
    if len(matrices) == 1:
        return matrices[0]
    whole: Tensor = _joined(matrices)
    return whole


def kept(x: Tensor) -> Tensor:
    """The same, which torch's compiler puts into memory.

    Else whoever takes a part of what a layer says is given the sums, to make that part of, by one kernel more each.
    """
    found: Tensor = _kept(x)
    return found


@torch.library.custom_op("lockstep::joined_matrices", mutates_args=())
def _joined(matrices: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(matrices))


@_joined.register_fake
def _(matrices: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(matrices))


@register_lowering(torch.ops.lockstep.joined_matrices, type_promotion_kind=None)
def _(matrices: Any) -> Any:
    return pointwise_cat(matrices, 0)


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
