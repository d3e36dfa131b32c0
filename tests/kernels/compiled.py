"""Compiles what memories and recurrences would launch, for a GPU that need not be there; prints the kernels' names.

    python -m tests.kernels.compiled mlp 90

The interpreter lets pass what a compiler does not: names that change their type in a loop, shapes that do not fit. And
a compiler lets pass what it should not: see `machine_code`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels import succession
from lockstep.kernels.attention import looking, window
from lockstep.kernels.memory import hopper, token
from lockstep.kernels.memory.token_brought import Projected
from lockstep.kernels.recurrences import channel, decayed, delta, flow, selective
from lockstep.kernels.recurrences import token as recurrence_token
from lockstep.kernels.rows.gated_operator import gated
from lockstep.kernels.rows.joined_operator import joined
from lockstep.kernels.rows.operator import rows
from lockstep.kernels.rows.token_operator import token_rows_
from lockstep.memory import Gates, Memory, MemorySpec, Outer, begin, memorize
from lockstep.memory.streaming import recollect_by_kernel
from tests.kernels.machine_code import overwritten
from tests.kernels.patience import require_patience
from tests.memory.cases import Fields

HEADS, TIME, WIDTH, HIDDEN = 2, 256, 64, 128
MANY = 24
"""Heads of a layer that is wider than what its kernels multiply at once."""
ROOM = 232_448
"""Bytes of shared memory that a program may have on Hopper."""
IN_64_BITS = {"look_kernel"}
"""Who asks for such numbers: an angle of a million tokens is brought within a turn by them."""
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64"}
WHOLE: Fields = {"norm": True, "residual": True, "decay_to": "initial", "chunk": 64}
BIASES: list[Fields] = [
    {"bias": "lp", "p": 3},
    {"bias": "lp", "p": 1.5},
    *({"bias": "huber", "huber_form": form} for form in ("norm", "coordinate", "switch")),
]
SPECS = {
    "mlp": [MemorySpec(**WHOLE)],
    "mlp,descent": [MemorySpec(rule="gradient-descent", chunk=64)],
    "hopper": [MemorySpec(**WHOLE)],
    "hopper,descent": [MemorySpec(rule="gradient-descent", chunk=64, activation="silu", bias="huber")],
    "retained": [
        MemorySpec(**WHOLE, rule="gradient-descent", retention="lq", bias="lp", p=3),
        MemorySpec(**WHOLE, rule="gradient-descent", retention="kl"),
        MemorySpec(rule="gradient-descent", retention="lq", q=3, chunk=64),
    ],
    "hopper,retained": [MemorySpec(**WHOLE, rule="gradient-descent", retention="kl")],
    "stale": [MemorySpec(**WHOLE, structure="linear")],
    "exact": [MemorySpec(structure="linear", chunk=1, tile=64)],
    "biases": [MemorySpec(**WHOLE, **bias, structure=structure) for bias in BIASES for structure in ("mlp", "linear")],
    "recall": [MemorySpec(**WHOLE), MemorySpec(activation="relu")],
}
RECURRENCES = {"decayed": [(1, 16, 128, 64), (2, 2, 64, 128), (1, 1, 256, 512), (2, 2, 64, 65)]}
"""Heads of keys and of values, and their widths."""
STEPS = {"recurrence token": [(1, 16, 128, 64), (6, 6, 64, 128), (4, 4, 256, 512), (2, 2, 64, 65)]}
"""The same, of single tokens."""
DELTAS = {"delta": [(64, 64), (128, 128), (96, 192), (256, 512)]}
"""Widths of keys and of values."""
CHANNELS = {"channel": [(32, 64), (64, 65), (256, 512)]}
"""The same, where channels decay on their own."""
SCANS = {"selective": [(16, torch.bfloat16), (16, torch.float32), (8, torch.bfloat16), (64, torch.bfloat16)]}
"""Numbers of a channel, and what tokens come in."""
ROWS = {"rows": [(64, 4), (128, 8), (16, 2)]}
"""Widths of heads, and taps of convolutions."""
BROUGHT = {"token rows": [(64, 4), (128, 8), (16, 2)]}
"""The same, of single tokens."""
GATES = {"gated": [(1024, 1), (4096, 1), (1536, 2), (1001, 1), (48, 3)]}
"""Numbers of a token, and groups of them."""
JOINTS = {"joined": [64, 128, 16]}
"""Widths of heads."""
WINDOWS = {"window": [(1, 64, 4, 16), (2, 64, 0, 32), (1, 128, 16, 0), (1, 32, 4, 8), (1, 16, 4, 4)]}
"""Heads that share keys, their width, persistent tokens, and pairs that turn."""
CACHES = {
    "look": [
        (1, 64, 1024, 16),
        (1, 64, 256, 32),
        (4, 64, 1024, 32),
        (4, 128, 65, 32),
        (1, 64, 65, 0),
        (4, 64, 16_384, 32),
        (1, 128, 16_384, 32),
    ]
}
"""Heads that share keys, their width, slots, and pairs that turn."""
TOKENS = {
    "token": [
        (1, 128, MemorySpec(**WHOLE)),
        (64, 128, MemorySpec(**WHOLE)),
        (64, 64, MemorySpec(**WHOLE)),
        (1, 256, MemorySpec(rule="gradient-descent", activation="silu", bias="huber")),
        (1, 128, MemorySpec(**WHOLE, rule="gradient-descent", retention="lq", bias="lp", p=3)),
        (64, 128, MemorySpec(**WHOLE, rule="gradient-descent", retention="kl")),
    ]
}
"""Samples, hidden units, and memories that are given one token."""
TRANSLATED = {"biases"}
"""As far as Triton's own language alone, which is where a bias differs from another: the rest takes long."""
OVERLAPPING = {"overlapping": [(TOKENS["token"], [(4, 4, 64, 128)], [(64, 4)], [(1, 64, 1024, 16)])]}
"""Memories, states, rows and caches that are given one token, by kernels that begin before the last has ended."""
STANDING = {"recall"}
"""Memories that are asked alone."""

Step = Callable[[ASTSource, GPUTarget, dict[str, Any]], None]


def compile_instead(step: Step, target: GPUTarget, seen: set[str]) -> Any:
    """What stands for a launch."""

    def launch(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        names = [parameter.name for parameter in kernel.params]
        given = dict(zip(names, arguments, strict=False)) | {name: named[name] for name in names if name in named}
        options = {name: value for name, value in named.items() if name not in names}
        constants = {name: value for name, value in given.items() if is_constant(kernel, name, value)}
        signature = {name: "constexpr" if name in constants else typed(given[name]) for name in names}
        source = GluonASTSource if kernel.is_gluon() else ASTSource
        step(source(kernel, signature, constexprs=constants, attrs=aligned(kernel, given)), target, options)
        seen.add(kernel.fn.__name__)

    return launch


def compiled(source: ASTSource, target: GPUTarget, options: dict[str, Any]) -> None:
    """To machine code, in which first operands survive their loops."""
    made = triton.compile(source, target=target, options=options)
    require_32_bits(source, made.asm["ttir" if "ttir" in made.asm else "ttgir"])
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "cubin")
        cubin.write_bytes(made.asm["cubin"])
        lost = overwritten(cubin)
    if options.get("launch_pdl"):
        parameters = [name for name, kind in source.signature.items() if kind != "constexpr"]
        require_patience(source.name, parameters, made.asm["ptx"])
    assert not lost, f"{source.name}: first operands that a loop overwrites: {lost}"
    assert made.metadata.shared <= ROOM, f"{source.name} wants {made.metadata.shared} bytes of shared memory"


def translated(source: ASTSource, target: GPUTarget, options: dict[str, Any]) -> None:
    """To Triton's intermediate language."""
    context, backend = ir.context(), make_backend(target)
    ir.load_dialects(context)
    backend.load_dialects(context)
    chosen = backend.parse_options(options)
    functions, modules = backend.get_codegen_implementation(chosen), backend.get_module_map()
    require_32_bits(source, str(source.make_ir(target, chosen, functions, modules, context)))


def require_32_bits(source: ASTSource, text: str) -> None:
    """Numbers of 64 bits come of constants that 32 do not hold, where nobody asked for them."""
    assert "f64" not in text or source.name in IN_64_BITS, f"{source.name} computes in 64 bits"


def is_constant(kernel: Any, name: str, value: Any) -> bool:
    return value is None or any(one.name == name and one.is_constexpr for one in kernel.params)


def aligned(kernel: Any, given: dict[str, Any]) -> dict[tuple[int, ...], list[list[Any]]]:
    """As Triton is told where it runs: of wide loads, several numbers at a time, some are made otherwise."""
    numbers = {parameter.name: number for number, parameter in enumerate(kernel.params)}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    return {(numbers[name],): [["tt.divisibility", 16]] for name, x in tensors.items() if x.data_ptr() % 16 == 0}


def typed(value: Any) -> str:
    if isinstance(value, GluonTensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    return f"*{TYPES[value.dtype]}" if isinstance(value, Tensor) else "i32"


def run(spec: MemorySpec) -> None:
    """A memory in bfloat16, there and back; the numbers mean nothing."""

    def gate() -> Tensor:
        return torch.rand(1, HEADS, TIME).requires_grad_()

    rows = [torch.randn(1, HEADS, TIME, WIDTH).bfloat16().requires_grad_() for _ in range(3)]
    momentum, threshold = gate() if spec.has_momentum else None, gate() if spec.bias == "huber" else None
    shapes = [(WIDTH, WIDTH)] if spec.structure == "linear" else [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    weights = tuple(torch.randn(1, HEADS, *shape) for shape in shapes)
    memory = Memory(weights, tuple(map(torch.zeros_like, weights)) if spec.has_momentum else None)
    gain, shift = torch.ones(HEADS, WIDTH).requires_grad_(), torch.zeros(HEADS, WIDTH).requires_grad_()
    initial = tuple(matrix[0].clone().requires_grad_() for matrix in weights)
    outer = Outer(
        gain if spec.norm else None, shift if spec.norm else None, initial if spec.decay_to == "initial" else None
    )
    gates = Gates(gate(), gate(), momentum, threshold)
    reads, _ = memorize(rows[0], rows[1], rows[2], gates, memory, spec, "kernel", outer)
    reads.float().sum().backward()


def ask(spec: MemorySpec) -> None:
    """What a memory of two matrices says in bfloat16 while nothing is written, there and back."""
    queries = torch.randn(1, HEADS, TIME, WIDTH).bfloat16().requires_grad_()
    held = tuple(torch.randn(1, HEADS, *shape).requires_grad_() for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    outer = Outer(torch.ones(HEADS, WIDTH).requires_grad_(), torch.zeros(HEADS, WIDTH).requires_grad_())
    recollect_by_kernel(queries, held, spec, outer).float().sum().backward()


def decode(batch: int, hidden: int, spec: MemorySpec) -> None:
    """One token in bfloat16, written over the state and not."""

    def gate() -> Tensor:
        return torch.rand(batch, HEADS, 1)

    def matrices(*leading: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(*leading, *shape) for shape in ((WIDTH, hidden), (hidden, WIDTH)))

    queries, keys, values = (torch.randn(batch, HEADS, 1, WIDTH).bfloat16() for _ in range(3))
    gates = Gates(gate(), gate(), gate() if spec.has_momentum else None, gate() if spec.bias == "huber" else None)
    velocity = matrices(batch, HEADS) if spec.has_momentum else None
    state = begin(Memory(matrices(batch, HEADS), velocity))
    outer = Outer(torch.ones(HEADS, WIDTH), torch.zeros(HEADS, WIDTH), matrices(HEADS))
    _, state = token.run(queries, keys, values, gates, state, spec, outer)
    token.run_over(queries, keys, values, gates, state, spec, outer)
    token.recall(queries, state.weights, spec, outer)
    dim = HEADS * WIDTH
    asking = queries[:, :, 0], torch.randn(4, dim), torch.randn(batch, 3, dim).bfloat16(), 1e-6
    token.recall_over(asking, state.weights, state.point, (state.position, 64), spec, outer)
    for heads, norm in ((HEADS, None), (MANY, torch.ones(WIDTH))):
        owner = begin(Memory(matrices(batch, heads), matrices(batch, heads) if spec.has_momentum else None))
        lending = Outer(torch.ones(heads, WIDTH), torch.zeros(heads, WIDTH), matrices(heads))
        made = bringing(batch, heads, 2 + spec.has_momentum + (spec.bias == "huber"), spec.bias == "huber", norm)
        token.run_of(made, owner._replace(weights=matrices(batch, heads)), spec, lending)


def bringing(batch: int, heads: int, gates: int, threshold: bool, norm: Tensor | None) -> Projected:
    """What a token is made of, in a layer of this many heads."""
    dim = heads * WIDTH
    projected, tail = torch.randn(batch, 3 * dim).bfloat16(), torch.randn(batch, 3, 3 * dim).bfloat16()
    gating = torch.randn(batch, dim).bfloat16(), torch.randn(gates * heads, dim), torch.randn(gates * heads)
    return Projected(projected, torch.randn(4, 3 * dim), tail, *gating, 1e-6, True, threshold, 0.5, norm, 1e-6)


def recur(groups: int, heads: int, key_dim: int, value_dim: int) -> None:
    """A decayed recurrence, likewise, as a short text has it and as many long ones have it: then programs walk."""
    widths, usual = ((groups, key_dim), (groups, key_dim), (heads, value_dim)), (flow.PROGRAMS, flow.WALKERS)
    for time, least in ((TIME, usual), (2 * TIME, (1, 1))):
        flow.PROGRAMS, flow.WALKERS = least
        queries, keys, values = (torch.randn(1, count, time, width).requires_grad_() for count, width in widths)
        log_keep, state = torch.zeros(1, heads, time).requires_grad_(), torch.zeros(1, heads, key_dim, value_dim)
        reads, _ = decayed.run(queries, keys, values, log_keep, state)
        reads.sum().backward()
    flow.PROGRAMS, flow.WALKERS = usual


def recur_once(groups: int, heads: int, key_dim: int, value_dim: int) -> None:
    """One token of all rules, likewise."""
    queries, keys = (torch.randn(1, groups, 1, key_dim).bfloat16() for _ in range(2))
    values, state = torch.randn(1, heads, 1, value_dim).bfloat16(), torch.zeros(1, heads, key_dim, value_dim)
    number, channels = torch.zeros(1, heads, 1), torch.zeros(1, heads, 1, key_dim)
    for log_keep, rate in ((None, None), (number, None), (channels, None), (number, number)):
        recurrence_token.run(queries, keys, values, log_keep, rate, state)


def correct(key_dim: int, value_dim: int) -> None:
    """The delta rule, likewise."""
    widths = (key_dim, key_dim, value_dim)
    queries, keys, values = (torch.randn(1, HEADS, TIME, width).requires_grad_() for width in widths)
    rate, log_keep = (torch.zeros(1, HEADS, TIME).requires_grad_() for _ in range(2))
    reads, _ = delta.run(queries, keys, values, rate, log_keep, torch.zeros(1, HEADS, key_dim, value_dim))
    reads.sum().backward()


def fade(key_dim: int, value_dim: int) -> None:
    """Channels that decay on their own, likewise."""
    widths = (key_dim, key_dim, value_dim, key_dim)
    queries, keys, values, log_keep = (torch.zeros(1, HEADS, TIME, width).requires_grad_() for width in widths)
    reads, _ = channel.run(queries, keys, values, log_keep, torch.zeros(1, HEADS, key_dim, value_dim))
    reads.sum().backward()


def scan(d_state: int, low: torch.dtype) -> None:
    """A selective scan, likewise."""
    widths = (d_state, d_state, WIDTH)
    queries, keys, values = (torch.randn(1, TIME, width, dtype=low).requires_grad_() for width in widths)
    rate, decay = (torch.zeros(*shape).requires_grad_() for shape in ((1, TIME, WIDTH), (d_state, WIDTH)))
    reads, _ = selective.run(queries, keys, values, rate, decay, torch.zeros(1, d_state, WIDTH))
    reads.sum().backward()


def attend(group: int, width: int, persistent: int, pairs: int) -> None:
    """Attention in a window, likewise; where heads are 64 wide, with a second row."""
    own = tuple(torch.randn(HEADS, persistent, width, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    qkv = torch.randn(1, TIME, (group + 2) * HEADS * width, dtype=torch.bfloat16).requires_grad_()
    said = qkv[..., : 2 * HEADS * width] if width == WIDTH else None
    turns = torch.randn(2, TIME, pairs) if pairs else None
    window.run(qkv, said, (own[0], own[1]), turns, 64).float().sum().backward()


def look(group: int, width: int, slots: int, pairs: int) -> None:
    """One token's attention over a cache, likewise."""
    rates = torch.ones(pairs) if pairs else None
    for count in (1, 2):
        qkv = torch.randn(1, 1, (group + 2) * HEADS * width).bfloat16()
        said = torch.randn(1, 1, 2 * HEADS * width).bfloat16() if count == 2 else None
        keys, values = (torch.randn(1, HEADS, 4 + count * slots, width).bfloat16() for _ in range(2))
        cache = looking.Cache(keys, values, torch.zeros(1, dtype=torch.int64))
        looking.run(qkv, said, cache, rates, group * HEADS, 4, segmented=count == 2)


def make_rows(width: int, taps: int) -> None:
    """A memory's rows from bfloat16 projections, likewise."""
    projected = torch.randn(1, TIME, 3 * HEADS * width).bfloat16().requires_grad_()
    weight = torch.randn(taps, 3 * HEADS * width).requires_grad_()
    for together in (False, True):
        lengths, tail = [0.5, 1.0, 0.0], torch.zeros(1, taps - 1, 3 * HEADS * width)
        bias = torch.zeros(3 * HEADS * width, requires_grad=True) if together else None
        made, _ = rows(projected, weight, tail, bias, [HEADS] * 3, lengths, 1e-6, together)
        torch.stack(made).float().sum().backward()


def open_gates(inner: int, groups: int) -> None:
    """What Mamba-2 reads, gated and normalised, likewise."""
    tokens = [torch.randn(1, TIME, inner).bfloat16().requires_grad_() for _ in range(3)]
    skip, gain = (torch.ones(count, requires_grad=True) for count in (1, inner))
    gated(*tokens, skip, gain, groups, 1e-5).float().sum().backward()


def join(width: int) -> None:
    """What attention and memory say in two pieces, likewise."""
    attended = [torch.randn(1, time, HEADS * width).bfloat16().requires_grad_() for time in (TIME, 65)]
    reads = [torch.randn(1, HEADS, x.shape[1], width).bfloat16().transpose(1, 2).requires_grad_() for x in attended]
    learned = [torch.ones(HEADS * width, requires_grad=True) for _ in range(4)]
    joined(attended, reads, *learned, 1e-6).float().sum().backward()


def bring(width: int, taps: int) -> None:
    """Rows of one token in bfloat16, of three parts as they are, or of one in 32 bits."""
    for lengths, dtype in (([1.0, 1.0, 0.0], None), ([1.0], torch.float32)):
        channels = len(lengths) * HEADS * width
        projected, tail = torch.randn(1, channels).bfloat16(), torch.zeros(1, taps - 1, channels).bfloat16()
        bias = None if dtype is None else torch.randn(channels)
        token_rows_(projected, torch.randn(taps, channels), tail, bias, [HEADS] * len(lengths), lengths, 1e-6, dtype)


def say(inner: int) -> None:
    """One token of what Mamba-2 reads, gated; and of what attention and a memory say, joined."""
    gated(*(torch.randn(1, 1, inner).bfloat16() for _ in range(3)), torch.ones(HEADS), torch.ones(inner), 1, 1e-5)
    attended, reads = torch.randn(1, 1, inner).bfloat16(), torch.randn(1, 1, HEADS, inner // HEADS).bfloat16()
    joined([attended], [reads], *(torch.ones(inner) for _ in range(4)), 1e-6)


def overlap(memories: Any, states: Any, brought: Any, caches: Any) -> None:
    """As a decoder asks for it where a device can do that."""
    succession.overlaps = lambda _: True  # type: ignore[assignment] # as if there were one
    with succession.token_by_token():
        for batch, hidden, spec in memories:
            decode(batch, hidden, spec)
        for sizes in states:
            recur_once(*sizes)
        for width, taps in brought:
            bring(width, taps)
        for shape in caches:
            look(*shape)
        say(HEADS * WIDTH)


def main() -> None:
    seen: set[str] = set()
    asked, target = sys.argv[1], GPUTarget("cuda", int(sys.argv[2]), 32)
    JITFunction.run = compile_instead(translated if asked in TRANSLATED else compiled, target, seen)
    if asked.startswith("hopper"):
        hopper.suited = lambda _: True  # type: ignore[assignment] # as if there were one
        hopper.programs = lambda _: (1,)  # type: ignore[assignment] # likewise
    for spec in SPECS.get(asked, ()):
        ask(spec) if asked in STANDING else run(spec)
    for batch, hidden, spec in TOKENS.get(asked, ()):
        decode(batch, hidden, spec)
    for kinds in OVERLAPPING.get(asked, ()):
        overlap(*kinds)
    for sizes in RECURRENCES.get(asked, ()):
        recur(*sizes)
    for sizes in STEPS.get(asked, ()):
        recur_once(*sizes)
    for widths in DELTAS.get(asked, ()):
        correct(*widths)
    for widths in CHANNELS.get(asked, ()):
        fade(*widths)
    for d_state, low in SCANS.get(asked, ()):
        scan(d_state, low)
    for width, taps in ROWS.get(asked, ()):
        make_rows(width, taps)
    for inner, groups in GATES.get(asked, ()):
        open_gates(inner, groups)
    for width in JOINTS.get(asked, ()):
        join(width)
    for width, taps in BROUGHT.get(asked, ()):
        bring(width, taps)
    for sizes in WINDOWS.get(asked, ()):
        attend(*sizes)
    for shape in CACHES.get(asked, ()):
        look(*shape)
    sys.stdout.write(json.dumps(sorted(seen)))


if __name__ == "__main__":
    main()
