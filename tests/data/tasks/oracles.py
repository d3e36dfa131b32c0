"""What a perfect reader answers, from the rules of each task alone: no generator is looked at.

A reader is given a sequence whose answers are hidden, where they stand, and the knobs of the task. It knows one thing
about the alphabet: symbols are the byte tokenizer's first tokens, 0, 1, 2, ..., in the order that a task describes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, reduce
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from lockstep.config.tasks import CopyingSpec, InductionSpec, NoiseSpec, RecallSpec, StatesSpec

HIDDEN = -1
BLANK, SEPARATOR, MARKER = 0, 1, 0
SymbolSpec = RecallSpec | InductionSpec | CopyingSpec | StatesSpec | NoiseSpec


def read(spec: SymbolSpec, tokens: Sequence[int], places: Sequence[int]) -> list[int]:
    """The answers that stand at `places` of `tokens`."""
    match spec:
        case RecallSpec() | InductionSpec():
            return [followers(tokens, place)[-1] for place in places]
        case NoiseSpec():
            return [majority(followers(tokens, place)) for place in places]
        case CopyingSpec():
            return [token for token in tokens[: tokens.index(SEPARATOR)] if token != BLANK]
        case StatesSpec():
            return [product(spec, tokens[:place]) for place in places]


def followers(tokens: Sequence[int], place: int) -> list[int]:
    """What was shown after the symbol before `place`, each time that it stood earlier; earlier answers are hidden."""
    met = [tokens[at + 1] for at in range(place - 1) if tokens[at] == tokens[place - 1]]
    return [token for token in met if token != HIDDEN]


def majority(shown: list[int]) -> int:
    """The one that is more than half of all: it must be there."""
    ((value, count),) = Counter(shown).most_common(1)
    assert 2 * count > len(shown)
    return value


def product(spec: StatesSpec, tokens: Sequence[int]) -> int:
    """The symbol of the product, by multiplying matrices: row x of a permutation has its one in column p(x)."""
    elements = [token for token in tokens if token not in (HIDDEN, MARKER)]
    name, first = next((name, symbols[0]) for name, symbols in group_symbols(spec).items() if elements[0] in symbols)
    group = matrices(name)
    state = reduce(np.matmul, (group[element - first] for element in elements))
    (answer,) = np.flatnonzero((group == state).all(axis=(1, 2))).tolist()
    return first + int(answer)


@cache
def matrices(name: str) -> NDArray[np.float64]:
    """[elements, n, n] in the order of their rows: S all of them, A those of determinant 1."""
    n = int(name[1])
    everyone: NDArray[np.float64] = np.eye(n)[np.array(sorted(permutations(range(n))))]
    return everyone if name[0] == "S" else np.compress(np.linalg.det(everyone) > 0, everyone, axis=0)


def group_symbols(spec: StatesSpec) -> dict[str, range]:
    """Marker first, then each group's symbols."""
    first = 1
    found: dict[str, range] = {}
    for name in spec.group:
        found[name] = range(first, first + {"S3": 6, "A5": 60, "S5": 120}[name])
        first = found[name].stop
    return found


def candidates(spec: SymbolSpec, tokens: Sequence[int], place: int) -> list[int]:
    """All symbols that may stand at `place` as far as one knows who has not read what came before the question."""
    match spec:
        case RecallSpec() | NoiseSpec():
            return list(range(1 + spec.vocabulary // 2, 1 + spec.vocabulary))
        case InductionSpec():
            return [symbol for symbol in range(spec.vocabulary) if symbol != tokens[place - 1]]
        case CopyingSpec():
            return list(range(2, 2 + spec.vocabulary))
        case StatesSpec():
            return next(list(symbols) for symbols in group_symbols(spec).values() if tokens[0] in symbols)


def latest(spec: SymbolSpec, tokens: Sequence[int], places: Sequence[int], answers: Sequence[int]) -> list[int]:
    """Per answer, the latest place of that which it asks for."""
    match spec:
        case RecallSpec() | InductionSpec() | NoiseSpec():
            return [last_showing(tokens, place, answer) for place, answer in zip(places, answers, strict=True)]
        case CopyingSpec():
            return [at for at in range(tokens.index(SEPARATOR)) if tokens[at] != BLANK]
        case StatesSpec():
            return [place - 2 for place in places]


def last_showing(tokens: Sequence[int], place: int, answer: int) -> int:
    """Where the symbol of a question last stood with its answer."""
    return max(at for at in range(place - 1) if (tokens[at], tokens[at + 1]) == (tokens[place - 1], answer))
