"""Samples of a batch may stand at different positions; states are stacked, selected, reset and saved."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lockstep.laws.comparison import require_equal, require_same_state
from lockstep.laws.subject import Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.state import State, load_state, reset, save_state, select, stack

PREFIXES = (1, 6, 12, 19)
"""Where the samples stand, on several sides of a variant's windows and chunks."""
CAPACITY = 48


def mixed_positions(subject: Subject) -> None:
    """Sequences stacked at different positions go on as each would alone."""
    model = subject.model()
    tokens = [subject.tokens(1, CAPACITY, seed) for seed in range(len(PREFIXES))]
    require_continuation(model, tokens, PREFIXES, stacked(model, tokens), "stacked")


def states_selected(subject: Subject) -> None:
    """Rows are picked in any order; repeated ones branch."""
    model = subject.model()
    tokens = [subject.tokens(1, CAPACITY, seed) for seed in range(len(PREFIXES))]
    rows = [3, 0, 3, 1]
    state = select(stacked(model, tokens), rows)
    require_continuation(model, [tokens[row] for row in rows], [PREFIXES[row] for row in rows], state, "selected")


def states_reset(subject: Subject) -> None:
    """Marked rows start anew, the others go on."""
    model = subject.model()
    tokens = [subject.tokens(1, CAPACITY, seed) for seed in range(len(PREFIXES))]
    marked = torch.tensor([False, True, False, True])
    initial = model.initial_state(len(PREFIXES), CAPACITY)
    state = reset(stacked(model, tokens), marked, initial)
    positions = [0 if mark else prefix for mark, prefix in zip(marked.tolist(), PREFIXES, strict=True)]
    require_continuation(model, tokens, positions, state, "reset")


def states_saved(subject: Subject) -> None:
    """A state written to a file and read back is the same and goes on the same."""
    model = subject.model()
    tokens = [subject.tokens(1, CAPACITY, seed) for seed in range(len(PREFIXES))]
    state = stacked(model, tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        save_state(state, path)
        loaded = load_state(path, like=model.initial_state(1))
    require_same_state(loaded, state, "a state read back")
    require_continuation(model, tokens, PREFIXES, loaded, "read back")
    # As `step` leaves it, which a stack has copied: parts of it may be one tensor.
    for length in (0, *PREFIXES, 8):
        state = model.step(tokens[0][:, :length])[1] if length else model.initial_state(1)
        with tempfile.TemporaryDirectory() as folder:
            save_state(state, Path(folder) / "state.safetensors")
            loaded = load_state(Path(folder) / "state.safetensors", like=state)
        require_same_state(loaded, state, f"a state after {length} tokens, read back")


def stacked(model: LanguageModel, tokens: Sequence[Tensor]) -> State:
    """One state of samples that have seen PREFIXES tokens each."""
    states = []
    for row, prefix in zip(tokens, PREFIXES, strict=True):
        _, state = model.step(row[:, :prefix], model.initial_state(1, CAPACITY))
        states.append(state)
    return stack(states)


def require_continuation(
    model: LanguageModel, tokens: Sequence[Tensor], positions: Sequence[int], state: State, what: str
) -> None:
    """Step the batch in pieces and compare each row with its own whole sequence."""
    expected = [model(row) for row in tokens]
    done = 0
    for size in (1, 7, 1, 4, 11):
        begins = [position + done for position in positions]
        piece = torch.cat([row[:, at : at + size] for row, at in zip(tokens, begins, strict=True)])
        logits, state = model.step(piece, state)
        for row, at in enumerate(begins):
            alone = expected[row][:, at : at + size]
            told = f"{what} states at {'/'.join(map(str, begins))}: row {row}, {size} tokens, against alone"
            require_equal(logits[row : row + 1], alone, told)
        done += size
