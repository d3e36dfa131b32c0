"""Products with single rows say what layers say, norms and all, and torch's compiler plans one kernel for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode
from torch.fx import GraphModule
from torch.nn import functional as F

from lockstep.laws.subject import randomise
from lockstep.memory.ownership import given_up
from lockstep.models.decoding import own
from lockstep.models.registry import build
from lockstep.models.state import map_state, named_tensors
from lockstep.training import single_rows
from lockstep.training.compilation import compile_steps
from lockstep.training.single_rows import SINGLE_ROWS

WIDTH = 16
Step = Callable[..., Any]


class Layers(nn.Module):
    """A norm and products of what it gives, drawn anew for each of them."""

    def __init__(self, *outputs: int, bias: bool = False, weight: bool = True, width: int = WIDTH) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.norm = nn.RMSNorm(width, eps=0.1, elementwise_affine=weight)
        self.products = nn.ModuleList(nn.Linear(width, count, bias=bias) for count in outputs)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normed = self.norm(x)
        return tuple(one(normed) for one in self.products)


class Residual(Layers):
    """What is normalised goes to others too: to a sum, and to whoever takes it in one piece."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normed = self.norm(x)
        return *(one(normed) for one in self.products), normed[:, 0].contiguous() * 2, normed + x


def row(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rewritten(step: Step, seen: list[GraphModule] | None = None) -> Step:
    """As the pass leaves it, run by torch as it stands there."""

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        SINGLE_ROWS(graph.graph)
        graph.graph.lint()
        graph.recompile()
        if seen is not None:
            seen.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled: Step = torch.compile(step, backend=backend)
    return compiled


def called(graphs: list[GraphModule]) -> list[Any]:
    return [node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]


CASES: dict[str, Callable[[], Layers]] = {
    "one": partial(Layers, 24),
    "several": partial(Layers, 8, 24, 1),
    "wide": partial(Layers, 24, WIDTH),
    "bias": partial(Layers, 24, 8, bias=True),
    "no weight": partial(Layers, 24, weight=False),
    "others too": partial(Residual, 8, 3 * WIDTH, WIDTH + 1),
    "others too, no weight": partial(Residual, WIDTH, weight=False),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_nothing_else_is_said(name: str) -> None:
    layers, x, seen = CASES[name]().double(), row(1, 1, WIDTH), list[GraphModule]()
    for found, wanted in zip(rewritten(layers, seen)(x), layers(x), strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)
    assert not {torch.rms_norm, F.rms_norm, F.linear} & set(called(seen))


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_16_bits_are_rounded_once(name: str) -> None:
    low = CASES[name]().bfloat16()
    x = row(1, 1, WIDTH, dtype=torch.bfloat16)
    found = rewritten(low)(x)
    for one, wanted in zip(found, low.double()(x.double()), strict=True):
        assert one.dtype is torch.bfloat16
        assert (one.double() - wanted).norm() < 5e-3 * wanted.norm()


def several_rows() -> tuple[Step, Tensor]:
    return Layers(8).double(), row(2, 1, WIDTH)


def of_heads() -> tuple[Step, Tensor]:
    """A norm over a part of the row."""
    layers = Layers(8, width=4).double()
    return lambda x: layers(x.view(1, 4, 4)), row(1, 1, WIDTH)


def too_narrow() -> tuple[Step, Tensor]:
    """No product has as many outputs as others take numbers."""
    return Residual(8).double(), row(1, 1, WIDTH)


def biased() -> tuple[Step, Tensor]:
    """Nor has one without a bias."""
    return Residual(WIDTH, bias=True).double(), row(1, 1, WIDTH)


@pytest.mark.parametrize("case", [several_rows, of_heads, too_narrow, biased])
@torch.no_grad()
def test_what_stays_as_it_was(case: Callable[[], tuple[Step, Tensor]]) -> None:
    seen: list[GraphModule] = []
    step, x = case()
    for found, wanted in zip(rewritten(step, seen)(x), step(x), strict=True):
        torch.testing.assert_close(found, wanted)
    assert {torch.rms_norm, F.rms_norm} & set(called(seen))


@torch.no_grad()
def test_what_is_written_over_is_written_over() -> None:
    """By who is not used afterwards, too."""
    layers, x, kept = Layers(24).double(), row(1, 1, WIDTH), torch.zeros(1, 1, 24, dtype=torch.float64)

    def step(x: Tensor) -> Tensor:
        (said,) = layers(x)
        kept.copy_(said)
        kept[..., 0] = 1.0
        return x + 1

    rewritten(step)(x)
    wanted = layers(x)[0]
    wanted[..., 0] = 1.0
    torch.testing.assert_close(kept, wanted)


def read_before(norm: nn.Module, product: nn.Module, x: Tensor) -> Tensor:
    normed = norm(x)
    x.add_(1)
    said: Tensor = product(normed)
    return said


def written_between(norm: nn.Module, product: nn.Module, x: Tensor) -> Tensor:
    normed = norm(x)
    first = product(normed)
    normed.mul_(2)
    said: Tensor = product(normed) + first
    return said


def written_in_part(norm: nn.Module, product: nn.Module, x: Tensor) -> Tensor:
    normed = norm(x)
    normed[..., 0] = 7.0
    said: Tensor = product(normed)
    return said


def written_by_a_view(norm: nn.Module, product: nn.Module, x: Tensor) -> Tensor:
    normed = norm(x)
    torch.mul(normed, 2, out=normed)
    normed.view(-1)[1:].zero_()
    said: Tensor = product(normed)
    return said


@pytest.mark.parametrize("step", [read_before, written_between, written_in_part, written_by_a_view])
@torch.no_grad()
def test_what_changes_is_asked_when_it_was(step: Step) -> None:
    layers, x = Layers(24).double(), row(1, 1, WIDTH)
    wanted = step(layers.norm, layers.products[0], x.clone())
    found = rewritten(lambda x: step(layers.norm, layers.products[0], x))(x.clone())
    torch.testing.assert_close(found, wanted)


def test_derivatives_are_torch_s() -> None:
    layers, x, seen = Layers(24, 8).double(), row(1, 1, WIDTH).requires_grad_(), list[GraphModule]()
    wanted = torch.autograd.grad(sum(one.sum() for one in layers(x)), x)
    found = torch.autograd.grad(sum(one.sum() for one in rewritten(layers, seen)(x)), x)
    torch.testing.assert_close(found, wanted)
    assert {torch.rms_norm, F.rms_norm} & set(called(seen))


@torch.no_grad()
def test_a_product_with_a_vector() -> None:
    layers, vector, x = Layers(24).double(), row(WIDTH, seed=2), row(1, 1, WIDTH)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        normed = layers.norm(x)
        return layers.products[0](normed), F.linear(normed, vector)

    for found, wanted in zip(rewritten(step)(x), step(x), strict=True):
        torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_autocast_lowers_what_it_did() -> None:
    layers, x = Layers(24, 8).float(), row(1, 1, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for found, wanted in zip(rewritten(layers)(x), layers(x), strict=True):
            assert found.dtype is wanted.dtype is torch.bfloat16
            assert torch.equal(found, wanted)


@torch.no_grad()
def test_a_product_with_a_bias_alone() -> None:
    layer, seen = nn.Linear(WIDTH, 8).double(), list[GraphModule]()
    x = row(1, WIDTH)
    torch.testing.assert_close(rewritten(layer, seen)(x), layer(x))
    assert single_rows.product in called(seen)


@pytest.mark.parametrize("name", ["wide", "others too"])
@torch.inference_mode()
def test_compiled_by_torch(name: str) -> None:
    layers, x = CASES[name]().bfloat16(), row(1, 1, WIDTH, dtype=torch.bfloat16)
    torch._dynamo.reset()
    found = torch.compile(layers, options={"pre_grad_custom_pass": SINGLE_ROWS})(x)
    for one, wanted in zip(found, layers.double()(x.double()), strict=True):
        assert one.dtype is torch.bfloat16
        assert (one.double() - wanted).norm() < 5e-3 * wanted.norm()


@torch.inference_mode()
def test_models_that_are_alike_are_compiled_once() -> None:
    def graphs() -> int:
        model = build("transformer++", vocab_size=17, max_length=64, dim=16, depth=1, heads=2).eval()
        compile_steps(model)
        model.step(torch.zeros(1, 1, dtype=torch.int64), model.initial_state(1, capacity=4))
        return int(counters["stats"]["unique_graphs"])

    torch._dynamo.reset()
    assert graphs() == graphs()


class Planned(Exception):
    """As many kernels as its argument says."""


def planned(step: Step, x: Tensor) -> int:
    """Kernels that torch's compiler would start, by Triton; that it cannot go on from there on a CPU is no matter."""

    def stop(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        raise Planned(sum(not isinstance(node, NopKernelSchedulerNode) for node in nodes))

    torch._dynamo.reset()
    options: dict[str, Any] = {
        "cpu_backend": "triton",
        "pre_grad_custom_pass": SINGLE_ROWS,
        "_post_fusion_custom_pass": stop,
    }
    with pytest.raises(BackendCompilerFailed) as failure:
        torch.compile(step, options=options)(x)
    return next(int(found.args[0]) for found in causes(failure.value) if isinstance(found, Planned))


def causes(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *causes(error.__cause__ or error.__context__)]


# As torch 2.13 plans them.
KERNELS = {"one": 1, "several": 3, "wide": 1, "bias": 2, "no weight": 1, "others too": 3, "others too, no weight": 1}
"""One for each product, or for those that are joined, which give what is normalised as well; what others make of it."""


@pytest.mark.parametrize("name", KERNELS)
@torch.inference_mode()
def test_kernels(name: str) -> None:
    assert planned(CASES[name]().bfloat16(), row(1, 1, WIDTH, dtype=torch.bfloat16)) == KERNELS[name]


ARCHITECTURES = [
    *("transformer++", "gpt2", "gated-deltanet", "deltanet", "mamba2", "mamba", "retnet", "gla", "lstm"),
    *("titans-lmm", "titans-mac", "titans-mag", "titans-mal", "moneta", "ttt-mlp"),
]


FIELDS: dict[str, dict[str, Any]] = {
    "titans-mac": {"chunk": 16, "segment": 16},
    "titans-mag": {"window": 7},
    "titans-mal": {"window": 7},
}


# torch's compiler does so itself where it traces a derivative that is written out.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_models_say_the_same(name: str) -> None:
    model = build(name, vocab_size=17, max_length=64, dim=32, depth=1, heads=2, **FIELDS.get(name, {})).double().eval()
    randomise(model, seed=0)
    tokens = torch.randint(17, (1, 12), generator=torch.Generator().manual_seed(0))
    _, state = model.step(tokens[:, :11], model.initial_state(1, capacity=12))
    wanted, others = model.step(tokens[:, 11:], state)
    for block in model.layers:
        object.__setattr__(block, "step", rewritten(block.step))
    owned = map_state(own, state)
    with given_up():
        found, after = model.step(tokens[:, 11:], owned)
    torch.testing.assert_close(found, wanted)
    for (name, one), (_, other) in zip(named_tensors(after), named_tensors(others), strict=True):
        torch.testing.assert_close(one, other, msg=name)
