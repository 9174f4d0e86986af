"""From feedback to a better model, in a browser: label 60 pictures, fit again, try beside, switch, go back."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

import samples
from browser import served
from browser.served import file, png, visiting
from calprompt import pocket

FIT = 300_000  # milliseconds that a fit may take on a busy machine


@pytest.mark.long  # a fit of a real model takes half a minute
def test_labelled_pictures_make_a_version_that_is_tried_and_switched_to(browser: Browser, tmp_path: Path) -> None:
    models, kept = tmp_path / "models", tmp_path / "kept"
    shutil.copytree(served.model(), models / "clothes" / "1")
    sheet = pocket.sheet("clothes")
    pictures = [
        (sheet.class_names[label], png(Image.fromarray(pixels)))
        for label, _, pixels in sheet.pictures("test")
        if sheet.class_names[label] in served.CLASSES
    ]
    random.Random(1).shuffle(pictures)
    options = ("--keep", str(kept), "--refit", str(samples.shared() / "clothes"))
    with served.serving(*options, place=models) as address, visiting(browser, address) as visit:
        page = visit.page
        visit.open()
        expect(page.locator("#fit-again")).to_be_disabled()
        files = [file(data, f"{n}-{name}.png") for n, (name, data) in enumerate(pictures[:60])]
        page.set_input_files("#chooser", files)
        visit.settle()
        page.locator(".item").first.focus()
        for name, _ in pictures[:60]:
            page.keyboard.press(str(served.CLASSES.index(name) + 1))
        expect(page.locator("#feedback-words")).to_contain_text("of 60 the class is known")
        expect(page.locator("#improve-words")).to_contain_text("60 labelled pictures")
        assert len(list(kept.glob("clothes/*/*.png"))) == 60

        page.click("#fit-again")
        expect(page.locator("#stop-fit")).to_be_visible()
        expect(page.locator("#stop-fit")).to_be_hidden(timeout=FIT)
        expect(page.locator("#improve-state")).to_contain_text("Version 2 is there.")
        expect(page.locator("#improve-state")).to_contain_text("that neither learned from")
        assert (models / "clothes" / "2").is_dir()
        page.click("#shadow")
        expect(page.locator("#improve-state")).to_contain_text("Version 2 is tried beside it.")
        more = [file(data, f"more-{n}.png") for n, (_, data) in enumerate(pictures[60:66])]
        page.set_input_files("#chooser", more)
        visit.settle()
        assert page.request.get(f"{address}v1/shadow").json()["images"] == 6
        expect(page.locator("#model-line")).to_contain_text("version 1")

        page.click("#switch")
        page.click("#confirm-yes")
        expect(page.locator("#notice")).to_contain_text("Another version of the model answers now")
        visit.settle()
        expect(page.locator("#model-line")).to_contain_text("version 2")
        assert page.request.get(f"{address}v1/versions").json()["active"] == "2"
        page.click("#rollback")
        expect(page.locator("#model-line")).to_contain_text("version 1")
