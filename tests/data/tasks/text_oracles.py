"""Solvers of the text tasks that read nothing but the text before an answer, and know nothing of how it was made."""

from __future__ import annotations

import re
from collections import defaultdict

QUESTION = re.compile(r"\nWhat is the (.+) of the (\w+ \w+)\? The \1 of the \2 is((?: \w+,)*)$")

PEOPLE = "Mary|John|Sandra|Daniel|Fred|Jeff|Bill|Julie"
PLACES = "bathroom|bedroom|garden|hallway|kitchen|office"
THINGS = "apple|football|milk"
EVENT = re.compile(
    rf"(?P<goer>{PEOPLE}) (?:went|went back|moved|travelled|journeyed) to the (?P<place>{PLACES})\."
    rf"|(?P<taker>{PEOPLE}) (?:took|got|grabbed|picked up) the (?P<taken>{THINGS})(?: there)?\."
    rf"|(?P<leaver>{PEOPLE}) (?:dropped|left|discarded|put down) the (?P<dropped>{THINGS})(?: there)?\."
    rf"|(?P<giver>{PEOPLE}) (?:gave|passed|handed) the (?P<given>{THINGS}) to (?P<receiver>{PEOPLE})\."
)
RELATION = re.compile(rf"The ({PLACES}) is (north|south|east|west) of the ({PLACES})\.")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


def find_needle(text: str) -> str:
    """The value that the sentence which `text` breaks off in should give."""
    asked = QUESTION.search(text)
    assert asked is not None, text[-200:]
    thing, key, said = asked.groups()
    told = re.findall(rf"The {thing} of the {key} is (\w+)\.", text[: asked.start()])
    return str(told[said.count(",")])


def answer_story(text: str) -> str:
    """The answer to the question that `text` ends with."""
    told, found, asked = text.rpartition("\nQuestion: ")
    assert found
    assert asked.endswith(" Answer:")
    words = re.findall(r"\w+", asked.removesuffix(" Answer:"))
    match words:
        case ["Where", "is", person]:
            return World(told).person_at[person]
        case ["Where", "is", "the", thing]:
            return World(told).seen_at[thing][-1]
        case ["Where", "was", "the", thing, "before", "the", place]:
            seen = World(told).seen_at[thing]
            return seen[max(number for number, one in enumerate(seen) if one == place) - 1]
        case ["What", "is", "the", place, direction, "of"]:
            return neighbours(told)[place, direction]
        case ["What", "is", direction, "of", "the", place]:
            return neighbours(told)[place, OPPOSITE[direction]]
        case ["What", "did", giver, "give", "to", receiver]:
            return last_gift(told, giver=giver, receiver=receiver)["given"]
        case ["Who", "gave", "the", thing]:
            return last_gift(told, given=thing)["giver"]
        case ["Who", "received", "the", thing]:
            return last_gift(told, given=thing)["receiver"]
        case ["Who", "gave", "the", thing, "to", receiver]:
            return last_gift(told, given=thing, receiver=receiver)["giver"]
        case ["Who", "did", giver, "give", "the", thing, "to"]:
            return last_gift(told, given=thing, giver=giver)["receiver"]
    raise AssertionError(asked)


class World:
    """Where people and things have been, told from beginning to end."""

    def __init__(self, text: str) -> None:
        self.person_at: dict[str, str] = {}
        self.seen_at: dict[str, list[str]] = defaultdict(list)
        self.carried_by: dict[str, str] = {}
        for event in EVENT.finditer(text):
            said = event.groupdict()
            if said["goer"]:
                self.person_at[said["goer"]] = said["place"]
            if said["taker"]:
                self.carried_by[said["taken"]] = said["taker"]
            for thing, person in self.carried_by.items():
                self.see(thing, self.person_at.get(person))
            if said["leaver"]:
                self.carried_by.pop(said["dropped"], None)

    def see(self, thing: str, place: str | None) -> None:
        if place is not None and self.seen_at[thing][-1:] != [place]:
            self.seen_at[thing].append(place)


def neighbours(text: str) -> dict[tuple[str, str], str]:
    """(place, direction) to the place that it is in that direction of."""
    found = {}
    for one, direction, other in RELATION.findall(text):
        found[one, direction] = other
        found[other, OPPOSITE[direction]] = one
    return found


def last_gift(text: str, **wanted: str) -> dict[str, str]:
    gifts = [event.groupdict() for event in EVENT.finditer(text) if event["giver"]]
    return [gift for gift in gifts if all(gift[role] == name for role, name in wanted.items())][-1]
