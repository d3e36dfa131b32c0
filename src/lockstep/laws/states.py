"""A state has fixed shapes, and the bytes that `cost` says."""

from __future__ import annotations

import torch

from lockstep.laws.comparison import shape
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.state import State, named_tensors, state_bytes

LENGTHS = (1, 7, 32, 61)


def state_shapes(subject: Subject) -> None:
    """After any step every tensor has the shape and dtype it began with."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        require_fixed(subject, subject.model(dtype), str(dtype).removeprefix("torch."))
    with torch.autocast("cpu", torch.bfloat16):
        require_fixed(subject, subject.model(torch.float32), "float32 under bfloat16 autocast")


def require_fixed(subject: Subject, model: LanguageModel, what: str) -> None:
    first = state = model.initial_state(3, capacity=LENGTH)
    done = 0
    for size in (1, 9, 1, 3, LENGTH - 14):
        _, state = model.step(subject.tokens(3, size), state)
        done += size
        require_same_shapes(state, first, f"after {done} tokens in {what}")


def require_same_shapes(state: State, first: State, what: str) -> None:
    before = {name: (shape(tensor), tensor.dtype) for name, tensor in named_tensors(first)}
    after = {name: (shape(tensor), tensor.dtype) for name, tensor in named_tensors(state)}
    if before.keys() != after.keys():
        raise LawBroken(f"{what} the state holds {', '.join(after)} instead of {', '.join(before)}")
    for name, now in after.items():
        if now != before[name]:
            raise LawBroken(
                f"{what} {name} is {now[0]} of {now[1]}, but began as {before[name][0]} of {before[name][1]}"
            )


def state_size(subject: Subject) -> None:
    """Counted at the beginning, and after a prefill: a view must not keep the whole prefill alive."""
    for dtype in (torch.float64, torch.bfloat16):
        model = subject.model(dtype)
        for length in LENGTHS:
            claimed = model.cost(length).state_bytes
            if not subject.kind.causal:
                if claimed:
                    raise LawBroken(f"bidirectional, so it carries no state, but cost({length}) claims {claimed} bytes")
                continue
            initial = model.initial_state(2, capacity=length)
            _, state = model.step(subject.tokens(2, length), initial)
            require_bytes(state_bytes(initial), claimed, f"initial_state(2, {length})")
            require_bytes(state_bytes(state), claimed, f"the state after {length} tokens")
            held = storage_bytes(state)
            if held > 2 * claimed:
                raise LawBroken(f"after {length} tokens views keep {held} bytes alive for 2 sequences of {claimed}")


def require_bytes(measured: int, claimed: int, what: str) -> None:
    if measured != 2 * claimed:
        raise LawBroken(f"{what} has {measured} bytes for 2 sequences, but cost claims {claimed} for one")


def storage_bytes(state: State) -> int:
    """Bytes that a state keeps from being freed, shared storages once."""
    storages = [tensor.untyped_storage() for _, tensor in named_tensors(state)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
