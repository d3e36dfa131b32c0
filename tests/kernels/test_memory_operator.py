"""The operator: what it refuses, what a compiler makes of it, that nothing leaks, and that it repeats itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.kernels.record import backend
from lockstep.laws.subject import randomise
from lockstep.memory import MemorySpec, memorize, streaming
from lockstep.memory.kernel import pays, unsuited
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE, Size, each_tensor, everything, harsh, in_precision
from tests.memory.cases import Case, Fields, Named, each_gate

pytest.importorskip("triton")

from lockstep.kernels.memory import operator, retained_operator

# Of an activation far out, where the exponential is infinite and its inverse zero, as they should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

ON_A_GPU = torch.cuda.is_available()
SMALL = Size(16, 32, 16, batch=1)
SHARED = Size(64, 256, 64, batch=1) if ON_A_GPU else SMALL
"""On a GPU, where two programs share a row."""
TITANS: Fields = {"norm": True, "residual": True, "decay_to": "initial"}
YAAD: Fields = {**TITANS, "rule": "gradient-descent", "bias": "huber", "huber_form": "switch"}
ALL_GATES: Fields = {**TITANS, "bias": "huber"}
MONETA: Fields = {**TITANS, "rule": "gradient-descent", "bias": "lp", "retention": "lq"}
MEMORA: Fields = {**TITANS, "rule": "gradient-descent", "retention": "kl", "simplex": 16}
each_way = pytest.mark.parametrize("fields", [TITANS, MONETA, MEMORA], ids=["titans", "moneta", "memora"])
"""Those that walk along a row by kernels of their own."""
ALIKE = {"titans-lmm": 1e-5, "moneta": 1e-5, "memora": 1e-4 if ON_A_GPU else 1e-5}
"""How near a compiled model is to itself: on an H200 Memora, whose weights are exponentials, was 7.6e-5 away."""

SHAPES, NUMBERS = ("test_schema", "test_autograd_registration", "test_faketensor"), "test_aot_dispatch_dynamic"
"""Parts of torch's examination of operators."""


def draw(size: Size = SMALL, length: int = 32, dtype: torch.dtype = torch.float32, **fields: Any) -> Case:
    spec = MemorySpec(**{**TITANS, "chunk": size.chunk, **fields})
    return each_tensor(lambda x: x.to(DEVICE), in_precision(harsh(spec, size, length), dtype))


def largest(fields: Fields) -> Size:
    """That the kernels know in float32: under lq and kl one program has a row to itself."""
    return SHARED._replace(hidden=128) if ON_A_GPU and "retention" in fields else SHARED


UNKNOWN: dict[str, tuple[Fields, Size, str]] = {
    "depth": ({"depth": 3}, SMALL, "matrices"),
    "clip": ({"clip": 1.0}, SMALL, "without clip"),
    "read": ({"read": "before"}, SMALL, "read after writing"),
    "bias": ({"bias": "dot"}, SMALL, "bias"),
    "head": ({}, SMALL._replace(width=24), "24"),
    "chunk": ({}, SMALL._replace(chunk=8), "8"),
    "hidden": ({}, SMALL._replace(hidden=48), "48"),
    "room": ({"rule": "gradient-descent", "retention": "kl"}, SMALL._replace(hidden=512, chunk=32), "8192"),
}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_is_not_known_is_named(unknown: str) -> None:
    fields, size, named = UNKNOWN[unknown]
    case = draw(size, **{name: field for name, field in fields.items() if name != "depth"})
    case = case.with_spec(**fields)
    if unknown == "depth":
        middle = torch.zeros(size.batch, size.heads, size.hidden, size.hidden, device=DEVICE)
        weights = (case.memory.weights[0], middle, case.memory.weights[1])
        case = case._replace(memory=case.memory._replace(weights=weights, velocity=weights))
    reason = unsuited(case.queries, case.memory.weights, case.spec)
    assert reason is not None
    assert named in reason
    with pytest.raises(ValueError, match="the kernels know") as raised:
        case.run("kernel")
    assert str(raised.value) == reason
    assert not pays(case.queries.bfloat16(), case.memory.weights, case.spec)


def test_double_precision_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"bfloat16 and float32, not torch\.float64"):
        each_tensor(Tensor.double, draw()).run("kernel")


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ValueError, match="unknown form fast; valid: sequential, chunked, kernel"):
        memorize(*draw()[1:6], draw().spec, form="fast")  # type: ignore[arg-type] # what is refused


@each_way
def test_when_it_is_chosen(fields: Fields) -> None:
    """On a GPU in bfloat16 and nowhere else."""
    case = draw(**fields)
    assert unsuited(case.queries, case.memory.weights, case.spec) is None
    assert not pays(case.queries, case.memory.weights, case.spec)
    assert pays(case.queries.bfloat16(), case.memory.weights, case.spec) == ON_A_GPU


EXAMINED: dict[str, Fields] = {
    "titans": TITANS,
    "yaad": YAAD,
    "all-gates": ALL_GATES,
    "plain": {},
    "moneta": MONETA,
    "memora": MEMORA,
    "plain,lq": {"rule": "gradient-descent", "retention": "lq", "bias": "huber"},
}


@pytest.mark.parametrize("fields", EXAMINED.values(), ids=EXAMINED)
def test_it_is_an_operator(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes without numbers, derivatives, and no writing into what was given: torch's own examination, both ways."""
    module, forwards = (retained_operator, "retained_memory") if "retention" in fields else (operator, "memory")
    called: dict[str, tuple[Any, ...]] = {}

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(module, name)

        def call(*arguments: Any) -> Any:
            called[name] = arguments
            return real(*arguments)

        return call

    originals = {name: getattr(module, name) for name in (forwards, f"{forwards}_backward")}
    with monkeypatch.context() as patch:  # the examination makes calls too, with tensors of its own kind
        for name in originals:
            patch.setattr(module, name, noted(name))
        everything(draw(SMALL._replace(heads=1), 16, **fields), "kernel")
    assert called.keys() == originals.keys()
    for name, original in originals.items():
        given = [x.detach().requires_grad_(name == forwards) if isinstance(x, Tensor) else x for x in called[name]]
        # Adjoints of what is absent mean nothing: their shapes can be compared, and not their numbers.
        means_something = name == forwards or all(x is not None for x in given)
        torch.library.opcheck(original, tuple(given), test_utils=(*SHAPES, *([NUMBERS] if means_something else [])))


class TestModels:
    """A model whose memories are forced through the kernels."""

    @pytest.fixture(autouse=True)
    def _forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming, "pays", lambda *_: True)

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    # And recommends a lower precision where it finds products of 32 bits.
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
    @pytest.mark.parametrize("name", ALIKE)
    def test_one_graph_learns_alike(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiled or not, and as by torch in float64."""
        model = build(name, vocab_size=17, dim=32, depth=1, heads=2, chunk=16).to(DEVICE).train()
        randomise(model, seed=0)
        eager = learned(model, model)
        assert "(memory)" in backend()
        torch._dynamo.reset()
        compiled = learned(model, torch.compile(model, fullgraph=True, backend="inductor" if ON_A_GPU else "aot_eager"))
        monkeypatch.setattr(streaming, "pays", lambda *_: False)
        by_torch = learned(model.double(), model)
        for parameter, wanted in by_torch.items():
            assert far(compiled[parameter], eager[parameter]) < ALIKE[name], parameter
            assert far(eager[parameter], wanted) < 1e-4, parameter

    # torch's compiler does so itself where it traces a derivative that is written out.
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    def test_a_compiler_keeps_no_rows(self) -> None:
        """Of queries, keys and values it keeps what they are made of, once."""
        batch, time, dim, heads = 2, 32, 48, 3
        model = build("titans-lmm", vocab_size=17, dim=dim, depth=1, heads=heads, chunk=16).to(DEVICE).train()
        torch._dynamo.reset()
        # It divides the graph as inductor does.
        (block,) = model.layers
        mixer = torch.compile(block.mixer, fullgraph=True, backend="aot_eager_decomp_partition")
        shapes: list[torch.Size] = []

        def noted(x: Tensor) -> Tensor:
            shapes.append(x.shape)
            return x

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
            mixer(torch.randn(batch, time, dim, device=DEVICE, requires_grad=True))
        assert (batch * heads, time, dim // heads) not in shapes
        projected = [shape for shape in shapes if shape[-1] == 3 * dim and shape.numel() >= batch * time * 3 * dim]
        assert len(projected) == 1


def learned(model: nn.Module, run: Callable[[Tensor], Tensor]) -> Named:
    """The loss of predicting each next token, and its gradients."""
    tokens = torch.randint(17, (2, 33), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    model.zero_grad()
    loss = nn.functional.cross_entropy(run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    assert gradients.keys() == dict(model.named_parameters()).keys()
    return {"loss": loss.detach(), **gradients}


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", [0, 5, -1], ids=["first-of-a-chunk", "inside", "last"])
@each_way
def test_nothing_leaks_back(fields: Fields, place: int, dtype: torch.dtype) -> None:
    """Reads before a token that is changed keep every bit, and no later token has a part in their gradients."""
    case = draw(largest(fields), 2 * SHARED.chunk, dtype, **fields)
    changed = SHARED.chunk + place
    others, _ = shaken(case, changed).run("kernel")
    reads, _ = case.tracked().run("kernel")
    assert torch.equal(reads[:, :, :changed], others[:, :, :changed])
    assert not torch.equal(reads[:, :, changed], others[:, :, changed])
    tokens = {name: x for name, x in case.inputs().items() if name.startswith(("queries", "keys", "values", "gates."))}
    early = reads[:, :, :changed].float().square().sum()
    for name, gradient in zip(tokens, torch.autograd.grad(early, list(tokens.values())), strict=True):
        assert gradient[:, :, :changed].abs().amax() > 0, name
        assert gradient[:, :, changed:].abs().amax() == 0, name


def shaken(case: Case, token: int) -> Case:
    """One token changed in all that it says."""

    def at(x: Tensor, by: float) -> Tensor:
        other = x.clone()
        other[:, :, token] = other[:, :, token] * by + 0.125
        return other

    queries, keys, values = (at(x, -2.0) for x in (case.queries, case.keys, case.values))
    return case._replace(
        queries=queries, keys=keys, values=values, gates=each_gate(lambda gate: at(gate, 0.5), case.gates)
    )


@each_way
def test_samples_and_heads_keep_to_themselves(fields: Fields) -> None:
    """Each alone gives what it gives in company, to the last bit."""
    case = draw(largest(fields)._replace(batch=2, heads=2), 2 * SHARED.chunk, **fields)
    reads, _ = case.run("kernel")
    for sample in range(2):
        for head in range(2):
            here = slice(sample, sample + 1), slice(head, head + 1)
            alone = case._replace(
                queries=case.queries[here],
                keys=case.keys[here],
                values=case.values[here],
                gates=each_gate(lambda gate, here=here: gate[here], case.gates),
                memory=case.memory._replace(
                    weights=tuple(x[here] for x in case.memory.weights),
                    velocity=case.memory.velocity and tuple(x[here] for x in case.memory.velocity),
                ),
                outer=case.outer._replace(
                    gain=None if case.outer.gain is None else case.outer.gain[here[1]],
                    shift=None if case.outer.shift is None else case.outer.shift[here[1]],
                    initial=tuple(x[here[1]] for x in case.outer.initial or ()),
                ),
            )
            assert torch.equal(alone.run("kernel")[0], reads[here])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_way
def test_it_repeats_itself(fields: Fields, dtype: torch.dtype) -> None:
    """Two runs give the same bits, gradients too."""
    case = draw(largest(fields), 1000 if ON_A_GPU else 37, dtype, **fields)
    one, other = everything(case, "kernel"), everything(case, "kernel")
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
