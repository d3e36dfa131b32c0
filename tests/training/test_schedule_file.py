"""Editing a user's YAML: the schedule changes, and no other byte does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config.files import dump_yaml, parse_yaml, read_yaml
from lockstep.errors import UserError
from lockstep.training.schedule_file import read_schedule, write_schedule

LONG = "a value of many words, " * 12

COMMENTED = f"""\
# An experiment.  Two spaces, kept.
experiment_name:   'quoted'    # single quotes

data:
      source_corpus: "double \\u00e9"
      batch_size: 0x20   # hexadecimal
      note: {LONG}
training:
   # why this rate
   learning_rate: 1e-4
   checkpoint_schedule: @VALUE@
   epochs: 10  # passes


model: {{architecture: gpt2,   transformer: {{layers: 12}}}}
text: |
    kept   as is

# the end"""


def edit(folder: Path, before: str, steps: tuple[int, ...] = (1, 2, 4)) -> str:
    """What the file says after `steps` were written into it, checked to be read back."""
    file = folder / "config.yaml"
    file.write_bytes(before.encode())
    write_schedule(file, steps)
    assert read_schedule(file) == steps
    assert list(folder.iterdir()) == [file]
    return file.read_bytes().decode()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[]", "[1, 2, 4]"),
        ("[10,20 ,  30]   # by hand", "[1, 2, 4]   # by hand"),
        ("[\n     10, 20,\n   30]", "[1, 2, 4]"),
        ("null  # none yet", "[1, 2, 4]  # none yet"),
        ("# none yet", "[1, 2, 4] # none yet"),
        ("!!seq [3]", "[1, 2, 4]"),
    ],
)
def test_only_the_value_changes(tmp_path: Path, old: str, new: str, newline: str) -> None:
    before = COMMENTED.replace("@VALUE@", old).replace("\n", newline)
    assert edit(tmp_path, before) == COMMENTED.replace("@VALUE@", new).replace("\n", newline)


@pytest.mark.parametrize("indent", ["", "  "])
def test_a_block_list_becomes_one_line_and_comments_around_it_stay(tmp_path: Path, indent: str) -> None:
    items = f"  {indent}- 10\n  {indent}- 20  # last\n"
    before = f"training:\n  checkpoint_schedule:  # steps\n{items}\n  # about epochs\n  epochs: 2\n"
    after = "training:\n  checkpoint_schedule: [1, 2, 4]  # steps  # last\n\n  # about epochs\n  epochs: 2\n"
    assert edit(tmp_path, before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "training: # here\n    # why\n    epochs: 1\n",
            "training: # here\n    checkpoint_schedule: [1, 2, 4]\n    # why\n    epochs: 1\n",
        ),
        (
            "a: 1\r\ntraining:\r\n epochs: 1\r\n",
            "a: 1\r\ntraining:\r\n checkpoint_schedule: [1, 2, 4]\r\n epochs: 1\r\n",
        ),
        ("training: &t\n  epochs: 1\n", "training: &t\n  checkpoint_schedule: [1, 2, 4]\n  epochs: 1\n"),
        ("training: {epochs: 1}\n", "training: {checkpoint_schedule: [1, 2, 4], epochs: 1}\n"),
        ("training: {}", "training: {checkpoint_schedule: [1, 2, 4]}"),
        ("training: ~ # c\na: 1", "training: {checkpoint_schedule: [1, 2, 4]} # c\na: 1"),
        (
            "training:\n  # nothing yet\n\na: 1\n",
            "training:\n  checkpoint_schedule: [1, 2, 4]\n  # nothing yet\n\na: 1\n",
        ),
        ("training:", "training:\n  checkpoint_schedule: [1, 2, 4]\n"),
        ("training:\n  checkpoint_schedule:\na: 1\n", "training:\n  checkpoint_schedule: [1, 2, 4]\na: 1\n"),
        ("a: 1 # end", "a: 1 # end\ntraining:\n  checkpoint_schedule: [1, 2, 4]\n"),
        ("  a: 1\n", "  a: 1\n  training:\n    checkpoint_schedule: [1, 2, 4]\n"),
        ('{"a": [1]}', '{training: {checkpoint_schedule: [1, 2, 4]}, "a": [1]}'),
        (
            '{"training": {"checkpoint_schedule":[7]}, "a": 1}',
            '{"training": {"checkpoint_schedule":[1, 2, 4]}, "a": 1}',
        ),
        ("\ufefftraining: {}\n", "\ufefftraining: {checkpoint_schedule: [1, 2, 4]}\n"),
        (
            "base: &b {checkpoint_schedule: [9]}\ntraining:\n  <<: *b\n",
            "base: &b {checkpoint_schedule: [9]}\ntraining:\n  checkpoint_schedule: [1, 2, 4]\n  <<: *b\n",
        ),
        (
            "# checkpoint_schedule: [0]\nmodel: {checkpoint_schedule: [5]}\ntraining: {checkpoint_schedule: [3]}\n",
            "# checkpoint_schedule: [0]\nmodel: {checkpoint_schedule: [5]}\n"
            "training: {checkpoint_schedule: [1, 2, 4]}\n",
        ),
    ],
)
def test_the_key_is_put_where_it_belongs(tmp_path: Path, before: str, after: str) -> None:
    assert edit(tmp_path, before) == after


def test_a_long_schedule_stays_on_one_line(tmp_path: Path) -> None:
    steps = tuple(range(1, 2000, 7))
    after = edit(tmp_path, COMMENTED.replace("@VALUE@", "[]"), steps)
    assert after == COMMENTED.replace("@VALUE@", str(list(steps)))


def test_writing_twice_is_writing_once(tmp_path: Path) -> None:
    once = edit(tmp_path, "a: 1\n")
    assert edit(tmp_path, once) == once


PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
SCALARS = st.integers() | st.booleans() | st.none() | PLAIN | st.floats(allow_nan=False)
SECTIONS = st.dictionaries(PLAIN, SCALARS | st.lists(SCALARS, max_size=3), max_size=4)


@settings(deadline=None)
@given(
    before=st.dictionaries(PLAIN, SCALARS | SECTIONS, min_size=1, max_size=4),
    section=st.none() | SECTIONS,
    steps=st.lists(st.integers(1, 10**9), max_size=5),
)
def test_whatever_else_the_file_says_it_still_says(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, object],
    section: dict[str, object] | None,
    steps: list[int],
) -> None:
    file = tmp_path_factory.mktemp("edit") / "config.yaml"
    text = dump_yaml({**before, "training": section})
    file.write_text(text, encoding="utf-8", newline="")
    wanted = parse_yaml(text, "generated")
    wanted["training"] = {**(wanted["training"] or {}), "checkpoint_schedule": steps}
    write_schedule(file, steps)
    assert read_yaml(file) == wanted


def test_the_mode_and_the_link_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "config.yaml", tmp_path / "link.yaml"
    target.parent.mkdir()
    target.write_text("a: 1\n")
    target.chmod(0o640)
    link.symlink_to(target)
    write_schedule(link, [5])
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert read_schedule(target) == (5,)
    assert [one.name for one in target.parent.iterdir()] == ["config.yaml"]


def test_a_file_without_a_schedule_has_no_steps(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text in ("a: 1", "training:", "training: {epochs: 1}", "training: {checkpoint_schedule: }"):
        file.write_text(text)
        assert read_schedule(file) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: [1, 2", "not valid YAML"),
        ("a: 1\na: 2\n", "not valid YAML"),
        ("- 1\n", "expected a mapping"),
        ("", "expected a mapping"),
        ("training: 3\n", "training is not a section"),
        ("training: [3]\n", "training is not a section"),
        ("base: &b {epochs: 1}\ntraining: *b\n", r"set it by hand to \[1\]"),
        ("s: &s [9]\ntraining:\n  checkpoint_schedule: *s\n", r"set it by hand to \[1\]"),
        ("training:\n  checkpoint_schedule: &s [9]\nother: *s\n", r"set it by hand to \[1\]"),
    ],
)
def test_what_cannot_be_edited_is_refused_and_left_alone(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        write_schedule(file, [1])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("value", ["5", "[1, two]", "[0]", "[1.5]", "[true]"])
def test_a_schedule_that_is_no_list_of_steps_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"training:\n  checkpoint_schedule: {value}\n")
    with pytest.raises(UserError, match=r"training\.checkpoint_schedule"):
        read_schedule(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml: no such file"):
        write_schedule(tmp_path / "absent.yaml", [1])


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anything")
def test_a_read_only_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: 1\n")
    file.chmod(0o400)
    with pytest.raises(UserError, match="not writable"):
        write_schedule(file, [1])
    assert file.read_text() == "a: 1\n"
