"""Where the time goes: seconds of training, prefill and decoding by part of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lockstep.evaluation.inference import check_steps, longest
from lockstep.evaluation.memory_hooks import neural_memories
from lockstep.evaluation.timing import in_mode, now, seconds
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, normed
from lockstep.models.mlp import Mlp, SwiGlu
from lockstep.models.precision import autocast_to

What = Literal["training", "prefill", "decode"]

ATTENTION, MEMORY, MIXER, MLP, OUTPUT = "attention", "memory", "mixer", "MLP", "embedding and output"
READ, WRITE = "memory read", "memory write"
BACKWARD, OPTIMIZER, REST = "backward", "optimizer", "rest"
ORDER = (ATTENTION, READ, WRITE, MIXER, MLP, OUTPUT, BACKWARD, OPTIMIZER, REST)

METHODS: tuple[tuple[type | tuple[type, ...], str, tuple[str, ...]], ...] = (
    (Attention, ATTENTION, ("forward", "step", "mix", "mix_on", "from_start", "at_once", "apart", "attend")),
    (NeuralMemory, MEMORY, ("step", "asking", "query_rows", "recall")),
    (Mixer, MIXER, ("forward", "step")),
    ((Mlp, SwiGlu), MLP, ("forward",)),
)
"""What is called of each kind of module, also by its parent: MAC only lets its attention attend. First match."""
DECODED = 8
"""Tokens of one round of decoding."""


class Stopwatch:
    """Time spent inside parts, each without the parts that it contains."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._inside = [REST]
        self._spent: dict[str, float] = {}
        self._since = 0.0

    def lap(self, work: Callable[[], object]) -> dict[str, float]:
        """Seconds by part while the work is done; what is in no part is the rest."""
        self._spent, self._since = {}, now(self.device)
        work()
        self._turn()
        return self._spent

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        # A backward pass is a whole, though it may run some of the forward pass again, and in a thread of its own.
        if self._inside[-1] == BACKWARD:
            yield
            return
        self._turn()
        self._inside.append(name)
        try:
            yield
        finally:
            self._turn()
            self._inside.pop()

    def _turn(self) -> None:
        moment, name = now(self.device), self._inside[-1]
        self._spent[name] = self._spent.get(name, 0.0) + moment - self._since
        self._since = moment


def profile(
    model: LanguageModel,
    tokens: Tensor,
    what: What,
    device: torch.device,
    rounds: int = 5,
    optimizers: Sequence[torch.optim.Optimizer] = (),
    lower: torch.dtype | None = None,
) -> dict[str, float]:
    """Seconds by part for tokens [batch, time]; parts that a model does not have are absent.

    Training is one forward and backward pass of a copy, and a step of its optimizers where they are given; the loss
    belongs to the output, and products are of `lower` precision, if one is given. Decoding is one token after `tokens`,
    or after fewer of them where positions end. What normalises and adds between parts is the rest, what mixers do
    around an attention or a memory is the mixer.

    A memory reads and writes in one function, which does the same work whether or not its gates let anything through.
    So its whole time is measured, and then that of reading alone: the same queries to a memory that stands still. The
    difference is the write, with what reading each token's own state costs beyond that.

    Parts are medians over rounds in which the device is waited for at each boundary; they are scaled so that they add
    up to the median of rounds in which it is not.
    """
    if what == "training":
        model, optimizers = copy.deepcopy((model, optimizers))
    watch, devices = Stopwatch(device), [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        in_mode(model, training=what == "training"),
        torch.inference_mode(what != "training"),
    ):
        work, times = prepared_work(model, tokens, what, watch, optimizers, lower)
        whole = median(seconds(work, rounds, device)) / times
        parts = measured_parts(model, watch, work, rounds)
    scale = whole / sum(parts.values())
    return {name: parts[name] * scale for name in ORDER if name in parts}


def measured_parts(model: LanguageModel, watch: Stopwatch, work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Seconds of a round by part, in rounds after one that does not count."""
    with watched(model, watch):
        parts = medians([watch.lap(work) for _ in range(1 + rounds)][1:])
    if MEMORY in parts:
        with read_only(model), watched(model, watch):
            reading = medians([watch.lap(work) for _ in range(1 + rounds)][1:])[MEMORY]
        held = parts.pop(MEMORY)
        parts[READ] = min(reading, held)
        parts[WRITE] = held - parts[READ]
    return parts


def prepared_work(
    model: LanguageModel,
    tokens: Tensor,
    what: What,
    watch: Stopwatch,
    optimizers: Sequence[torch.optim.Optimizer],
    lower: torch.dtype | None,
) -> tuple[Callable[[], object], int]:
    """What a round does, and how many times it does it."""
    batch, time = tokens.shape
    if what == "training":
        return partial(train, model, tokens, watch, optimizers, lower), 1
    check_steps(model, time - 1)
    if what == "prefill":
        return lambda: model.step(tokens, model.initial_state(batch, capacity=time)), 1
    room = longest(model) or time + DECODED
    before = tokens[:, : max(1, room - DECODED)]
    _, context = model.step(before, model.initial_state(batch, capacity=time + DECODED))
    count = min(DECODED, room - before.shape[1])

    def decode() -> None:
        state = context
        for place in range(count):
            _, state = model.step(tokens[:, place % time, None], state)

    return decode, count


def train(
    model: LanguageModel,
    tokens: Tensor,
    watch: Stopwatch,
    optimizers: Sequence[torch.optim.Optimizer],
    lower: torch.dtype | None = None,
) -> None:
    """Forward, backward, and a step of each optimizer; the tokens are their own targets."""
    with autocast_to(tokens.device, lower):
        logits = model(tokens)
        with watch.part(OUTPUT):
            loss = token_losses(logits, tokens).mean()
    with watch.part(BACKWARD):
        loss.backward()
    if optimizers:
        with watch.part(OPTIMIZER):
            for optimizer in optimizers:
                optimizer.step()
    model.zero_grad(set_to_none=True)


def medians(laps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(lap[name] for lap in laps) for name in laps[0]}


@contextmanager
def watched(model: LanguageModel, watch: Stopwatch) -> Iterator[None]:
    """Every part tells the watch when it is entered and left, as long as the block lasts."""
    calls: list[tuple[nn.Module, str, str]] = [(model, name, OUTPUT) for name in ("embed", "logits")]
    calls += [(module, "forward", OUTPUT) for module in (model.embedding, model.head)]
    for module in model.modules():
        kinds = ((part, names) for kind, part, names in METHODS if isinstance(module, kind))
        part, names = next(kinds, ("", ()))
        calls += [(module, name, part) for name in names]

    def told(module: nn.Module, name: str, part: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(module, name)

        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            with watch.part(part):
                return method(*arguments, **named)

        return call

    with replaced([(module, name, told(module, name, part)) for module, name, part in calls]):
        yield


@contextmanager
def read_only(model: LanguageModel) -> Iterator[None]:
    """Memories that do nothing but read, as long as the block lasts."""
    memories = neural_memories(model).values()
    with replaced([(memory, "step", partial(read_alone, memory)) for memory in memories]):
        yield


def read_alone(
    memory: NeuralMemory,
    x: Tensor,
    state: NeuralState | None,
    position: int | None = None,
    norm: nn.RMSNorm | None = None,
) -> tuple[Tensor, NeuralState]:
    """In the place of a memory's step: what its queries find in the memory as it stands."""
    state = memory.initial_state(x.shape[0]) if state is None else state
    tail = state.tail[..., : memory.dim] if isinstance(state.tail, Tensor) else state.tail
    queries, _ = memory.asking(x, tail)
    said = memory.recall(queries, state.memory.weights)
    return said if norm is None else normed(norm, said), state


@contextmanager
def replaced(methods: Sequence[tuple[nn.Module, str, Callable[..., Any]]]) -> Iterator[None]:
    """Other functions in the place of modules' methods, which are always put back."""
    before = [vars(module).get(name) for module, name, _ in methods]
    try:
        for module, name, function in methods:
            object.__setattr__(module, name, function)
        yield
    finally:
        for (module, name, _), own in zip(methods, before, strict=True):
            vars(module).pop(name, None)
            if own is not None:
                object.__setattr__(module, name, own)
