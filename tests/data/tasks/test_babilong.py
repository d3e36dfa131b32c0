"""Stories in books: whoever follows the story knows the answer, and no split knows another's stories or books."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from lockstep.config.tasks import BabilongSpec, BabiTask
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.archives import read_members
from lockstep.data.corpora import SPLITS, find_corpus
from lockstep.data.randomness import Draws
from lockstep.data.tasks.babi import FILES, FOLDER, Babi, Question, file_of, stories
from lockstep.data.tasks.babilong import Babilong, PublishedBabilong, configuration, make_babilong
from lockstep.data.tasks.task import Instance, Task
from lockstep.data.tokenizers import ByteTokenizer, make_tokenizer
from lockstep.errors import UserError
from tests.data.tasks.text_oracles import answer_story

EVERY_TASK: tuple[BabiTask, ...] = ("qa1", "qa2", "qa3", "qa4", "qa5")
GOLDEN: dict[BabiTask, str] = {
    "qa1": "5bab16e9e6454143ec56fc2799388b770c0000347dcea1eba8b5ce7b23d11ae0",
    "qa3": "6447ef0415d700d949609d0aaace2d9a667105b4a660f3ab2cfd38a0ebc06deb",
}
"""sha256 of test instance 5 in 4,096 bytes: changed only with a change of what the task is."""
AMBIGUOUS = {"qa5": 2}
"""Test questions about the latest of several gifts whose answer is an earlier one."""

Need = Callable[[str], Path]


@pytest.fixture(autouse=True)
def one_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Books are tokenized once for all tests."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.getbasetemp() / "text-tasks"))


@pytest.fixture
def archive(real_data: Need) -> Path:
    for file in ("english-novels.tar.xz", "gpt2-bpe.tar.xz"):
        real_data(file)
    return real_data("babi.tar.xz")


@cache
def babi() -> Babi:
    return Babi()


@cache
def made_once(kind: str) -> Babilong:
    spec = TokenizerSpec.model_validate({"tokenizer_type": kind})
    return Babilong(BabilongSpec(), make_tokenizer(spec, find_corpus("english-novels")))


@pytest.fixture(params=["bytes", "gpt2"])
def babilong(request: pytest.FixtureRequest, archive: Path) -> Babilong:
    return made_once(request.param)


@pytest.fixture
def of_bytes(archive: Path) -> Babilong:
    return made_once("bytes")


def asked_and_answered(task: Task, instance: Instance) -> tuple[str, str]:
    """All text before the answer, and the answer."""
    places = np.flatnonzero(instance.answers)
    assert (np.diff(places) == 1).all()
    assert set(instance.answers[places]) == {1}
    before, answer = instance.tokens[: places[0]], instance.tokens[places]
    return task.tokenizer.decode(before.tolist()), task.tokenizer.decode(answer.tolist()).strip()


def is_ambiguous(question: Question) -> bool:
    """Whether another thing was given by the same to the same."""
    asked = re.fullmatch(r"What did (\w+) give to (\w+)\?", question.text)
    if asked is None:
        return False
    gift = rf"{asked[1]} (?:gave|passed|handed) the (\w+) to {asked[2]}\."
    given = {found[1] for line in question.story if (found := re.fullmatch(gift, line.text))}
    return len(given) > 1 and question.answer in given


def test_whoever_follows_a_story_of_the_files_knows_the_answer(archive: Path) -> None:
    for task in EVERY_TASK:
        member = f"{FOLDER}/{file_of(task, 'test')}"
        text = read_members(archive, [member])[member].decode()
        questions = [one for story in stories(text) for one in story]
        assert len(questions) == 1000
        wrong = []
        for one in questions:
            told = " ".join(line.text for line in one.story)
            if answer_story(f"{told}\nQuestion: {one.text} Answer:") != one.answer:
                wrong.append(one)
        assert len(wrong) == AMBIGUOUS.get(task, 0)
        assert all(is_ambiguous(one) for one in wrong)


@pytest.mark.parametrize("length", [256, 2048, 16384, 65536])
def test_whoever_reads_the_whole_text_knows_the_answer(babilong: Babilong, length: int) -> None:
    for level in EVERY_TASK:
        if length < babilong.shortest(level):
            with pytest.raises(UserError, match=f"{babilong.shortest(level)} are needed"):
                babilong.instance("test", 0, length, level)
            continue
        right = []
        for number in range(3 if length > 20000 else 15):
            instance = babilong.instance("test", number, length, level)
            assert instance.tokens.shape == instance.answers.shape == (length,)
            text, answer = asked_and_answered(babilong, instance)
            right.append(answer_story(text) == answer)
        assert sum(right) >= len(right) - (level == "qa5")


def test_a_million_tokens(babilong: Babilong) -> None:
    instance = babilong.instance("test", 1, 2**20, "qa2")
    assert len(instance.tokens) == 2**20
    text, answer = asked_and_answered(babilong, instance)
    assert answer_story(text) == answer


def test_the_last_supporting_sentence_stands_at_the_depth_that_is_said(of_bytes: Babilong) -> None:
    known = {one.identity: one for level in EVERY_TASK for one in babi().task(level).splits["test"]}
    depths = []
    for level in EVERY_TASK:
        for number in range(30):
            instance = of_bytes.instance("test", number, 8192, level)
            question = known[instance.identity]
            last = [line.text for line in question.story if line.number in question.supporting][-1]
            place = round(instance.depths[0] * 8192)
            assert place / 8192 == instance.depths[0]
            here = of_bytes.tokenizer.decode(instance.tokens[place : place + 60].tolist())
            assert here.startswith(f" {last}")
            depths.append(instance.depths[0])
    assert min(depths) < 0.3
    assert max(depths) > 0.9


def test_sentences_of_a_story_keep_their_order_between_those_of_a_book(of_bytes: Babilong) -> None:
    book = b"".join(find_corpus("english-novels").documents("test")).decode("utf-8", "replace")
    for number in range(20):
        instance = of_bytes.instance("test", number, 4096, "qa1")
        *story, _ = instance.identity.decode().split("\n")
        text = asked_and_answered(of_bytes, instance)[0].rpartition("\nQuestion: ")[0]
        around, places = "", []
        for sentence in story:
            before, found, text = text.partition(f" {sentence}")
            assert found
            around += before
            places.append(len(around))
        around += text
        assert around in book
        for place in places:
            # At an end of the excerpt, before a new paragraph, or after another sentence.
            at_end = place in (0, len(around)) or around[place] == "\n"
            assert at_end or re.search(r"[.!?][\"')]?$", around[:place])


def test_splits_share_no_story_and_no_book(of_bytes: Babilong) -> None:
    corpus = find_corpus("english-novels")
    texts = {split: b"".join(corpus.documents(split)) for split in SPLITS}
    for level in EVERY_TASK:
        known: dict[str, set[bytes]] = {split: set() for split in SPLITS}
        for split in SPLITS:
            for number in range(400):
                instance = of_bytes.instance(split, number, 4096, level)
                known[split].add(instance.identity)
                assert of_bytes.belongs(instance, split)
            text = asked_and_answered(of_bytes, instance)[0].rpartition("\nQuestion: ")[0]
            for sentence in instance.identity.decode().split("\n")[:-1]:
                text = text.replace(f" {sentence}", "", 1)
            assert [one for one in SPLITS if text.encode() in texts[one]] == [split]
        assert not known["train"] & known["test"]
        assert not known["train"] & known["valid"]
        assert not known["valid"] & known["test"]


def test_files_are_split_and_what_two_splits_have_is_left_out(archive: Path) -> None:
    dropped = {"qa1": (15, 16), "qa2": (0, 0), "qa3": (0, 0), "qa4": (764, 706), "qa5": (1, 1)}
    for task, (valid, test) in dropped.items():
        found = babi().task(task)
        assert found.dropped == {"valid": valid, "test": test}
        identities = {split: {one.identity for one in found.splits[split]} for split in SPLITS}
        assert sum(len(one) for one in identities.values()) == len(set.union(*identities.values()))
        whole = 1000 if task == "qa3" else 10000
        assert len(found.splits["train"]) == whole * 9 // 10
        assert len(found.splits["valid"]) == whole // 10 - valid
        assert len(found.splits["test"]) == 1000 - test
    first = babi().task("qa2").splits["test"][0]
    assert [line.number for line in first.story] == [1, 2, 3, 4]
    assert (first.story[0].text, first.text, first.answer) == (
        "Mary got the milk there.",
        "Where is the milk?",
        "hallway",
    )
    assert first.supporting == (1, 4)


def test_every_question_comes_once_before_any_comes_again(of_bytes: Babilong) -> None:
    count = len(babi().task("qa4").splits["test"])
    seen = [of_bytes.instance("test", number, 256, "qa4").identity for number in range(2 * count)]
    # The file itself asks some questions twice.
    assert Counter(seen) == {one: 2 * times for one, times in Counter(seen[:count]).items()}
    assert set(seen) == {one.identity for one in babi().task("qa4").splits["test"]}


def test_guessing_is_right_as_often_as_is_said_and_the_best_constant_answer_a_little_more_often(
    of_bytes: Babilong,
) -> None:
    """Answers are not quite even. In qa5, moreover, a question tells whether a person or a thing is asked for."""
    for level in EVERY_TASK:
        answers = babi().task(level).answers
        made = [of_bytes.instance("test", number, 1500, level) for number in range(250)]
        assert {one.candidates for one in made} == {(len(answers),)}
        told = [asked_and_answered(of_bytes, one)[1] for one in made]
        chance = 1 / len(answers)
        guesses = 4 * len(told)
        draws = Draws("guesses", level)
        hits = sum(answers[draws.one_below(len(answers))] == one for one in told * 4)
        assert abs(hits / guesses - chance) < 4 * np.sqrt(chance * (1 - chance) / guesses)
        constant = Counter(told).most_common(1)[0][1] / len(told)
        assert chance < constant < 1.6 * chance


def test_instances_are_a_function_of_their_number(archive: Path) -> None:
    for level, expected in GOLDEN.items():
        one, other = (Babilong(BabilongSpec(tasks=(level,)), ByteTokenizer()) for _ in range(2))
        other.instance("test", 0, 2000)
        first, again = one.instance("test", 5, 4096), other.instance("test", 5, 4096)
        whole = hashlib.sha256(first.tokens.tobytes() + first.answers.tobytes())
        assert whole.digest() == hashlib.sha256(again.tokens.tobytes() + again.answers.tobytes()).digest()
        assert whole.hexdigest() == expected
        assert first.identity != one.instance("test", 6, 4096).identity
        assert not np.array_equal(first.tokens, one.instance("test", 5, 4096, seed=1).tokens)


def test_missing_files_are_one_line(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"babilong: no babi\.tar\.xz, nor a folder tasks_1-20_v1-2") as refused:
        Babilong(BabilongSpec(), ByteTokenizer())
    assert "\n" not in str(refused.value)
    (tmp_path / "babi.tar.xz").symlink_to(archive)
    with pytest.raises(UserError, match=r"corpus english-novels: no english-novels\.tar\.xz"):
        Babilong(BabilongSpec(), ByteTokenizer())


def test_a_damaged_archive_is_one_line(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    (tmp_path / "babi.tar.xz").write_bytes(archive.read_bytes()[:500_000])
    with pytest.raises(UserError, match=r"babi\.tar\.xz: truncated or damaged") as refused:
        Babi()
    assert "\n" not in str(refused.value)


def test_a_changed_file_is_refused_and_an_unpacked_folder_is_as_good(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = read_members(archive, [f"{FOLDER}/{name}" for name in FILES])
    for name, content in members.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "folder"))
    assert len(Babi().task("qa1").splits["train"]) == 9000
    changed = f"{FOLDER}/{file_of('qa4', 'test')}"
    members[changed] = members[changed].replace(b"kitchen", b"kitchens", 1)
    with tarfile.open(tmp_path / "babi.tar.xz", "w") as packed:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            packed.addfile(about, BytesIO(content))
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"qa4_two-arg-relations_test\.txt has sha256 \w+, not 07f0"):
        Babi()


def test_lengths_choose_a_published_configuration() -> None:
    lengths = (2, 1023, 1024, 4096, 5000, 65536, 2**20, 2**21)
    assert [configuration(one) for one in lengths] == ["0k", "0k", "1k", "4k", "4k", "64k", "1M", "1M"]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the library reads as it reads the hub's: a configuration per length, a split per task."""
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    folder, cards = tmp_path / "babilong", []
    for name, filler in (("0k", ""), ("1k", "It rained. " * 100)):
        cards.append(f"- config_name: {name}\n  data_files:\n")
        for task in ("qa1", "qa2"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            rows = [
                {"input": f"{filler}Mary went to the {place}. {filler}", "question": "Where is Mary? ", "target": place}
                for place in ("garden", "office", "garden")
            ]
            lines = "\n".join(json.dumps(row) for row in rows)
            (folder / name / f"{task}.jsonl").write_text(lines, encoding="utf-8")
            cards.append(f"  - split: {task}\n    path: {name}/{task}.jsonl\n")
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(cards)}---\n", encoding="utf-8")
    return folder


def test_published_samples_are_read_as_they_are(published: Path) -> None:
    task = PublishedBabilong(BabilongSpec(source="published"), ByteTokenizer(), str(published))
    assert task.levels == EVERY_TASK
    for length, filler in ((256, ""), (1024, "It rained. " * 100)):
        for number, place in enumerate(("garden", "office", "garden", "garden")):
            instance = task.instance("test", number, length, "qa1")
            text, answer = asked_and_answered(task, instance)
            assert text == f"{filler}Mary went to the {place}. {filler}\nQuestion: Where is Mary? Answer:"
            assert answer == place == answer_story(text)
            assert instance.candidates == (2,)
            assert len(instance.tokens) == len(text) + len(answer) + 2
            told = text.partition("\nQuestion")[0]
            assert told[round(instance.depths[0] * len(told)) :].startswith(place)
    assert task.instance("test", 0, 1024, "qa1").identity != task.instance("test", 1, 1024, "qa1").identity


def test_published_samples_are_for_tests_alone(published: Path) -> None:
    task = PublishedBabilong(BabilongSpec(source="published"), ByteTokenizer(), str(published))
    for split in ("train", "valid"):
        with pytest.raises(UserError, match=f"no {split} split"):
            task.instance(split, 0, 1024)
    with pytest.raises(UserError, match="2k qa1: not loaded") as refused:
        task.instance("test", 0, 2048, "qa1")
    assert "\n" not in str(refused.value)


def test_the_source_chooses(archive: Path) -> None:
    assert isinstance(make_babilong(BabilongSpec(tasks=("qa4",)), ByteTokenizer()), Babilong)
    assert isinstance(make_babilong(BabilongSpec(source="published"), ByteTokenizer()), PublishedBabilong)
