"""What needles say: a key of two words, and a value drawn so that the chance of guessing it is known exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.data.randomness import Draws


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "amber ancient angry autumn bashful bitter black blue bold brave brief bright broken bronze busy calm careful "
    "cheerful clever cloudy clumsy cold copper cosy cruel curious dark deep distant double dusty eager early earnest "
    "eastern empty faint faithful famous fancy fast fearless flat foggy formal fragile frozen gentle giant glad golden "
    "graceful grand grateful green grey happy hasty heavy hidden hollow honest humble hungry idle iron jolly keen kind "
    "large late lazy lively lonely loud loyal lucky merry mighty modest muddy narrow noble northern patient plain "
    "polite proud purple quick quiet rapid rare restless rough royal rusty sacred sandy scarlet secure shallow sharp "
    "shiny silent silver simple sleepy slender smooth snowy solemn southern steady stern stormy strange sturdy sunny "
    "swift tall tender thirsty timid tiny vast velvet violet warm weary western white wild wise wooden yellow"
)
NOUNS = _words(
    "acorn anchor apple arrow badger banner barrel basket beacon beetle bell bishop blanket boat bottle bridge broom "
    "bucket butcher button cabin camel candle canyon captain carpet castle cellar chair cherry chimney circle clock "
    "cloud coach coin comet cottage cradle crane cricket crown dancer desert doctor donkey dragon drum eagle engine "
    "falcon farmer feather fence fiddle finger fisher flag flower forest fountain fox garden giraffe glove goose "
    "guitar hammer harbour hare hawk helmet heron hunter island jacket jewel judge kettle king kitten ladder lamp "
    "lantern lemon letter lion lizard mason meadow melon miller mirror monkey mountain needle nephew oak orchard "
    "otter owl oyster palace parrot pebble pencil pepper piano pigeon pilot pirate pocket poet pony potter prince "
    "rabbit raven ribbon river robin rocket sailor salmon shepherd shovel singer soldier spider squirrel stove "
    "sword tailor teacher temple thistle tiger tower trumpet tulip turtle valley village violin wagon walnut weaver "
    "whale widow willow window wizard wolf"
)
CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"
SYLLABLES = 4


@dataclass(frozen=True)
class Fact:
    """What one needle says."""

    key: tuple[str, str]
    value: str


@dataclass(frozen=True)
class Kind:
    """What the values of a kind of needle are."""

    thing: str
    """What a value is called."""
    digits: int | None = 7
    """None makes a word of it."""

    @property
    def candidates(self) -> int:
        """Different values, all as likely."""
        if self.digits is None:
            return math.prod([len(CONSONANTS) * len(VOWELS)] * SYLLABLES)
        return 9 * math.prod([10] * (self.digits - 1))

    @property
    def longest(self) -> int:
        """Characters of a value."""
        return 2 * SYLLABLES if self.digits is None else self.digits

    def draw(self, draws: Draws) -> str:
        """A number that does not begin with zero, or a word of syllables that means nothing."""
        if self.digits is not None:
            return str(self.candidates // 9 + draws.one_below(self.candidates))
        consonants, vowels = draws.below(len(CONSONANTS), SYLLABLES), draws.below(len(VOWELS), SYLLABLES)
        return "".join(CONSONANTS[one] + VOWELS[other] for one, other in zip(consonants, vowels, strict=True))


NUMBERS = Kind("secret number")
KINDS: dict[str, Kind] = {
    "passkey": Kind("pass key", digits=5),
    "number": NUMBERS,
    "word": Kind("secret word", digits=None),
    "multi-key": NUMBERS,
    "multi-value": NUMBERS,
    "multi-query": NUMBERS,
}


def draw_keys(draws: Draws, count: int) -> list[tuple[str, str]]:
    """Different keys, every choice as likely."""
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        chosen |= dict.fromkeys(draws.below(len(ADJECTIVES) * len(NOUNS), count).tolist())
    return [(ADJECTIVES[one // len(NOUNS)], NOUNS[one % len(NOUNS)]) for one in list(chosen)[:count]]
