"""Downloading one file: resumed where it stopped, checked before it takes its name."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lockstep.errors import UserError
from lockstep.progress import showing

ATTEMPTS = 4
TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as lost."""
BLOCK = 1 << 18


@dataclass(frozen=True)
class _Reply:
    stream: http.client.HTTPResponse
    start: int
    total: int | None


def download(url: str, target: Path, check: Callable[[Path], None]) -> None:
    """Fetch `url` into `target`; `check` is given the complete file first and raises where it is wrong.

    What has arrived stays beside it as `.part`, and the next call, or the next attempt, goes on from there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _fetch_rest(url, part)
            break
        except (OSError, http.client.HTTPException) as error:
            lost = f"{url}: not downloaded ({_reason(error)})"
            gave_nothing = _size(part) <= before and attempt > 1
            refused = isinstance(error, urllib.error.URLError)
            if refused or gave_nothing or attempt == ATTEMPTS:
                raise UserError(f"{lost}; run again to go on after {_size(part)} bytes") from None
    try:
        check(part)
    except UserError:
        # Nothing of it can be trusted: going on from a wrong beginning would never end well.
        part.unlink(missing_ok=True)
        raise
    part.replace(target)


def _fetch_rest(url: str, part: Path) -> None:
    """Append what is missing of `part`; raises ConnectionError where the connection ended early."""
    reply = _request(url, _size(part))
    with reply.stream, part.open("r+b" if part.exists() else "wb") as out:
        out.seek(reply.start)
        out.truncate()
        with showing(f"fetching {part.stem}", "bytes", reply.total, reply.start) as progress:
            end = reply.start + _copy(reply.stream, out, progress.add)
    if reply.total is not None and end < reply.total:
        raise ConnectionError(f"connection lost after {end} of {reply.total} bytes")


def _request(url: str, have: int) -> _Reply:
    headers = {"User-Agent": "lockstep"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        # An opener of its own takes the proxy settings as they are now.
        opener = urllib.request.build_opener()
        stream = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing lies beyond what we have; whether that is right, the server's whole answer tells.
            return _request(url, 0)
        raise
    sent = re.match(r"bytes (\d+)-\d+/(\d+|\*)", stream.headers.get("Content-Range", ""))
    if stream.status == http.HTTPStatus.PARTIAL_CONTENT and sent and int(sent[1]) == have:
        return _Reply(stream, have, None if sent[2] == "*" else int(sent[2]))
    # The server ignored the range: it sends the file from its beginning.
    length = stream.headers.get("Content-Length")
    return _Reply(stream, 0, int(length) if length else None)


def _copy(source: IO[bytes], out: IO[bytes], advance: Callable[[int], None]) -> int:
    copied = 0
    while block := source.read(BLOCK):
        out.write(block)
        copied += len(block)
        advance(len(block))
    return copied


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason).replace("\n", " ") or type(error).__name__
