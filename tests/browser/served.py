"""A small model behind `calprompt serve`, pictures that it answers, and a page that notices whatever goes wrong."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page

import nursery
import samples
from calprompt import Classifier, pocket

CLASSES = ("bag", "coat", "pullover", "sandal", "trousers")
TOKEN = "a-token-for-tests"
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
NETWORK = "Failed to load resource"  # Chromium's own line for a response that is an error, which the page handles
WATCHERS = """
window.seen = {violations: [], urls: 0, shift: 0};
addEventListener("securitypolicyviolation", (event) => seen.violations.push(event.violatedDirective));
const create = URL.createObjectURL, revoke = URL.revokeObjectURL;
URL.createObjectURL = (blob) => { seen.urls += 1; return create.call(URL, blob); };
URL.revokeObjectURL = (url) => { seen.urls -= 1; revoke.call(URL, url); };
new PerformanceObserver((list) => list.getEntries().forEach((entry) => { seen.shift += entry.value; }))
  .observe({type: "layout-shift", buffered: true});
"""


@cache
def model() -> Path:
    """Fitted on pictures of five kinds of clothes; answers, is unsure, and promises."""
    images = samples.shared() / "clothes"
    sheet = pocket.sheet("clothes")
    for label, number, pixels in sheet.pictures("train"):
        if sheet.class_names[label] in CLASSES:
            path = images / sheet.class_names[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    classifier = Classifier("pocket", tuner="kgcoop", epochs=1, folds=2, views=1, target_error=0.2, verbose=False).fit(
        images
    )
    return classifier.save(samples.shared() / "clothes-model")


@cache
def pictures() -> dict[str, list[bytes]]:
    """Test pictures of all kinds of clothes as PNG files, by what the model decides."""
    images = [Image.fromarray(pixels) for _, _, pixels in pocket.sheet("clothes").pictures("test")][::29]
    found: dict[str, list[bytes]] = {"answer": [], "unsure": [], "none of these": []}
    for image, answer in zip(images, Classifier.load(model()).answer(images), strict=True):
        found[answer.decision].append(png(image))
    return found


def png(image: Image.Image) -> bytes:
    """An image as a file."""
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


@contextmanager
def serving(*options: str, token: str = "", place: Path | None = None) -> Iterator[str]:
    """The address of a server of its own process, as the command line starts it."""
    command = ("serve", str(place or model()), "--port", "0", "--decoders", "1", *options)
    process = nursery.calprompt(*command, env={**os.environ, "CALPROMPT_TOKEN": token})
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "(stop with" in said:
                break
        yield next(word for word in said.split() if word.startswith("http")).partition("#")[0]
    finally:
        process.terminate()
        process.wait(60)


def file(data: bytes, name: str = "picture.png", type: str = "image/png") -> Any:
    """A file as Playwright takes it."""
    return {"name": name, "mimeType": type, "buffer": data}


@dataclass
class Visit:
    """A page, what it asked for, and what went wrong on it."""

    page: Page
    context: BrowserContext
    address: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, fragment: str = "") -> None:
        self.page.goto(self.address + fragment)
        self.page.wait_for_selector("body.ready", state="attached")

    def add(self, *files: Any) -> Locator:
        """Choose files, and wait until all are decided; the cards."""
        self.page.set_input_files("#chooser", list(files))
        self.settle()
        return self.page.locator(".card")

    def wait_for(self, script: str, expected: Any = True) -> None:
        """Wait until an expression of the page has a value."""
        self.page.wait_for_function(f"(expected) => ({script}) === expected", arg=expected)

    def settle(self) -> None:
        self.page.wait_for_selector("#answers.still")

    def slide(self, value: float) -> None:
        move = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"
        self.page.locator("#threshold").evaluate(move, value)
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def asked(self, path: str) -> int:
        """How often something was asked for."""
        return sum(f"/{path}" in each for each in self.requests)


@contextmanager
def visiting(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """A page that is not opened yet; at the end, nothing may have gone wrong on it.

    Args:
        browser: That shows it.
        address: Of the server.
        options: Of the browser's context.
    """
    context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script(WATCHERS)
        visit = Visit(page, context, address)
        page.on("pageerror", lambda error: visit.problems.append(str(error)))
        page.on("dialog", lambda dialog: (visit.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: visit.requests.append(request.url))

        def on_console(message: Any) -> None:
            if message.type in ("error", "warning") and not message.text.startswith(NETWORK):
                visit.problems.append(message.text)

        page.on("console", on_console)
        yield visit
        assert visit.problems == []
        assert [url for url in visit.requests if not url.startswith((address, "blob:", "data:"))] == []
        assert page.evaluate("seen.violations") == []
    finally:
        context.close()
