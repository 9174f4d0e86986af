"""How many modules the walks of docs/architecture.md go through: those of which a function runs on the way."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import samples
from calprompt import Classifier
from calprompt.report.page.build import build_report
from calprompt.report.page.document import ReportSettings
from calprompt.results.sources import read_source
from calprompt.serve.app import create_app
from calprompt.serve.loading import load_served
from calprompt.serve.settings import ServeSettings
from classifier import fits
from report import reports

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
FUNCTION = 1  # the flag of code that is a function's, and not a class's or a module's


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The modules of calprompt whose functions run, also in threads that are started meanwhile."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.startswith("calprompt.") and frame.f_code.co_flags & FUNCTION:
            seen.add(name.removeprefix("calprompt."))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def second_time(walk: Callable[[], object]) -> set[str]:
    """The modules of a walk once everything is imported."""
    walk()
    with recorded() as seen:
        walk()
    return seen


def image_to_answer() -> set[str]:
    model, path = Classifier.load(fits.saved()), fits.picture_paths()[0]
    return second_time(lambda: model.answer(path))


def run_to_report_cell() -> set[str]:
    settings = ReportSettings(no_figures=True, no_images=True)
    return second_time(lambda: build_report(read_source(reports.folders()[0], calibrators=[]), settings))


def request_to_json() -> set[str]:
    """To an exported model, by a server whose threads are started while calls are recorded."""
    folder, picture = samples.shared() / "walk-export", io.BytesIO()
    fits.fitted().export(folder)
    Image.new("RGB", (40, 30), (200, 30, 30)).save(picture, "PNG")
    with recorded() as seen:
        app = create_app(load_served(folder), ServeSettings(decoders=1))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            for _ in range(2):
                seen.clear()
                answer = client.post("/v1/predict", files={"image": ("a.png", picture.getvalue(), "image/png")})
                assert answer.status_code == 200, answer.text
    return seen


def imported(statement: str) -> int:
    """Modules of calprompt that a fresh process imports for a statement."""
    script = f"{statement}\nimport sys; print(sum(name.startswith('calprompt') for name in sys.modules))"
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("name", "walk", "statement"),
    [
        ("image to answer", image_to_answer, "from calprompt import Classifier"),
        ("run to report cell", run_to_report_cell, "from calprompt.report.page.build import build_report"),
        ("request to JSON", request_to_json, "from calprompt.serve import app, loading"),
    ],
)
def test_walks_are_no_longer_than_the_page_says(name: str, walk: Callable[[], set[str]], statement: str) -> None:
    row = re.search(rf"^\| {name}\b[^|]*\| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    working, loaded = map(int, row.groups())
    seen = walk()
    assert len(seen) <= working, sorted(seen)
    assert imported(statement) <= loaded
