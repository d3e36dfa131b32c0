"""Each Titans mixer is its formula: written here token by token, with explicit masks and the memory's definition."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.laws.subject import Subject, randomise, subjects
from lockstep.memory import Gates, Memory, Outer, memorize
from lockstep.memory.recomputation import never_kept, recomputed
from lockstep.models.architectures.miras import MirasSpec
from lockstep.models.architectures.titans import TitansSpec
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers import attending
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.memory_as_context import MemoryAsContext
from lockstep.models.mixers.memory_as_gate import MemoryAsGate
from lockstep.models.mixers.memory_as_layer import MemoryAsLayer
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.memory_layer import MemoryLayer
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import architectures, build, find
from lockstep.models.state import named_tensors

BATCH, DIM, HEADS = 2, 16, 2
CHUNK, SEGMENT, WINDOW, PERSISTENT = 4, 8, 5, 3
LENGTH = 28
"""Three segments and a half; five windows and a part of one."""
PIECES = [11, 1, 1, 15]
"""A split that begins and ends inside segments, chunks and windows."""
TURNED = 4
"""Of the eight numbers of a head, those that rotary turns."""
WITH_ATTENTION = ("titans-mac", "titans-mag", "titans-mal")
REMEMBERING = [name for name in architectures() if issubclass(find(name), TitansSpec | MirasSpec)]
MEMORIES: list[dict[str, Any]] = [
    {},
    {"conv": 0},
    {"decay": False},
    {"momentum": False},
    {"memory_depth": 3},
    {"chunk": 8},
]

M = TypeVar("M", bound=Mixer)


def model(name: str, **fields: Any) -> LanguageModel:
    sizes = {"vocab_size": 17, "max_length": 64, "dim": DIM, "depth": 1, "heads": HEADS}
    parts = {"chunk": CHUNK, "segment": SEGMENT, "window": WINDOW, "persistent": PERSISTENT}
    built = build(name, **{**sizes, **parts, **fields}).to(torch.float64).eval()
    randomise(built, seed=0)
    return built


def mixer_of(kind: type[M], name: str, **fields: Any) -> M:
    [block] = model(name, **fields).layers
    assert isinstance(block.mixer, kind)
    return block.mixer


def inputs() -> Tensor:
    return torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(vocabulary: int = 17) -> Tensor:
    return torch.randint(vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(2))


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).detach().abs().amax() / expected.detach().abs().amax())


def gradients(module: nn.Module, y: Tensor) -> dict[str, Tensor]:
    """Of a sum of y in which every number has another weight."""
    module.zero_grad()
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)).sum().backward()
    return {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}


def check(mixer: M, formula: Callable[[M, Tensor], Tensor]) -> None:
    """The same values, at once and in pieces, and the same gradients in every parameter."""
    actual, expected = mixer(inputs()), formula(mixer, inputs())
    assert difference(actual, expected) < 1e-10
    state = None
    with torch.no_grad():
        for piece, there in zip(inputs().split(PIECES, dim=1), expected.split(PIECES, dim=1), strict=True):
            mixed, state = mixer.step(piece, state)
            assert difference(mixed, there) < 1e-10
    found, wanted = gradients(mixer, actual), gradients(mixer, expected)
    assert found.keys() == wanted.keys() == dict(mixer.named_parameters()).keys()
    for name, gradient in wanted.items():
        assert difference(found[name], gradient) < 1e-8, name


def apart(x: Tensor) -> Tensor:
    """[batch, heads, time, head_dim] of [batch, time, dim]."""
    heads: Tensor = x.unflatten(-1, (HEADS, -1))
    return heads.transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


def rms_per_head(x: Tensor, weight: Tensor | None = None) -> Tensor:
    normal = rms(x.unflatten(-1, (HEADS, -1)))
    return (normal if weight is None else normal * weight).flatten(-2)


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def rotary(x: Tensor, places: Tensor) -> Tensor:
    """Rows [batch, heads, time, head_dim]: pairs as complex numbers, multiplied by a unit number of their place."""
    half = TURNED // 2
    pairs = torch.complex(x[..., :half], x[..., half:TURNED])
    angles = places.to(x.dtype)[:, None] * 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    pairs = pairs * torch.exp(1j * angles)
    return torch.cat((pairs.real, pairs.imag, x[..., TURNED:]), dim=-1)


def projections(attention: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, not turned."""
    queries, keys, values = (apart(x @ matrix.mT) for matrix in attention.qkv.weight.chunk(3))
    return queries, keys, values


def persistent(attention: Attention) -> tuple[Tensor, Tensor]:
    """Keys and values of the persistent tokens; the turned part of their keys is empty."""
    if attention.persistent is None:
        return (torch.zeros(BATCH, HEADS, 0, DIM // HEADS, dtype=torch.float64),) * 2
    _, keys, values = projections(attention, attention.persistent.weight.expand(BATCH, -1, -1))
    return torch.cat((torch.zeros_like(keys[..., :TURNED]), keys[..., TURNED:]), dim=-1), values


def softmax_attention(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor) -> Tensor:
    scores = queries @ keys.mT / (DIM // HEADS) ** 0.5
    return joined(scores.masked_fill(~sees, -torch.inf).softmax(dim=-1) @ values)


def windowed(attention: Attention, x: Tensor, window: int) -> Tensor:
    """Each token sees the persistent ones and the last `window`, itself included."""
    places = torch.arange(x.shape[1])
    queries, keys, values = projections(attention, x)
    always, said = persistent(attention)
    distance = places[:, None] - places
    everybody = torch.ones(len(places), always.shape[2], dtype=torch.bool)
    sees = torch.cat((everybody, (distance >= 0) & (distance < window)), dim=1)
    keys, values = torch.cat((always, rotary(keys, places)), dim=2), torch.cat((said, values), dim=2)
    return softmax_attention(rotary(queries, places), keys, values, sees)


def convolved(conv: ShortConvolution | None, x: Tensor) -> Tensor:
    """From the sequence's beginning; the first channels where x has fewer than there are weights."""
    if conv is None:
        return x
    kernel = conv.weight.permute(2, 1, 0)[: x.shape[-1]]
    padded = F.pad(x.mT, (kernel.shape[-1] - 1, 0))
    return F.conv1d(padded, kernel, groups=len(kernel)).mT


def gates(memory: NeuralMemory, x: Tensor) -> Gates:
    logits = iter(memory.gates(x).unflatten(-1, (-1, HEADS)).permute(2, 0, 3, 1))
    keep = next(logits).sigmoid() if memory.decay else torch.ones(BATCH, HEADS, x.shape[1], dtype=x.dtype)
    rate = memory.largest_rate * next(logits).sigmoid()
    return Gates(keep, rate, next(logits).sigmoid() if memory.spec.has_momentum else None)


def first_memory(memory: NeuralMemory) -> Memory:
    weights = tuple(matrix.expand(BATCH, *matrix.shape) for matrix in memory.weights)
    return Memory(weights, tuple(map(torch.zeros_like, weights)) if memory.spec.has_momentum else None)


def lent(memory: NeuralMemory) -> Outer:
    assert memory.gain is not None
    assert memory.shift is not None
    return Outer(memory.gain.view(HEADS, -1), memory.shift.view(HEADS, -1), tuple(memory.weights))


def written(memory: NeuralMemory, x: Tensor, held: Memory, start: int = 0) -> tuple[Tensor, Memory]:
    """What tokens from `start` on read, [batch, time, dim], and the memory after them; x is the whole past."""
    rows = F.silu(convolved(memory.conv, memory.qkv(x)))[:, start:]
    queries, keys, values = (apart(part) for part in rows.chunk(3, dim=-1))
    reads, after = memorize(
        unit(queries),
        unit(keys),
        values,
        gates(memory, x[:, start:]),
        held,
        memory.spec,
        form="sequential",
        outer=lent(memory),
    )
    return joined(reads), after


def asking(memory: NeuralMemory, x: Tensor) -> Tensor:
    """Queries of the whole sequence, [batch, heads, time, head_dim]."""
    return unit(apart(F.silu(convolved(memory.conv, x @ memory.qkv.weight[:DIM].mT))))


def said(memory: NeuralMemory, queries: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """A residual, normalised MLP applied to queries."""
    z = queries
    for matrix in weights[:-1]:
        z = F.gelu(z @ matrix, approximate="tanh")
    outer = lent(memory)
    assert outer.gain is not None
    assert outer.shift is not None
    normal = F.layer_norm(z @ weights[-1], (DIM // HEADS,), eps=1e-5)
    return joined(queries + normal * outer.gain[:, None] + outer.shift[:, None])


def gated(gate: MemoryGate, y: Tensor, reads: Tensor | None) -> Tensor:
    attended = gate.attention_weight * rms_per_head(y) + gate.attention_bias
    if reads is None:
        return attended
    assert gate.read_weight is not None
    assert gate.read_bias is not None
    z = gate.read_weight * rms_per_head(reads) + gate.read_bias
    return attended * z * torch.sigmoid(z)


def memory_as_context(mixer: MemoryAsContext, x: Tensor) -> Tensor:
    """Segment by segment: read, attend, write, gate."""
    attention, memory = mixer.attention, mixer.memory
    held = None if memory is None else first_memory(memory)
    asked = None if memory is None else asking(memory, x)
    always, told = persistent(attention)
    past, mixed = x[:, :0], []
    for start in range(0, x.shape[1], SEGMENT):
        segment = x[:, start : start + SEGMENT]
        places = torch.arange(segment.shape[1])
        before = places[:, None] >= places
        queries, keys, values = projections(attention, segment)
        parts = [(always, told, torch.ones(len(places), always.shape[2], dtype=torch.bool))]
        if memory is not None and asked is not None and held is not None and mixer.read_norm is not None:
            h = said(memory, asked[:, :, start : start + SEGMENT], held.weights)
            _, h_keys, h_values = projections(attention, rms(h) * mixer.read_norm.weight)
            parts.append((rotary(h_keys, places), h_values, before))
        parts.append((rotary(keys, places), values, before))
        seen_keys, seen_values = (torch.cat([part[i] for part in parts], dim=2) for i in range(2))
        sees = torch.cat([part[2] for part in parts], dim=1)
        y = segment + softmax_attention(rotary(queries, places), seen_keys, seen_values, sees)
        past, reads = torch.cat((past, y), dim=1), None
        if memory is not None and held is not None and mixer.write_norm is not None:
            reads, held = written(memory, rms(past) * mixer.write_norm.weight, held, start)
        mixed.append(gated(mixer.gate, y, reads))
    return torch.cat(mixed, dim=1) @ attention.output.weight.mT


def memory_as_gate(window: int) -> Callable[[MemoryAsGate, Tensor], Tensor]:
    def formula(mixer: MemoryAsGate, x: Tensor) -> Tensor:
        reads = None if mixer.memory is None else written(mixer.memory, x, first_memory(mixer.memory))[0]
        return gated(mixer.gate, windowed(mixer.attention, x, window), reads) @ mixer.attention.output.weight.mT

    return formula


def memory_as_layer(window: int) -> Callable[[MemoryAsLayer, Tensor], Tensor]:
    def formula(mixer: MemoryAsLayer, x: Tensor) -> Tensor:
        if mixer.memory is None or mixer.read_norm is None or mixer.norm is None:
            return windowed(mixer.attention, x, window) @ mixer.attention.output.weight.mT
        reads = written(mixer.memory, x, first_memory(mixer.memory))[0]
        m = rms_per_head(reads, mixer.read_norm.weight)
        above = rms(x + m) * mixer.norm.weight
        return (m + windowed(mixer.attention, above, window)) @ mixer.attention.output.weight.mT

    return formula


def memory_alone(mixer: MemoryLayer, x: Tensor) -> Tensor:
    reads = written(mixer.memory, x, first_memory(mixer.memory))[0]
    z = x @ mixer.gate.weight.mT
    return (rms_per_head(reads, mixer.norm.weight) * z * torch.sigmoid(z)) @ mixer.output.weight.mT


@pytest.mark.parametrize("fields", [*MEMORIES, {"persistent": 0}, {"use_memory": False}], ids=str)
def test_memory_as_context(fields: dict[str, Any]) -> None:
    check(mixer_of(MemoryAsContext, "titans-mac", **fields), memory_as_context)


@pytest.mark.parametrize("window", [1, WINDOW, 64])
@pytest.mark.parametrize("fields", [{}, {"persistent": 0}, {"use_memory": False}], ids=str)
def test_memory_as_gate(fields: dict[str, Any], window: int) -> None:
    check(mixer_of(MemoryAsGate, "titans-mag", window=window, **fields), memory_as_gate(window))


@pytest.mark.parametrize("window", [1, WINDOW, 64])
@pytest.mark.parametrize("fields", [{}, {"persistent": 0}, {"use_memory": False}], ids=str)
def test_memory_as_layer(fields: dict[str, Any], window: int) -> None:
    check(mixer_of(MemoryAsLayer, "titans-mal", window=window, **fields), memory_as_layer(window))


@pytest.mark.parametrize("fields", MEMORIES, ids=str)
def test_memory_alone(fields: dict[str, Any]) -> None:
    check(mixer_of(MemoryLayer, "titans-lmm", **fields), memory_alone)


@pytest.mark.parametrize("use_memory", [True, False])
@torch.no_grad()
def test_gate(use_memory: bool) -> None:
    gate = MemoryGate(DIM, HEADS, use_memory=use_memory).to(torch.float64)
    y, reads = inputs(), inputs().flip(1) if use_memory else None

    def found() -> Tensor:
        """Of a text in two pieces."""
        said = [None] * 2 if reads is None else reads.unflatten(-1, (HEADS, -1)).split((2, y.shape[1] - 2), dim=1)
        whole: Tensor = gate(y.split((2, y.shape[1] - 2), dim=1), said)
        return whole

    # As it begins, either side passes alone.
    passed = 1 + rms_per_head(y)
    assert difference(found(), passed if reads is None else passed * F.silu(1 + rms_per_head(reads))) < 1e-12
    randomise(gate, seed=4)
    assert difference(found(), gated(gate, y, reads)) < 1e-12


@pytest.mark.parametrize("name", WITH_ATTENTION)
@pytest.mark.parametrize("fields", [{}, {"persistent": 0}, {"persistent": 0, "window": 64}], ids=str)
@torch.no_grad()
def test_flex_attention_gives_the_same(name: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    flexibly = attending.flexibly

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return flexibly(*arguments)

    monkeypatch.setattr(attending, "flexibly", counted)
    plain, flexible = (model(name, use_flex_attn=flex, **fields) for flex in (False, True))
    expected = plain(tokens())
    assert not calls
    assert difference(flexible(tokens()), expected) < 1e-10
    assert calls
    state = None
    for piece, wanted in zip(tokens().split(PIECES, dim=1), expected.split(PIECES, dim=1), strict=True):
        logits, state = flexible.step(piece, state)
        assert difference(logits, wanted) < 1e-10


@pytest.mark.parametrize("name", WITH_ATTENTION)
@torch.no_grad()
def test_persistent_keys_are_not_turned(name: str) -> None:
    [attention] = [module for module in model(name).modules() if isinstance(module, Attention)]
    assert attention.rotary_dim == TURNED
    prefix = attention.prefix()
    assert prefix
    keys, values = prefix
    assert keys.shape == values.shape == (HEADS, PERSISTENT, DIM // HEADS)
    assert not keys[..., :TURNED].any()
    assert keys[..., TURNED:].all()
    assert values.all()
    # So that wherever a query stands, it matches them as it does at the beginning.
    places = torch.arange(LENGTH)[None]
    queries = torch.randn(1, HEADS, 1, DIM // HEADS, generator=torch.Generator().manual_seed(5), dtype=keys.dtype)
    scores = attention.turned(queries.expand(-1, -1, LENGTH, -1), places) @ keys.mT
    assert difference(scores, scores[:, :, :1].expand_as(scores)) < 1e-12


@pytest.mark.parametrize("channels", [6, 4, 1])
@pytest.mark.parametrize("width", [2, 4])
def test_convolution_is_torchs(width: int, channels: int) -> None:
    conv = ShortConvolution(6, width).to(torch.float64)
    randomise(conv, seed=6)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(BATCH, 9, channels, generator=generator, dtype=torch.float64, requires_grad=True)
    tail = torch.randn(BATCH, width - 1, channels, generator=generator, dtype=torch.float64, requires_grad=True)
    whole = torch.cat((tail, x), dim=1)
    y, after = conv(x, tail)
    expected = F.conv1d(whole.mT, conv.weight.permute(2, 1, 0)[:channels], groups=channels).mT
    assert difference(y, expected) < 1e-12
    assert torch.equal(after, whole[:, 9:])
    # Fewer tokens than the tail is long: some of the old tail stays.
    short, after = conv(x[:, :1], tail)
    assert difference(short, expected[:, :1]) < 1e-12
    assert torch.equal(after, whole[:, 1:width])

    def run(x: Tensor, tail: Tensor, weight: Tensor) -> Any:
        return torch.func.functional_call(conv, {"weight": weight}, (x, tail))

    weight = conv.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (x[:, :5], tail, weight))


@pytest.mark.parametrize("time", [9, 1])
@pytest.mark.parametrize(("width", "bias"), [(4, False), (4, True), (1, False)])
# torch's compiler does so itself where it traces a derivative that is written out.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_a_compiled_convolution_learns_alike(width: int, bias: bool, time: int) -> None:
    conv = ShortConvolution(6, width, bias=bias).to(torch.float64)
    randomise(conv, seed=6)
    generator = torch.Generator().manual_seed(7)
    x, tail, y_bar, after_bar = (
        torch.randn(BATCH, length, 6, generator=generator, dtype=torch.float64)
        for length in (time, width - 1, time, width - 1)
    )
    given = [x.requires_grad_(), tail.requires_grad_(), *conv.parameters()]

    def learned(run: Callable[..., Any]) -> list[Tensor]:
        y, after = run(x, tail)
        return [y, after, *torch.autograd.grad((y, after), given, (y_bar, after_bar))]

    torch._dynamo.reset()
    compiled = learned(torch.compile(conv, fullgraph=True, backend="aot_eager"))
    for found, wanted in zip(compiled, learned(conv), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_recomputation_draws_no_other_dropout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = model(name, depth=2, attention_dropout=0.3).train()

    def seeded(seed: int) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return gradients(dropping, dropping(tokens()))

    found, other = seeded(0), seeded(1)
    plain_calls = []

    def plainly(function: Callable[..., Any], *arguments: Any) -> Any:
        plain_calls.append(function)
        return function(*arguments)

    for place, module in list(sys.modules.items()):
        for one in (recomputed, never_kept):
            if place.startswith("lockstep.") and vars(module).get(one.__name__) is one:
                monkeypatch.setattr(module, one.__name__, plainly)
    wanted = seeded(0)
    assert plain_calls
    assert found.keys() == wanted.keys() == dict(dropping.named_parameters()).keys()
    for parameter, gradient in wanted.items():
        assert difference(found[parameter], gradient) < 1e-9, parameter
    # Another seed drops others, or the equality would say nothing.
    assert all(difference(other[parameter], gradient) > 1e-6 for parameter, gradient in wanted.items())


@pytest.mark.parametrize("subject", [one for name in REMEMBERING for one in subjects(name)], ids=lambda one: one.name)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_state_shares_nothing_with_the_parameters(subject: Subject, batch: int) -> None:
    remembering = subject.model()
    before = {name: one.detach().clone() for name, one in remembering.named_parameters()}
    for _, tensor in named_tensors(remembering.initial_state(batch)):
        tensor.detach().fill_(7)
    for name, one in remembering.named_parameters():
        assert torch.equal(one, before[name]), name
