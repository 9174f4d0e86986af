"""Working through many images on the page: list, keys, many at once, a server that is away, a reload."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser import served
from browser.served import Visit, file, pictures, visiting
from browser.test_serve_page import serious, some


@pytest.fixture(scope="module")
def address(chromium: str) -> Iterator[str]:
    with served.serving() as found:
        yield found


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as found:
        found.open()
        yield found


def many(count: int = 14) -> list[Any]:
    data = pictures()["answer"][: count - 4] + pictures()["unsure"][:4]
    return [file(each, f"{number:02}.png") for number, each in enumerate(data)]


def test_many_images_are_rows_with_details_a_click_away(visit: Visit) -> None:
    page = visit.page
    visit.add(*many(14))
    rows = page.locator(".item")
    expect(rows).to_have_count(14)
    bars = rows.locator(".rail").evaluate_all(
        "all => [...new Set(all.map(each => each.getBoundingClientRect().x))].length"
    )
    assert bars == 1, "bars line up"
    rows.first.click()
    details = page.locator("#details")
    expect(details.locator(".meaning")).to_contain_text("of 100 answers this sure", ignore_case=True)
    assert serious(page) == []
    page.click("#details-next")
    expect(details.locator(".name")).to_have_text("01.png")
    page.keyboard.press("Escape")
    visit.wait_for("document.activeElement.querySelector('.name').textContent", "01.png")
    assert serious(page) == []
    page.get_by_role("button", name="Cards").click()
    expect(page.locator(".card")).to_have_count(14)


def test_cards_in_a_row_align_their_bars(visit: Visit) -> None:
    cards = visit.add(file(some("answer")), file(some("none of these")))
    tops = cards.locator("table.bars tbody").evaluate_all("all => all.map(each => each.getBoundingClientRect().y)")
    caption = cards.nth(1).locator("caption").bounding_box()["height"]
    assert abs(tops[1] - caption - tops[0]) < 2


def test_keys_label_images_one_after_another_and_take_back(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        page = visit.page
        page.clock.install()
        visit.open()
        visit.add(*many(14))
        rows = page.locator(".item")
        rows.first.focus()
        answered = rows.first.locator(".row-answer").inner_text()
        page.keyboard.press("r")
        page.keyboard.press(str(served.CLASSES.index(answered) + 1))  # the second row, by a number
        page.keyboard.press("ArrowDown")
        expect(rows.nth(0).locator(".said")).to_have_text("right")
        expect(rows.nth(1).locator(".said")).not_to_be_empty()
        page.keyboard.press("z")
        expect(rows.nth(1).locator(".said")).to_have_count(0)
        visit.wait_for("document.activeElement.querySelector('.name').textContent", "01.png")
        page.keyboard.press("w")
        page.keyboard.type("hat with feathers")
        expect(page.locator("#details .new-class")).to_contain_text("Not in the list")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        expect(rows.nth(1).locator(".said")).to_have_text("hat with feathers")
        with page.expect_request(lambda request: "hat with" in (request.post_data or "")) as sent:
            page.clock.run_for(6_000)
        assert json.loads(sent.value.post_data or "")["right"] is False
        page.clock.run_for(1_000)
        with page.expect_request("**/v1/feedback/undo"):
            rows.nth(1).locator("[data-action=undo]").click()
        expect(rows.nth(1).locator(".said")).to_have_count(0)
        assert visit.asked("v1/feedback/undo") == 1


def test_a_filtered_selection_is_labelled_at_once_and_exported(visit: Visit) -> None:
    page = visit.page
    visit.add(*many(16))
    page.click("#filters button:has-text('Unsure')")
    unsure = page.locator(".item:visible").count()
    assert 0 < unsure < 16
    page.click("#select-shown")
    page.click("#bulk-right")
    expect(page.locator("#feedback-words")).to_contain_text("Say whether")  # what has no answer cannot be right
    page.click("#select-shown")
    expect(page.locator("#bulk-count")).to_have_text(f"{unsure} image{'s' * (unsure > 1)} selected")
    page.fill("#bulk-name", "coat")
    page.get_by_role("button", name="Label", exact=True).click()
    expect(page.locator("#feedback-words")).to_contain_text(f"of {unsure} the class is known")
    with page.expect_download() as download:
        page.click("#export-marked")
    archive = zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert archive.testzip() is None
    assert len(archive.namelist()) == unsure
    assert {Path(name).parts[0] for name in archive.namelist()} == {"coat"}
    assert set(map(archive.read, archive.namelist())) <= set(pictures()["unsure"])


def test_results_and_feedback_survive_a_reload_until_they_are_removed(visit: Visit) -> None:
    page = visit.page
    visit.add(file(some("answer"), "a.png"), file(b"no picture", "broken.jpg", "image/jpeg"))
    page.locator(".card").first.get_by_role("button", name="Right").click()
    expect(page.locator("#kept-words")).to_have_text("Kept in this browser until you remove them.")
    page.wait_for_timeout(400)  # changes are gathered before they are written
    asked = visit.asked("v1/predict")
    page.reload()
    page.wait_for_selector("body.ready", state="attached")
    expect(page.locator(".card .name")).to_have_text(["a.png", "broken.jpg"])
    expect(page.locator(".card").first.locator(".given")).to_have_text("Your feedback: right")
    expect(page.locator(".card").last.locator(".verdict")).to_have_text("Not answered")
    visit.wait_for("document.querySelector('.card .picture img').naturalWidth > 0")
    assert visit.asked("v1/predict") == asked, "nothing is asked again"
    page.click("#remove-all")
    page.click("#confirm-yes")
    page.wait_for_timeout(300)
    page.reload()
    page.wait_for_selector("body.ready", state="attached")
    expect(page.locator("#answers")).to_be_hidden()


def test_feedback_waits_for_a_server_that_is_away_also_over_a_reload(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        page = visit.page
        visit.open()
        visit.add(file(some("answer", 9), "a.png"))
        page.route("**/v1/feedback", lambda route: route.abort())
        page.route("**/health", lambda route: route.abort())
        page.get_by_role("button", name="Right").click()
        expect(page.locator("#banner")).to_contain_text(
            "feedback on 1 image will be sent once it is back. You may close"
        )
        expect(page.locator(".card-feedback")).to_contain_text("is sent once the server is back")
        page.wait_for_timeout(400)
        page.unroute_all()
        with page.expect_response("**/v1/feedback") as sent:
            page.reload()
        assert sent.value.ok
        expect(page.locator("#banner")).to_be_empty()
        expect(page.locator(".given")).to_have_text("Your feedback: right")


def test_pictures_to_label_next_are_shown_first(visit: Visit) -> None:
    page = visit.page
    visit.add(*many(14))
    page.click("#suggest")
    expect(page.locator("#filters [aria-pressed=true]")).to_contain_text("Label next 14")
    order = page.locator(".item:visible .name").all_inner_texts()
    assert sorted(order) != order, "the most worth first"
    page.keyboard.press("1")  # the first one has the focus
    expect(page.locator("#filters [aria-pressed=true]")).to_contain_text("Label next 13")


def test_the_camera_answers_live_and_nothing_is_counted(visit: Visit) -> None:
    page = visit.page
    seen = page.request.get(f"{visit.address}v1/watch").json()["images"]["seen"]
    with page.expect_response(re.compile("preview=true")) as answer:
        page.click("#take")
        page.click("#live")
    found = answer.value.json()
    words = {"answer": found["class_name"], "unsure": "Unsure", "none of these": "None of these"}[found["decision"]]
    expect(page.locator("#live-answer .verdict")).to_contain_text(words)
    expect(page.locator("#live-answer")).to_contain_text("not counted and not kept")
    assert serious(page) == []
    page.keyboard.press("Escape")
    assert page.request.get(f"{visit.address}v1/watch").json()["images"]["seen"] == seen
    expect(page.locator("#answers")).to_be_hidden()


def test_a_picture_to_try_is_answered_and_counted_nowhere(visit: Visit) -> None:
    page = visit.page
    seen = page.request.get(f"{visit.address}v1/watch").json()["images"]["seen"]
    page.get_by_role("button", name="Try bag.png").click()
    visit.settle()
    expect(page.locator(".card .name")).to_have_text("bag.png")
    expect(page.locator(".card-feedback")).to_be_empty()
    assert page.request.get(f"{visit.address}v1/watch").json()["images"]["seen"] == seen


def test_on_a_phone_answers_come_directly_below_the_buttons(browser: Browser, address: str) -> None:
    with visiting(browser, address, viewport=served.PHONE, has_touch=True) as visit:
        visit.open()
        card = visit.add(file(some("answer")), file(some("unsure"))).first
        assert card.bounding_box()["y"] < served.PHONE["height"]
        panels = visit.page.locator("aside").bounding_box()["y"]
        assert panels > visit.page.locator(".card").last.bounding_box()["y"]
