"""A real browser for tests of pages: Chromium, driven by Playwright, allowed to speak to this machine only."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=60_000)  # a machine may have much else to do

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-device-for-media-stream",  # a camera that shows a test picture,
    "--use-fake-ui-for-media-stream",  # and may be used without being asked
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program: $CALPROMPT_CHROMIUM, or the first one on the path."""
    named = os.environ.get("CALPROMPT_CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        what = f"CALPROMPT_CHROMIUM={named} is no program" if named else "there is no Chromium"
        message = (
            f"Tests in a browser did not run: {what}. Install it (apt-get install chromium, or playwright install "
            "chromium and set CALPROMPT_CHROMIUM to where it is)."
        )
        warnings.warn(message, stacklevel=1)  # shown at the end, which reasons of skipped tests are not
        pytest.skip(message)
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A running Chromium; a test opens a context of its own in it.

    It ends with its module: while it runs, so does an event loop in this thread, and asyncio allows no second one.
    """
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield started
        started.close()
