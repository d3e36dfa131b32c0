"""State tracking over a group of permutations (Liu et al., arXiv 2210.10749; Merrill et al., arXiv 2404.08819).

g₁ g₂ ... gₖ = p, then more elements and queries: p is the product of all elements since the beginning, applied from
left to right, first g₁, then g₂: p(x) = gₖ(... g₂(g₁(x))). Neither the marker nor a product changes the state. A
product that was asked for may be built upon: the next answer then needs the elements since, whose number is a knob.

The tokenizer's first symbol is the marker. Each group then has symbols of its own, in the order in which the groups are
named: one per permutation of 0, 1, ..., in the order of the rows (p(0), p(1), ...) read as numbers.
"""

from __future__ import annotations

from itertools import accumulate, permutations

import numpy as np

from lockstep.config.tasks import StatesSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.task import Instance, Task, Tokens, symbols
from lockstep.data.tokenizer_base import Tokenizer

Permutation = tuple[int, ...]


class States(Task):
    name = "states"

    def __init__(self, spec: StatesSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.span = spec.elements + 2
        """Tokens from one answer to the next: elements, marker, product."""
        members: dict[str, list[Permutation]] = {name: group(name) for name in spec.group}
        sizes = [len(elements) for elements in members.values()]
        ids = symbols(tokenizer, 1 + sum(sizes), self.name)
        self.marker = int(ids[0])
        self.ids: dict[str, Tokens] = dict(zip(members, np.split(ids[1:], np.cumsum(sizes)[:-1]), strict=True))
        self.products = {name: products(elements) for name, elements in members.items()}

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.ids)

    def shortest(self, level: str) -> int:
        return self.span

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        ids, product = self.ids[level], self.products[level]
        count = length // self.span
        # The last query ends the sequence; what is left over comes before the first.
        markers = length - 2 - self.span * np.arange(count)[::-1]
        elements = draws.below(len(ids), length - 2 * count)
        states = np.array(list(accumulate(elements.tolist(), lambda state, element: product[state][element])))
        tokens, answers = np.full(length, self.marker), np.zeros(length, dtype=np.int64)
        free = np.ones(length, dtype=bool)
        free[markers] = free[markers + 1] = False
        tokens[free] = ids[elements]
        tokens[markers + 1] = ids[states[markers - 2 * np.arange(count) - 1]]
        answers[markers + 1] = np.arange(1, count + 1)
        depths = tuple((int(marker) - 1) / length for marker in markers)
        return Instance(tokens, answers, depths, level, (len(ids),) * count, ids[elements].tobytes())


def group(name: str) -> list[Permutation]:
    """S3, S5: all permutations of so many things; A5: the even ones."""
    everyone = permutations(range(int(name[1:])))
    return [element for element in everyone if name[0] == "S" or even(element)]


def even(element: Permutation) -> bool:
    """Whether an even number of pairs is out of order."""
    return sum(a > b for place, b in enumerate(element) for a in element[:place]) % 2 == 0


def products(elements: list[Permutation]) -> list[list[int]]:
    """[first][second]: the number of the element that is `first`, then `second`."""
    number = {element: place for place, element in enumerate(elements)}
    return [[number[tuple(second[x] for x in first)] for second in elements] for first in elements]
