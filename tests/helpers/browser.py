# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium of the system, and pages in it that must stay silent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; skips the test where there is none. Playwright's own are not used."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `test`")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # As root, and in containers, Chromium's own sandbox does not start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, path: Path, **given: Any) -> Iterator[Any]:
    """The page of a file. At the end: nothing in the console, no error, no request but the file."""
    context = browser.new_context(**given)
    page = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(path.as_uri())
        yield page
        assert not complaints, "\n".join(complaints)
        assert {url.partition("#")[0] for url in asked} == {path.as_uri()}
    finally:
        context.close()
