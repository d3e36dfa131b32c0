"""Where questions stand, for tasks that ask several in one sequence."""

from __future__ import annotations

import numpy as np

from lockstep.data.randomness import Draws
from lockstep.data.tasks.task import Tokens


def places_apart(draws: Draws, room: int, count: int, size: int) -> Tokens:
    """[count]: where things of `size` tokens begin within `room`, none upon another, every choice as likely."""
    # Each thing is one point among the tokens that are left: choose which of all points are things.
    points = np.sort(draws.distinct(room - (size - 1) * count, count))
    return points + (size - 1) * np.arange(count)


def shown_then_asked(
    draws: Draws, shown: Tokens, keys: Tokens, values: Tokens, blank: int, length: int, most_rounds: int = 1
) -> tuple[Tokens, Tokens, Tokens]:
    """What was shown, then blanks with each key (`keys` [n]) and its value (`values` [n]) once among them.

    Where there is room the round is made again, in another order: any number of times up to the most. Gives tokens
    [length], answers [length] numbered from 1, and [questions] which key each asks for.
    """
    most = min(most_rounds, (length - len(shown)) // (2 * len(keys)))
    rounds = 1 + draws.one_below(most) if most > 1 else 1
    tokens, answers = np.full(length, blank), np.zeros(length, dtype=np.int64)
    tokens[: len(shown)] = shown
    asked = np.concatenate([draws.order(len(keys)) for _ in range(rounds)])
    places = places_apart(draws, length - len(shown), len(asked), 2) + len(shown)
    tokens[places], tokens[places + 1] = keys[asked], values[asked]
    answers[places + 1] = np.arange(1, len(asked) + 1)
    return tokens, answers, asked
