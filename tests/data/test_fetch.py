"""Downloading from a real server that cuts connections, ignores ranges, or sends something else."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lockstep.data.fetch import download
from lockstep.data.published import Archive, Part, locate
from lockstep.errors import UserError

CONTENT = random.Random(1).randbytes(700_000)
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT at every path."""

    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.knows_ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        body = CONTENT[start:]
        if self.server.cuts:
            self.server.cuts -= 1
            body = body[:200_000]
        self.wfile.write(body)
        self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        return

    def log_error(self, *args: object) -> None:
        return


class Server(ThreadingHTTPServer):
    """What the handler is told to do, and what it was asked."""

    cuts = 0
    knows_ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/corpus.bin"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def check(path: Path) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != CHECKSUM:
        raise UserError(f"{path}: sha256 is {found}")


def test_a_cut_connection_is_resumed_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = 2
    download(server.url, tmp_path / "corpus.bin", check)
    assert (tmp_path / "corpus.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=200000-", "bytes=400000-"]
    assert [path.name for path in tmp_path.glob("corpus*")] == ["corpus.bin"]


def test_a_later_run_goes_on_from_the_part_that_is_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.bin.part").write_bytes(CONTENT[:123_456])
    download(server.url, tmp_path / "corpus.bin", check)
    assert server.ranges == ["bytes=123456-"]
    assert (tmp_path / "corpus.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "corpus.bin.part").write_bytes(b"x" * 800_000)
    download(server.url, tmp_path / "corpus.bin", check)
    assert (tmp_path / "corpus.bin").read_bytes() == CONTENT


def test_a_complete_part_is_not_fetched_twice_in_vain(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.bin.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "corpus.bin", check)
    assert (tmp_path / "corpus.bin").read_bytes() == CONTENT


def test_a_connection_that_is_always_cut_ends_in_one_line(server: Server, tmp_path: Path) -> None:
    server.cuts, server.knows_ranges = 99, False
    with pytest.raises(UserError, match=r"connection lost after 200000 of 700000 bytes") as caught:
        download(server.url, tmp_path / "corpus.bin", check)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus.bin").exists()


def test_a_published_part_is_fetched_into_the_cache_once(server: Server, own_cache: Path) -> None:
    part = Part("corpus.bin", CHECKSUM, origin=Archive(server.url, "corpus.bin"))
    (first,) = locate("random", (part,))
    assert first.path == own_cache / "corpora" / "corpus.bin"
    assert first.read() == CONTENT
    locate("random", (part,))
    assert len(server.ranges) == 1


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, own_cache: Path) -> None:
    part = Part("corpus.bin", "0" * 64, origin=Archive(server.url, "corpus.bin"))
    with pytest.raises(UserError, match=CHECKSUM) as caught:
        locate("random", (part,))
    assert "\n" not in str(caught.value)
    assert list((own_cache / "corpora").iterdir()) == []


def test_without_a_server_the_line_names_file_and_folders(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "mine"))
    with Server() as closed:
        url = closed.url
    part = Part("corpus.bin", CHECKSUM, packed=("corpus.xz",), origin=Archive(url, "corpus.bin"))
    with pytest.raises(UserError) as caught:
        locate("random", (part,))
    line = str(caught.value)
    for expected in ("corpus.bin", "corpus.xz", str(tmp_path / "mine"), str(own_cache / "corpora"), url):
        assert re.search(re.escape(expected), line)
    assert "\n" not in line
