"""A model is one graph to torch's compiler, or one for each of its segments, which gives what the model gives.

The graph is run as it stands, without generated code: that every operation can be traced, forwards and backwards, is
what a compiler on any device needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from lockstep.laws.subject import randomise
from lockstep.memory.chain import SHOWN
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

CHUNK = 8
LENGTH = 2 * CHUNK
MEMORY = {"chunk": CHUNK}
TITANS = {**MEMORY, "segment": CHUNK, "window": 5, "persistent": 2, "memory_depth": 1}
"""Beside attention a small memory: the deeper one is traced where it stands alone."""
MODELS: dict[str, dict[str, Any]] = {
    "transformer++": {},
    "titans-lmm": MEMORY,
    "titans-mag": TITANS,
    "titans-mal": TITANS,
    "titans-mac": TITANS,
    "yaad": MEMORY,
}
IN_SEGMENTS = "titans-mac"

# torch's compiler does so itself where it traces a derivative that is written out, and where a graph takes up another.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def model(name: str) -> LanguageModel:
    built = build(name, **{"vocab_size": 17, "max_length": 64, "dim": 32, "depth": 1, "heads": 2, **MODELS[name]})
    randomise(built, seed=0)
    return built.train()


def tokens() -> Tensor:
    return torch.randint(17, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def learned(trained: LanguageModel, run: Callable[[Tensor], Tensor], autocast: bool) -> dict[str, Tensor]:
    """The loss of predicting each next token, and its gradients."""
    trained.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = run(tokens())
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens()[:, 1:].flatten())
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in trained.named_parameters() if one.grad is not None}
    return {"loss": loss.detach(), **gradients}


def check(name: str, autocast: bool, tolerance: float) -> None:
    trained = model(name)
    expected = learned(trained, trained, autocast)
    assert expected.keys() == {"loss", *dict(trained.named_parameters())}
    torch._dynamo.reset()
    # The torch form of a memory whose bias is not squared differentiates inside of its derivative.
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = learned(trained, torch.compile(trained, fullgraph=name != IN_SEGMENTS, backend="aot_eager"), autocast)
    for key, value in expected.items():
        assert float((found[key] - value).abs().amax() / value.abs().amax()) < tolerance, key


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_learns_alike(name: str) -> None:
    check(name, autocast=False, tolerance=1e-5)


@pytest.mark.parametrize("name", ["transformer++", "titans-mal"])
def test_one_graph_learns_alike_in_lower_precision(name: str) -> None:
    check(name, autocast=True, tolerance=0.03)


class Counted:
    """A compiler's backend that runs graphs as they stand, and counts what is in them."""

    def __init__(self) -> None:
        self.nodes = 0

    def __call__(self, graph: fx.GraphModule, _: object) -> Callable[..., Any]:
        self.nodes += sum(len(part.graph.nodes) for part in graph.modules() if isinstance(part, fx.GraphModule))
        return graph.forward


def test_segments_are_compiled_once() -> None:
    """However many there are: little but their joining grows with them."""
    (block,) = model(IN_SEGMENTS).layers
    sizes = []
    for segments in (3, 6):
        torch._dynamo.reset()
        counted = Counted()
        torch.compile(block.mixer, backend=counted)(torch.randn(2, segments * CHUNK, 32))
        sizes.append(counted.nodes)
    assert 0 < sizes[1] < 1.1 * sizes[0]


def test_long_texts_are_no_larger_graphs() -> None:
    """Where a memory is left to torch, and has more chunks than a compiler may see; it learns alike."""
    (block,) = model("titans-lmm").layers
    sizes = []
    for chunks in (SHOWN + 1, 2 * SHOWN):
        x, counted = torch.randn(2, chunks * CHUNK, 32), Counted()
        expected = gradients(block.mixer, block.mixer, x)
        torch._dynamo.reset()
        found = gradients(block.mixer, torch.compile(block.mixer, backend=counted), x)
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).norm()) < 1e-5 * float(other.norm())
        sizes.append(counted.nodes)
    assert sizes[0] == sizes[1] > 0


def gradients(mixer: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Of the sum of what comes out, squared."""
    return list(torch.autograd.grad(run(x).square().sum(), list(mixer.parameters())))


def kept(name: str, x: Tensor) -> list[torch.Size]:
    """Shapes of what a compiled mixer keeps for the way back."""
    (block,) = model(name).layers
    torch._dynamo.reset()
    # It divides the graph as inductor does.
    mixer = torch.compile(block.mixer, fullgraph=name != IN_SEGMENTS, backend="aot_eager_decomp_partition")
    shapes: list[torch.Size] = []

    def noted(tensor: Tensor) -> Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        mixer(x)
    return shapes


@pytest.mark.parametrize(("name", "operands"), [("titans-mag", 1), ("titans-mal", 1), ("titans-mac", 2)])
def test_what_is_cheaply_made_again_is_not_kept(name: str, operands: int) -> None:
    """Of what products take, the mixer's own input alone; MAC may have what it asks its memory beside it."""
    batch, dim = 2, 32
    x = torch.randn(batch, 3 * CHUNK, dim, requires_grad=True)
    shapes = kept(name, x)
    assert shapes.count(torch.Size((batch * 3 * CHUNK, dim))) <= operands
    # Nor of a segment's products; keys and values stand in their projections.
    assert torch.Size((batch * CHUNK, dim)) not in shapes
    assert torch.Size((batch, 2, 2 * CHUNK + 2, dim // 2)) not in shapes
