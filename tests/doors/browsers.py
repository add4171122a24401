"""Debian's chromium, driven by Playwright, for tests of the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, expect, sync_playwright

WAIT_MS: Final = 15_000
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def launched(chromium: str) -> Iterator[Browser]:
    """For one module: while it is open, the thread has an event loop that other tests would trip over."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MS)
        browser = playwright.chromium.launch(executable_path=shutil.which(chromium), args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()
