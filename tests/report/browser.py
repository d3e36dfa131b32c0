"""A real browser, where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """Named by LOCKSTEP_CHROMIUM, else whatever is on the path."""
    found = [os.environ.get("LOCKSTEP_CHROMIUM"), *map(shutil.which, NAMES)]
    return next((path for path in found if path), None)


@contextmanager
def started() -> Iterator[Browser]:
    """Started once for many pages: it takes a second."""
    path = executable()
    if path is None:
        pytest.skip(f"no browser: LOCKSTEP_CHROMIUM is not set, and none of {', '.join(NAMES)} is on the path")
    # Chromium refuses its sandbox to root, as whom tests run in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page that was loaded and drawn, and all that went wrong with it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    """Errors, warnings, and dialogs that some script opened."""
    requests: list[str] = field(default_factory=list)

    def ask(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def dismiss(self, dialog: Dialog) -> None:
        self.problems.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def until(self, script: str, argument: Any = None) -> None:
        """Wait; playwright's own waiting compiles text in the page, which the page's policy forbids."""
        for _ in range(200):
            if self.page.evaluate(script, argument):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {script}")

    def redrawn(self) -> None:
        self.page.wait_for_selector("body[data-drawn=yes]", timeout=60_000)


@contextmanager
def opened(browser: Browser, file: Path, width: int = 1280, drawn: bool = True, **options: Any) -> Iterator[Opened]:
    """In a context of its own; `drawn` waits for all figures; `options` are playwright's."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    found = Opened(page)
    page.on("console", lambda said: found.problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("dialog", found.dismiss)
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(file.as_uri())
    if drawn:
        found.redrawn()
    yield found
    context.close()
