"""Files and folders appear whole or not at all, in an order that a power cut cannot turn round."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockstep.durable import sha256, whole_file, whole_folder

Trace = list[tuple[str, str]]


def spoken(path: Path) -> str:
    """A name without its random part."""
    parts = path.name.split(".")
    return ".".join([*parts[:-2], "*", "partial"]) if parts[-1] == "partial" else path.name


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """What is really synced and renamed, in its order."""
    seen: Trace = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def traced_fsync(descriptor: int) -> None:
        fsync(descriptor)
        seen.append(("sync", spoken(Path(os.readlink(f"/proc/self/fd/{descriptor}")))))

    def traced(real: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def call(source: Any, target: Any) -> None:
            real(source, target)
            seen.append((f"name {spoken(Path(source))}", Path(target).name))

        return call

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "replace", traced(replace))
    monkeypatch.setattr(os, "rename", traced(rename))
    return seen


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are named by /proc")


@needs_proc
@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_is_synced_before_it_is_named_and_its_folder_after(
    tmp_path: Path, trace: Trace, old: str | None
) -> None:
    path = tmp_path / "note.txt"
    if old is not None:
        path.write_text(old)
    whole_file(path, "new")
    assert trace == [("sync", ".note.txt.*.partial"), ("name .note.txt.*.partial", "note.txt"), ("sync", tmp_path.name)]
    assert path.read_text() == "new"


def fill(folder: Path, content: str = "new") -> None:
    """Files at two depths."""
    (folder / "inner").mkdir()
    (folder / "outer.txt").write_text(content)
    (folder / "inner" / "deep.txt").write_text(content)


@needs_proc
def test_all_of_a_folder_is_synced_before_it_is_named_and_its_parent_after(tmp_path: Path, trace: Trace) -> None:
    with whole_folder(tmp_path / "made", existing="replace") as aside:
        fill(aside)
    *contents, own, named, above = trace
    assert sorted(contents) == [("sync", "deep.txt"), ("sync", "inner"), ("sync", "outer.txt")]
    assert own == ("sync", ".made.*.partial")
    assert named == ("name .made.*.partial", "made")
    assert above == ("sync", tmp_path.name)


@needs_proc
def test_a_folder_makes_room_only_when_its_successor_is_on_the_disk(tmp_path: Path, trace: Trace) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "outer.txt").write_text("old")
    with whole_folder(tmp_path / "made", existing="replace") as aside:
        fill(aside)
    assert trace[3:] == [
        ("sync", ".made.*.partial"),
        ("name made", ".made.damaged"),
        ("name .made.*.partial", "made"),
        ("sync", tmp_path.name),
    ]
    assert (tmp_path / "made" / "outer.txt").read_text() == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


def test_who_comes_first_is_kept(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "made", existing="keep") as late:
        fill(late, "late")
        with whole_folder(tmp_path / "made", existing="keep") as early:
            fill(early, "early")
    assert (tmp_path / "made" / "inner" / "deep.txt").read_text() == "early"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


def test_a_file_in_the_place_of_a_folder_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("a file")
    with pytest.raises(NotADirectoryError), whole_folder(tmp_path / "made", existing="keep") as aside:
        fill(aside)
    assert (tmp_path / "made").read_text() == "a file"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


CONTENTS = [letter * 200_000 for letter in "abcdefgh"]
ROUNDS = 25


def write_often(path: Path, content: str) -> None:
    for _ in range(ROUNDS):
        whole_file(path, content)


def assert_never_torn(path: Path, busy: Callable[[], bool]) -> None:
    """As long as somebody writes, the file is one of the contents, and in the end nothing lies beside it."""
    seen = 0
    while busy():
        assert path.read_text() in CONTENTS
        seen += 1
    assert seen
    assert path.read_text() in CONTENTS
    assert list(path.parent.iterdir()) == [path]


def test_threads_that_write_one_file_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    whole_file(path, CONTENTS[0])
    with ThreadPoolExecutor(len(CONTENTS)) as pool:
        writers = [pool.submit(write_often, path, content) for content in CONTENTS]
        assert_never_torn(path, lambda: not all(writer.done() for writer in writers))
    assert [writer.exception() for writer in writers] == [None] * len(CONTENTS)


def test_processes_that_write_one_file_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    whole_file(path, CONTENTS[0])
    # Processes that are forked share everything a name could be made from, such as a generator's state.
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_often, args=(path, content)) for content in CONTENTS[:4]]
    for writer in writers:
        writer.start()
    assert_never_torn(path, lambda: any(writer.is_alive() for writer in writers))
    assert [writer.exitcode for writer in writers] == [0] * len(writers)


WRITERS = """
import sys, time
from pathlib import Path
from lockstep import durable

def for_ever(*_):
    print("written aside", flush=True)
    time.sleep(600)

kind, path = sys.argv[1], Path(sys.argv[2])
if kind == "file":
    durable.os.fsync = for_ever
    durable.whole_file(path, "cut short")
with durable.whole_folder(path, existing="keep") as aside:
    (aside / "inner").mkdir()
    (aside / "inner" / "deep.txt").write_text("cut short")
    for_ever()
"""


def write(kind: str, path: Path) -> None:
    if kind == "file":
        whole_file(path, "new")
    else:
        with whole_folder(path, existing="keep") as aside:
            fill(aside)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next_and_not_before(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "made [1]", tmp_path / "made [1].more"
    with subprocess.Popen([sys.executable, "-c", WRITERS, kind, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written aside\n"
        (aside,) = tmp_path.iterdir()
        write(kind, path)
        assert set(tmp_path.iterdir()) == {path, aside}, "what is still being written is left alone"
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    write(kind, other)
    assert set(tmp_path.iterdir()) == {path, other, aside}, "only who writes the same thing sweeps"
    write(kind, path)
    assert set(tmp_path.iterdir()) == {path, other}


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_file_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(type(error)):
            whole_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("existing", ["replace", "keep"])
def test_a_folder_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: Any, call: int
) -> None:
    """The first four calls sync what is in it and itself, the others are the two renames of a replacement."""
    final, calls = tmp_path / "made", [0]
    if existing == "replace":
        final.mkdir()
        (final / "outer.txt").write_text("old")

    def failing(real: Callable[..., None]) -> Callable[..., None]:
        def passing(*arguments: Any) -> None:
            calls[0] += 1
            if calls[0] == call:
                raise OSError(errno.EIO, "Input/output error")
            real(*arguments)

        return passing

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(os, "rename", failing(os.rename))
    last = call == 6 and existing == "keep"  # the sync of the parent: it is in place, but nobody may count on it
    with pytest.raises(OSError, match="Input/output"), whole_folder(final, existing=existing) as aside:
        fill(aside)
    if last:
        assert list(tmp_path.iterdir()) == [final]
    elif existing == "keep":
        assert list(tmp_path.iterdir()) == []
    else:
        assert list(tmp_path.iterdir()) == [final]
        assert (final / "outer.txt").read_text() == "old"


def interrupted_filling(final: Path) -> None:
    with whole_folder(final, existing="replace") as aside:
        assert aside.parent == final.parent
        assert aside.name.startswith(f".{final.name}.")
        assert aside.name.endswith(".partial")
        fill(aside)
        raise KeyboardInterrupt


def test_a_folder_whose_filling_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_filling(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_new_has_the_mode_of_any_new_thing(tmp_path: Path, umask: int) -> None:
    whole_file(tmp_path / "note.txt", "new")
    with whole_folder(tmp_path / "made", existing="keep") as aside:
        fill(aside)
    assert mode(tmp_path / "note.txt") == 0o666 & ~umask
    assert mode(tmp_path / "made") == 0o777 & ~umask
    assert mode(tmp_path / "made" / "outer.txt") == 0o666 & ~umask


def test_what_is_replaced_passes_on_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")
    path.chmod(0o751)
    whole_file(path, b"new\r\n")
    assert mode(path) == 0o751
    assert path.read_bytes() == b"new\r\n"


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_a_link(tmp_path: Path, dangling: bool) -> None:
    real, link, second = tmp_path / "real" / "note.txt", tmp_path / "link.txt", tmp_path / "second.txt"
    real.parent.mkdir()
    if not dangling:
        real.write_text("old")
    link.symlink_to(Path("real") / "note.txt")
    second.symlink_to(link)
    whole_file(second, "new")
    assert (link.is_symlink(), second.is_symlink()) == (True, True)
    assert real.read_text() == "new"
    assert list(real.parent.iterdir()) == [real]


def test_a_link_that_goes_round_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        whole_file(link, "new")
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
