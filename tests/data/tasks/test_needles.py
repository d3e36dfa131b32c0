"""Needles: whoever reads the text finds them, at the depth that is said, and no split knows another's."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lockstep.config.tasks import NeedleKind, NeedlesSpec
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpora import SPLITS, Corpus, find_corpus
from lockstep.data.randomness import Draws
from lockstep.data.tasks.haystacks import REPEATED, Haystack, Haystacks, books, sentences
from lockstep.data.tasks.needle_facts import ADJECTIVES, CONSONANTS, KINDS, NOUNS, VOWELS, draw_keys
from lockstep.data.tasks.needles import Needles
from lockstep.data.tasks.task import SPLIT_SHARES, Instance
from lockstep.data.tokenizers import ByteTokenizer, Tokenizer, make_tokenizer
from lockstep.errors import UserError
from tests.data.tasks.text_oracles import find_needle

EVERY_KIND: tuple[NeedleKind, ...] = ("passkey", "number", "word", "multi-key", "multi-value", "multi-query")
GOLDEN: dict[NeedleKind, str] = {
    "passkey": "471031f13ba953cc01319847b14dc50999ad2089e320a68e3581a414101b8bab",
    "number": "2c21ec1e5bc23637a63892ec4c093ed7707b5661fca17d6be954ed805e6f3403",
    "multi-value": "a926b0b9d05bbc43537e953d5ae454fff395966e99b8fafbeb965b9b824f82c0",
}
"""sha256 of test instance 5 in 1,000 bytes: changed only with a change of what the task is."""

Need = Callable[[str], Path]


@pytest.fixture(autouse=True)
def one_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Books are tokenized once for all tests."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.getbasetemp() / "text-tasks"))


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return make_tokenizer(TokenizerSpec.model_validate({"tokenizer_type": kind}), find_corpus("english-novels"))


@pytest.fixture(params=["bytes", "gpt2"])
def needles(request: pytest.FixtureRequest, real_data: Need) -> Needles:
    """Of every kind, each in its own haystack."""
    for file in ("english-novels.tar.xz", "gpt2-bpe.tar.xz"):
        real_data(file)
    return Needles(NeedlesSpec(kinds=EVERY_KIND), tokenizer_of(request.param))


def repeated(**changes: object) -> Needles:
    """Without books, of bytes."""
    return Needles(NeedlesSpec.model_validate({"haystack": "repeated", "kinds": EVERY_KIND} | changes), ByteTokenizer())


def answers_found(task: Needles, instance: Instance) -> list[tuple[str, str]]:
    """Per answer, what the oracle says and what stands there."""
    found = []
    for number in range(1, len(instance.depths) + 1):
        places = np.flatnonzero(instance.answers == number)
        assert (np.diff(places) == 1).all()
        before = task.tokenizer.decode(instance.tokens[: places[0]].tolist())
        found.append((find_needle(before), task.tokenizer.decode(instance.tokens[places].tolist()).strip()))
    return found


@pytest.mark.parametrize("length", [1000, 4096, 65536])
def test_the_text_before_an_answer_gives_it(needles: Needles, length: int) -> None:
    for kind in EVERY_KIND:
        for number in range(3 if length > 5000 else 12):
            instance = needles.instance("test", number, length, kind)
            assert instance.tokens.shape == instance.answers.shape == (length,)
            found = answers_found(needles, instance)
            assert len(found) == len(instance.candidates) == {"multi-value": 4, "multi-query": 4}.get(kind, 1)
            assert all(said == stands for said, stands in found)


def test_the_least_length_is_enough_and_less_is_refused(needles: Needles) -> None:
    for kind in EVERY_KIND:
        least = needles.shortest(kind)
        for number in range(60):
            instance = needles.instance("test", number, least, kind)
            assert len(instance.tokens) == least
            assert all(said == stands for said, stands in answers_found(needles, instance))
        with pytest.raises(UserError, match=f"{least} are needed"):
            needles.instance("test", 0, least - 1, kind)
    assert max(needles.shortest(kind) for kind in EVERY_KIND[:3]) <= 256


def test_a_million_tokens(needles: Needles) -> None:
    for kind in ("passkey", "number"):
        instance = needles.instance("test", 4, 2**20, kind)
        assert len(instance.tokens) == 2**20
        ((said, stands),) = answers_found(needles, instance)
        assert said == stands
        assert 0.8 <= instance.depths[0] <= 1


def test_needles_lie_between_sentences_at_the_depth_that_is_said(needles: Needles) -> None:
    for kind in EVERY_KIND:
        for number in range(10):
            instance = needles.instance("test", number, 2048, kind)
            told = [stands for _, stands in answers_found(needles, instance)]
            for depth, value in zip(instance.depths, told, strict=True):
                place = round(depth * 2048)
                assert place / 2048 == depth
                here = needles.tokenizer.decode(instance.tokens[place : place + 100].tolist())
                assert re.match(rf" The {KINDS[kind].thing} of the \w+ \w+ is {value}\.", here)


def test_the_needle_goes_through_the_bands_of_depth() -> None:
    for kind in ("passkey", "multi-key"):
        task = repeated(depths=4)
        made = [task.instance("test", number, 20000, kind) for number in range(200)]
        bands = [int(one.depths[0] * 20000 / 19900 * 4) for one in made]
        # At a boundary between bands the nearest sentence may lie in the other.
        assert np.mean([band == number % 4 for number, band in enumerate(bands)]) > 0.97
        within = np.array([one.depths[0] * 4 - number % 4 for number, one in enumerate(made)])
        assert 0.4 < within.mean() < 0.6
        assert within.std() > 0.2


def test_several_keys_differ_and_several_values_stand_in_their_order() -> None:
    task = repeated(keys=300, values=6)
    text = task.tokenizer.decode(task.instance("train", 1, 60000, "multi-key").tokens.tolist())
    keys = re.findall(r"number of the (\w+ \w+) is \d{7}\. ", text)
    assert len(keys) == len(set(keys)) == 300
    instance = task.instance("train", 1, 4096, "multi-value")
    assert list(instance.depths) == sorted(instance.depths)
    text = task.tokenizer.decode(instance.tokens.tolist())
    assert text.endswith(" is " + ", ".join(re.findall(r"is (\d+)\.", text)[:6]) + ".")


def test_values_are_even_so_that_chance_is_what_is_said() -> None:
    """A guess is right when each part is; parts are independent, and each is even among so many."""
    count, draws = 20000, Draws("values")
    for kind, parts in (("passkey", [9, *[10] * 4]), ("number", [9, *[10] * 6]), ("word", [80] * 4)):
        assert np.prod(parts) == KINDS[kind].candidates
        drawn = [KINDS[kind].draw(draws) for _ in range(count)]
        step = 2 if kind == "word" else 1
        for place, among in enumerate(parts):
            seen = Counter(value[place * step : (place + 1) * step] for value in drawn)
            assert len(seen) == among
            spread = sum((one - count / among) ** 2 for one in seen.values()) / (count / among)
            assert abs(spread - among) < 5 * np.sqrt(2 * among)
    assert len({(one, other) for one in CONSONANTS for other in VOWELS}) == 80
    instance = repeated().instance("test", 0, 500, "word")
    assert instance.candidates == (80**4,)


def test_guessing_the_first_digit_succeeds_as_often_as_it_should() -> None:
    task = repeated()
    firsts = [task.instance("test", number, 200, "passkey").identity.split(b": ")[1][:1] for number in range(900)]
    hits = np.mean([first == b"%d" % (1 + Draws("guess", n).one_below(9)) for n, first in enumerate(firsts)])
    assert abs(hits - 1 / 9) < 4 * np.sqrt(8 / 81 / 900)


def test_splits_share_no_fact() -> None:
    """All possible facts are dealt out among the splits by what they say, so that no two have the same."""
    task = repeated()
    seen: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for kind, length, count in (("passkey", 200, 600), ("multi-key", 500, 200)):
            for number in range(count):
                instance = task.instance(split, number, length, kind)
                text = task.tokenizer.decode(instance.tokens.tolist()).partition("\nWhat")[0]
                facts = sorted(re.findall(r"of the (\w+ \w+) is (\d+)\.", text))
                assert len(facts) == (4 if kind == "multi-key" else 1)
                said = "\n".join(f"{key}: {value}" for key, value in facts)
                assert instance.identity == said.encode()
                assert hashlib.sha256(said.encode()).digest()[0] % 8 in SPLIT_SHARES[split]
                seen[split].add(said)
    assert [len(one) for one in seen.values()] == [800] * 3
    assert len(set.union(*seen.values())) == 2400


def test_surroundings_are_of_the_splits_own_books(real_data: Need) -> None:
    real_data("english-novels.tar.xz")
    corpus = find_corpus("english-novels")
    texts = {split: b"".join(corpus.documents(split)) for split in SPLITS}
    task = Needles(NeedlesSpec(kinds=("number",)), ByteTokenizer())
    for split in SPLITS:
        for number in range(10):
            instance = task.instance(split, number, 2048)
            whole = instance.tokens.astype(np.uint8).tobytes()
            parts = re.split(rb" The secret number of the \w+ \w+ is \d+\.|\nWhat is the secret", whole)[:-1]
            longest = max(parts, key=len)
            assert len(longest) > 500
            assert [one for one in SPLITS if longest in texts[one]] == [split]


def test_instances_are_a_function_of_their_number(real_data: Need) -> None:
    real_data("english-novels.tar.xz")
    for kind, expected in GOLDEN.items():
        one, other = (Needles(NeedlesSpec(kinds=(kind,)), ByteTokenizer()) for _ in range(2))
        other.instance("train", 0, 500)
        first, again = one.instance("test", 5, 1000), other.instance("test", 5, 1000)
        whole = hashlib.sha256(first.tokens.tobytes() + first.answers.tobytes())
        assert whole.digest() == hashlib.sha256(again.tokens.tobytes() + again.answers.tobytes()).digest()
        assert whole.hexdigest() == expected
        assert not np.array_equal(first.tokens, one.instance("test", 6, 1000).tokens)
        assert not np.array_equal(first.tokens, one.instance("test", 5, 1000, seed=1).tokens)


def test_a_trained_tokenizer_writes_needles_too(tiny_corpus: Corpus) -> None:
    tokenizer = make_tokenizer(TokenizerSpec(tokenizer_type="bpe", vocab_size=300), tiny_corpus)
    task = Needles(NeedlesSpec(haystack="repeated", kinds=EVERY_KIND), tokenizer)
    for kind in EVERY_KIND:
        for length in (task.shortest(kind), 1024):
            instance = task.instance("valid", 2, length, kind)
            assert len(instance.tokens) == length
            assert all(said == stands for said, stands in answers_found(task, instance))


def test_a_tokenizer_that_cannot_write_values_is_refused(tiny_corpus: Corpus) -> None:
    words = make_tokenizer(TokenizerSpec(tokenizer_type="word"), tiny_corpus)
    with pytest.raises(UserError, match="the word tokenizer cannot write '1234567890'"):
        Needles(NeedlesSpec(haystack="repeated"), words)


def test_missing_books_are_one_line() -> None:
    with pytest.raises(UserError, match=r"corpus english-novels: no english-novels.tar.xz") as refused:
        Needles(NeedlesSpec(), ByteTokenizer())
    assert "\n" not in str(refused.value)
    assert Needles(NeedlesSpec(kinds=("passkey",)), ByteTokenizer()).instance("test", 0, 256)


def test_too_many_keys_are_refused() -> None:
    most = len(ADJECTIVES) * len(NOUNS)
    assert len(set(draw_keys(Draws("all"), most))) == most
    with pytest.raises(UserError, match=f"there are {most}"):
        repeated(keys=most + 1)


def test_sentences_are_cut_where_they_end() -> None:
    text = b'I saw Mr. Fox. "Really?" (She wept.) He went\nhome! so\n\nCHAPTER II\n\nIt rained. 5 came.'
    cut = [
        b"I saw Mr. Fox.",
        b' "Really?"',
        b" (She wept.)",
        b" He went\nhome! so",
        b"\n\nCHAPTER II",
        b"\n\nIt rained. 5 came.",
    ]
    assert sentences(text) == cut


def test_a_haystack_is_a_circle_of_sentences() -> None:
    haystack = Haystacks(ByteTokenizer(), ["repeated"]).repeated
    assert haystack.tokens.astype(np.uint8).tobytes().decode() == "".join(REPEATED)
    for number in range(20):
        excerpt = haystack.excerpt(Draws("circle", number), 1000)
        text = bytes(excerpt.tokens.tolist()).decode()
        assert text in "".join(REPEATED) * 12
        pieces = [text[one:other] for one, other in zip(excerpt.boundaries, excerpt.boundaries[1:], strict=False)]
        assert all(piece in REPEATED for piece in pieces[:-1])
        assert any(sentence.startswith(pieces[-1]) for sentence in REPEATED)
        depths = np.linspace(0, 1, 50)
        nearest = excerpt.nearest(depths)
        expected = [min(excerpt.boundaries.tolist(), key=lambda one: abs(one - wanted)) for wanted in depths * 1000]
        assert [abs(one - w) for one, w in zip(nearest, depths * 1000, strict=True)] == [
            abs(one - w) for one, w in zip(expected, depths * 1000, strict=True)
        ]
    assert len(haystack.excerpt(Draws("none"), 0).tokens) == 0


def test_books_are_read_from_the_cache_and_go_round(real_data: Need) -> None:
    real_data("english-novels.tar.xz")
    corpus, tokenizer = find_corpus("english-novels"), ByteTokenizer()
    haystack = books(corpus, tokenizer, "valid")
    assert isinstance(haystack.tokens, np.memmap)
    text = b"".join(corpus.documents("valid"))
    assert haystack.tokens.astype(np.uint8).tobytes() == text
    excerpt = haystack.excerpt(Draws("round"), 2 * len(text))
    begin = next(
        n
        for n in range(len(haystack.starts))
        if (text[haystack.starts[n] :] + text).startswith(bytes(excerpt.tokens[:200].tolist()))
    )
    start = int(haystack.starts[begin])
    assert bytes(excerpt.tokens.tolist()) == (text[start:] + text + text)[: 2 * len(text)]
    assert len(excerpt.boundaries) == 2 * len(haystack.starts) + 1


def test_a_damaged_haystack_is_one_line(real_data: Need, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_data("english-novels.tar.xz")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(own_cache))
    corpus = find_corpus("english-novels")
    books(corpus, ByteTokenizer(), "test")
    (file,) = own_cache.glob("haystacks/*/starts.npy")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="a damaged haystack") as refused:
        books(corpus, ByteTokenizer(), "test")
    assert "\n" not in str(refused.value)


def test_the_nearest_of_one_boundary() -> None:
    whole = Haystack(np.arange(9, dtype=np.uint16), np.array([0]))
    excerpt = whole.excerpt(Draws("one"), 5)
    assert excerpt.boundaries.tolist() == [0, 5]
    tokens, begins = excerpt.hiding([np.array([90]), np.array([91, 92])], excerpt.nearest(np.array([0.1, 0.9])))
    assert tokens.tolist() == [90, 0, 1, 2, 3, 4, 91, 92]
    assert begins.tolist() == [0, 6]
