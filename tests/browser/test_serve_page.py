"""The page of `calprompt serve`, as a person uses it: in Chromium, against a real server of a small model."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Route, expect

from browser import served
from browser.served import DESKTOP, PHONE, TOKEN, Visit, file, pictures, png, visiting
from calprompt import pocket


@pytest.fixture(scope="module")
def address(chromium: str) -> Iterator[str]:
    with served.serving() as found:
        yield found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def guarded(chromium: str, kept: Path) -> Iterator[str]:
    """With a token, a small limit, and a folder for images with feedback."""
    with served.serving("--keep", str(kept), "--max-body", "100KB", token=TOKEN) as found:
        yield found


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as found:
        found.open()
        yield found


def some(decision: str, number: int = 0) -> bytes:
    return pictures()[decision][number]


def test_an_image_is_answered_with_what_its_confidence_means(visit: Visit) -> None:
    with visit.page.expect_request("**/v1/predict*") as asked:
        card = visit.add(file(some("answer")))
    assert asked.value.post_data_buffer == some("answer"), "the model sees the file as it is"
    verdict = card.locator(".verdict")
    top = card.locator("table.bars th").first.inner_text()
    assert verdict.inner_text().split("\n")[0] == top
    assert re.search(
        r"Of 100 answers this sure, about \d+ were right \(\d+ to \d+, judged by \d+ held-out images", card.inner_text()
    )
    expect(card.locator("table.bars tr")).to_have_count(len(served.CLASSES))
    expect(card.locator(".set .member").first).to_have_text(top)
    standing = visit.page.locator("#standing")
    expect(standing).to_contain_text("Promised: at most 20 % of its answers are wrong.")
    plain = (
        r"It answers \d+ of 100 pictures; of those (about \d+ (is|are)|hardly any is) wrong\. The rest it passes to you"
    )
    expect(standing).to_contain_text(re.compile(plain))
    expect(card.locator(".verdict use")).to_have_attribute("href", "#icon-answer")  # ticks are for people
    expect(visit.page.locator("#spoken")).to_contain_text("Done: 1 answer, 0 unsure")


def test_unsure_and_none_of_these_are_no_answers(visit: Visit) -> None:
    cards = visit.add(file(some("unsure"), "unsure.png"), file(some("none of these"), "none.png"))
    expect(cards.nth(0).locator(".verdict")).to_have_text("Unsure")
    expect(cards.nth(0)).to_contain_text("Not an answer: the likeliest class")
    expect(cards.nth(1).locator(".verdict")).to_have_text("None of these")
    expect(cards.nth(1).locator("caption")).to_have_text("Probabilities, if it had to be one of the classes")
    expect(cards.locator("button:has-text('Right')")).to_have_count(0)


def test_several_images_are_sorted_filtered_and_removed(visit: Visit) -> None:
    files = [file(some("answer", number), f"image {number}.png") for number in (10, 2, 1)]
    cards = visit.add(*files, file(some("unsure"), "doubtful.png"), file(b"no picture", "broken.jpg", "image/jpeg"))
    page = visit.page
    names = page.locator(".card:visible .name")
    expect(names).to_have_text(["image 10.png", "image 2.png", "image 1.png", "doubtful.png", "broken.jpg"])
    page.select_option("#sort", "name")
    expect(names).to_have_text(["broken.jpg", "doubtful.png", "image 1.png", "image 2.png", "image 10.png"])
    page.click("#direction")
    expect(names.first).to_have_text("image 10.png")
    page.click("#direction")
    page.select_option("#sort", "decision")
    expect(names.nth(0)).to_have_text("broken.jpg")
    expect(names.nth(1)).to_have_text("doubtful.png")
    page.select_option("#sort", "confidence")
    expect(names.first).to_have_text("doubtful.png")
    expect(names.last).to_have_text("broken.jpg")
    page.click("#filters button:has-text('Answers')")
    expect(names).to_have_count(3)
    page.click("#filters button:has-text('All')")
    cards.filter(has_text="broken.jpg").get_by_role("button", name="Remove").click()
    visit.wait_for("document.activeElement.ariaLabel?.startsWith('Remove')")  # the focus stays in the list
    page.click("#remove-all")
    page.click("#confirm-yes")
    expect(page.locator("#answers")).to_be_hidden()
    visit.wait_for("seen.urls", 0)  # no picture is held in memory


def test_at_most_three_images_are_on_their_way_at_once(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        held: list[Route] = []
        visit.page.route("**/v1/predict*", lambda route: held.append(route))
        visit.open()
        visit.page.set_input_files("#chooser", [file(some("answer", n), f"{n}.png") for n in range(8)])
        expect(visit.page.locator(".card")).to_have_count(8)
        deadline = time.monotonic() + 60
        while len(held) < 3 and time.monotonic() < deadline:
            visit.page.wait_for_timeout(20)
        visit.page.wait_for_timeout(300)  # a fourth would come now
        assert len(held) == 3
        expect(visit.page.locator("#progress-words")).to_have_text("0 of 8 images")
        visit.page.click("#stop")
        expect(visit.page.locator(".card .verdict").first).to_have_text("Stopped")
        for route in held:
            route.abort()


TRANSFER = """([bytes, name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
  return transfer;
}"""


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_images_are_pasted_or_dropped(visit: Visit, way: str) -> None:
    transfer = visit.page.evaluate_handle(TRANSFER, [list(some("answer")), "image.png"])
    if way == "paste":
        paste = "(data) => document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true}))"
        visit.page.evaluate(paste, transfer)
    else:
        visit.page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
        expect(visit.page.locator(".drop-veil")).to_be_visible()
        visit.page.dispatch_event("body", "drop", {"dataTransfer": transfer})
        expect(visit.page.locator(".drop-veil")).to_be_hidden()
    expect(visit.page.locator(".card .verdict strong")).to_have_text(re.compile("|".join(served.CLASSES)))
    expect(visit.page.locator(".card .name")).to_have_text("pasted-1.png" if way == "paste" else "image.png")


def test_something_else_that_is_dropped_is_explained(visit: Visit) -> None:
    text = visit.page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.setData('text/plain', 'a link'); return data; }"
    )
    visit.page.dispatch_event("body", "drop", {"dataTransfer": text})
    expect(visit.page.locator("#notice")).to_contain_text("Only files can be dropped here")


def test_a_picture_is_taken_with_the_camera(visit: Visit) -> None:
    visit.page.click("#take")
    expect(visit.page.locator("#shutter")).to_be_enabled()
    with visit.page.expect_request("**/v1/predict*") as asked:
        visit.page.click("#shutter")
    assert (asked.value.post_data_buffer or b"")[:3] == b"\xff\xd8\xff", "a JPEG file"
    expect(visit.page.locator(".card .name")).to_have_text("camera-1.jpg")
    visit.wait_for("document.getElementById('video').srcObject", None)  # the camera is off again


def test_a_camera_that_may_not_be_used_is_explained(visit: Visit) -> None:
    refused = "Promise.reject(new DOMException('', 'NotAllowedError'))"
    visit.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = () => {refused}; }}")
    visit.page.click("#take")
    expect(visit.page.locator("#camera-problem")).to_contain_text("allow it for this page")


def test_classes_are_edited_and_promises_withdrawn(visit: Visit) -> None:
    page = visit.page
    card = visit.add(file(some("answer")))
    before = card.locator(".verdict").inner_text()
    page.fill("#new-class", "raincoat")
    page.press("#new-class", "Enter")
    expect(page.locator("#classes .chip.added")).to_have_text("raincoatadded: no promise")
    visit.settle()
    expect(page.locator("#standing")).to_contain_text("Withdrawn: at most 20 % of its answers are wrong")
    expect(page.locator("#promises li").first).to_contain_text("Withdrawn")
    expect(page.locator("#evidence")).to_contain_text("is not known")
    expect(card.locator("th", has_text="raincoat")).to_have_text("raincoat added")
    expect(card).to_contain_text("was not measured for this list")
    page.get_by_role("button", name="Remove coat", exact=True).click()
    expect(page.locator("#removed-classes")).to_have_text("coat")
    visit.settle()
    expect(card.locator("th")).to_have_count(len(served.CLASSES))
    asked = visit.asked("v1/predict")
    page.click("#reset-classes")
    expect(page.locator("#standing")).to_contain_text("Promised:")
    visit.settle()
    assert card.locator(".verdict").inner_text() == before
    assert visit.asked("v1/predict") == asked, "answers that are known are not asked for again"


def test_an_invalid_class_is_refused_with_a_message(visit: Visit) -> None:
    visit.page.fill("#new-class", "bag")
    visit.page.press("#new-class", "Enter")
    expect(visit.page.locator("#class-problem")).to_contain_text("bag")
    expect(visit.page.locator("#classes .chip")).to_have_count(len(served.CLASSES))
    visit.page.fill("#new-class", "  ")
    visit.page.press("#new-class", "Enter")
    expect(visit.page.locator("#class-problem")).to_have_text("Write the name of a class first.")


def test_the_threshold_decides_at_once_and_without_the_server(visit: Visit) -> None:
    page = visit.page
    files = [file(each, f"{n}.png") for n, each in enumerate(pictures()["answer"][:4] + pictures()["unsure"][:3])]
    visit.add(*files)
    answers = [
        json.loads(page.request.post(f"{visit.address}v1/predict", data=each["buffer"]).body()) for each in files
    ]
    own = page.locator("#threshold-value").inner_text()
    asked = len(visit.requests)
    for threshold in (0.0, 0.5, 0.93, 1.0):
        visit.slide(threshold)
        states = [card.get_attribute("data-state") for card in page.locator(".card").all()]
        assert states == ["answer" if each["probability"] >= threshold else "unsure" for each in answers]
    assert len(visit.requests) == asked
    expect(page.locator("#standing")).to_contain_text("No promise at this threshold")
    expect(page.locator("#risk")).to_have_text("none answered")
    visit.slide(0)
    evidence = json.loads(page.request.get(f"{visit.address}v1/model").body())["evidence"]
    everything = evidence["risk_coverage"]["coverage"][-1]  # but what is taken for none of the classes
    expect(page.locator("#coverage")).to_have_text(f"{100 * everything:.0f} %")
    page.click("#own-threshold")
    expect(page.locator("#threshold-value")).to_have_text(own)
    expect(page.locator("#standing")).to_contain_text("Promised:")
    states = [card.get_attribute("data-state") for card in page.locator(".card").all()]
    assert states == [each["decision"] for each in answers]


def test_risk_and_coverage_are_those_of_the_curve(visit: Visit) -> None:
    evidence = json.loads(visit.page.request.get(f"{visit.address}v1/model").body())["evidence"]
    curve = evidence["risk_coverage"]
    middle = len(curve["threshold"]) // 2
    visit.slide(curve["threshold"][middle])  # rounded down or up to the steps of the slider
    at = float(visit.page.locator("#threshold").input_value())
    place = max(n for n, threshold in enumerate(curve["threshold"]) if threshold >= at)
    assert abs(place - middle) <= len(curve["threshold"]) / 10
    answered = round(curve["coverage"][place] * evidence["images"])
    expect(visit.page.locator("#coverage-detail")).to_have_text(f"{answered} of {evidence['images']} held-out images")
    wrong = round(curve["risk"][place] * answered)
    expect(visit.page.locator("#risk-detail")).to_contain_text(f"{wrong} of {answered}; at most")


def test_the_reliability_diagram_shows_every_bin(visit: Visit) -> None:
    page = visit.page
    evidence = json.loads(page.request.get(f"{visit.address}v1/model").body())["evidence"]
    visit.add(file(some("answer")))
    page.get_by_role("button", name="How do we know?").click()
    bins = len(evidence["reliability"])
    for part in (".point", ".interval", ".chance", ".count"):
        expect(page.locator(f"#reliability-chart {part}")).to_have_count(bins)
    expect(page.locator("#reliability-chart .point.here")).to_have_count(1)
    page.click("#reliability summary")
    expect(page.get_by_role("table", name="Reliability by confidence").locator("tbody tr")).to_have_count(bins)
    page.keyboard.press("Escape")
    expect(page.locator("#reliability")).to_be_hidden()
    visit.wait_for("document.activeElement.textContent", "How do we know?")


def test_terms_of_the_field_are_in_the_section_for_experts_only(visit: Visit) -> None:
    page, terms = visit.page, re.compile(r"kgcoop|cross-fit|\bECE\b", re.IGNORECASE)
    visit.add(file(some("answer")))
    page.click("#about-button")
    assert not terms.search(page.locator("body").inner_text())
    page.get_by_text("For experts").click()
    expect(page.locator("#about-sentences")).to_contain_text(terms)


def test_feedback_can_be_taken_back_before_it_is_sent(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        page = visit.page
        page.clock.install()
        visit.open()
        card = visit.add(file(some("answer", 3)), file(some("answer", 4))).first
        card.get_by_role("button", name="Right").click()
        card.get_by_role("button", name="Undo").click()
        page.clock.run_for(10_000)
        assert visit.asked("v1/feedback") == 0
        card.get_by_role("button", name="Right").click()
        page.clock.run_for(10_000)
        expect(card.locator(".given")).to_have_text("Your feedback: right")
        expect(page.locator("#watch")).to_contain_text("nothing speaks against")
        assert visit.asked("v1/feedback") == 1
        again = visit.add(file(some("answer", 3), "again.png")).last
        again.get_by_role("button", name="Right").click()
        page.clock.run_for(10_000)
        expect(again.locator(".card-feedback")).to_contain_text("Your feedback")
        expect(again.locator(".card-feedback .fine")).not_to_be_empty()


def test_a_wrong_answer_is_reported_with_its_true_class(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        page = visit.page
        page.clock.install()
        visit.open()
        card = visit.add(file(some("answer", 5)))
        answered = card.locator(".verdict strong").inner_text()
        card.get_by_role("button", name="Wrong").click()
        truth = next(name for name in served.CLASSES if name != answered)
        card.get_by_label("What is it?").fill(truth)
        card.get_by_role("button", name="Send").click()
        with page.expect_request("**/v1/feedback") as sent:
            page.clock.run_for(6_000)
        body = json.loads(sent.value.post_data or "")
        assert (body["right"], body["class_name"]) == (False, truth)
        expect(card.locator(".given")).to_have_text(f"Your feedback: wrong: it is {truth}")


def test_unfamiliar_images_are_noticed_without_feedback(browser: Browser, chromium: str) -> None:
    flags = [png(Image.fromarray(pixels)) for _, _, pixels in pocket.sheet("flags").pictures("test")][::60]
    with served.serving() as address, visiting(browser, address) as visit:
        visit.open()
        section = visit.page.locator("#images-watch")
        expect(section).to_contain_text("Nothing seen yet")
        visit.add(*(file(flag, f"{number}.png") for number, flag in enumerate(flags)))
        expect(section).to_contain_text("These images look different")
        expect(section).to_contain_text("These images are not like those the model was fitted on")
        expect(section).to_contain_text("calprompt evaluate")
        expect(visit.page.locator("#standing")).to_contain_text("No promise for these images")
        expect(visit.page.locator("#standing")).to_contain_text("What to do:")
        expect(visit.page.get_by_text("What to do:")).to_have_count(1)  # it is said once
        expect(visit.page.locator('#promises [data-status="unlike"]')).to_have_count(2)


def test_images_with_feedback_are_kept_if_the_server_does_so(browser: Browser, guarded: str, kept: Path) -> None:
    with visiting(browser, guarded) as visit:
        page = visit.page
        page.clock.install()
        visit.open(f"#token={TOKEN}")
        expect(page.locator("#limits")).to_contain_text("Images that you give feedback on are kept")
        cards = visit.add(file(some("unsure", 1), "unsure.png"), file(some("answer", 6), "sure.png"))
        cards.first.get_by_role("button", name="Label it").click()
        cards.first.get_by_label("What is it?").fill("pullover")
        cards.first.get_by_role("button", name="Send").click()
        cards.last.get_by_role("button", name="Right").click()
        page.clock.run_for(6_000)
        expect(cards.last.locator(".card-feedback")).to_contain_text("the image is kept")
        expect(cards.first.locator(".card-feedback")).to_contain_text("it is pullover")
        held = {path.parent.name: path.read_bytes() for path in kept.rglob("*.png")}
        assert held.pop("pullover") == some("unsure", 1)
        assert list(held.values()) == [some("answer", 6)]


def test_errors_are_shown_next_to_their_image(browser: Browser, guarded: str) -> None:
    with visiting(browser, guarded) as visit:
        visit.open(f"#token={TOKEN}")
        cards = visit.add(
            file(b"no picture at all", "broken.jpg", "image/jpeg"),
            file(b"", "empty.png"),
            file(some("answer") + bytes(200_000), "large.png"),
            file(some("answer"), "good.png"),
        )
        expect(cards.nth(0)).to_contain_text("broken.jpg")
        expect(cards.nth(0).locator(".verdict")).to_have_text("Not answered")
        expect(cards.nth(0).locator(".meaning")).not_to_be_empty()
        expect(cards.nth(1)).to_contain_text("The file is empty.")
        expect(cards.nth(2)).to_contain_text("The file has 200 kB; this server takes up to 100 kB.")
        expect(cards.nth(3)).to_have_attribute("data-state", "answer")
        expect(visit.page.get_by_role("button", name="Try again")).to_have_count(0)  # it cannot help any of these


def test_a_busy_server_is_asked_again_as_often_as_is_reasonable(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        tries = 0

        def busy(route: Route) -> None:
            nonlocal tries
            tries += 1
            problem = json.dumps({"title": "Too Many Requests", "status": 429, "detail": "the server is busy"})
            if tries > 2:
                route.continue_()
            else:
                route.fulfill(status=429, headers={"Retry-After": "1"}, body=problem)

        visit.page.route("**/v1/predict*", busy)
        visit.open()
        visit.page.set_input_files("#chooser", file(some("answer")))
        expect(visit.page.locator(".card")).to_contain_text("The server is busy; again in 1 s")
        expect(visit.page.locator(".card")).to_have_attribute("data-state", "answer")
        visit.page.unroute("**/v1/predict*")
        always = lambda route: route.fulfill(status=429, headers={"Retry-After": "0"}, body="{}")  # noqa: E731
        visit.page.route("**/v1/predict*", always)
        before = visit.asked("v1/predict")
        card = visit.add(file(some("answer", 1))).last
        expect(card.locator(".verdict")).to_have_text("Not answered")
        assert visit.asked("v1/predict") - before == 6


def test_an_image_is_sent_again_if_a_proxy_lost_the_replica_that_held_it(browser: Browser, address: str) -> None:
    """Ray's proxy answers 500 in plain text then; a 500 of the server itself would come again."""
    with visiting(browser, address) as visit:
        lost = 2

        def proxy(route: Route) -> None:
            nonlocal lost
            lost -= 1
            if lost < 0:
                route.continue_()
            else:
                route.fulfill(status=500, content_type="text/plain", body="Internal Server Error")

        visit.page.route("**/v1/predict*", proxy)
        visit.open()
        expect(visit.add(file(some("answer")))).to_have_attribute("data-state", "answer")
        assert visit.asked("v1/predict") == 3
        own = json.dumps({"title": "Internal Server Error", "status": 500, "detail": "see the server log"})
        visit.page.unroute("**/v1/predict*")
        visit.page.route(
            "**/v1/predict*",
            lambda route: route.fulfill(status=500, content_type="application/problem+json", body=own),
        )
        expect(visit.add(file(some("answer", 1))).last).to_contain_text("See the server log")
        assert visit.asked("v1/predict") == 4


def test_images_wait_while_there_is_no_network(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        visit.open()
        visit.context.set_offline(True)
        visit.page.set_input_files("#chooser", [file(some("answer"), "a.png"), file(some("unsure"), "b.png")])
        expect(visit.page.locator("#banner")).to_contain_text("The server cannot be reached")
        expect(visit.page.locator(".card .verdict").first).to_have_text("Waiting…")
        visit.context.set_offline(False)
        visit.settle()
        expect(visit.page.locator("#banner")).to_be_empty()
        expect(visit.page.locator(".card").first).to_have_attribute("data-state", "answer")


def test_a_server_that_is_gone_can_be_tried_again(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        visit.page.clock.install()  # it would try by itself, too
        visit.page.route("**/v1/*", lambda route: route.abort())
        visit.page.route("**/health", lambda route: route.abort())
        visit.page.goto(address)
        expect(visit.page.locator("#banner")).to_contain_text("The server cannot be reached")
        visit.page.unroute_all()
        visit.page.get_by_role("button", name="Try now").click()
        visit.page.wait_for_selector("body.ready", state="attached")
        expect(visit.page.locator("#banner")).to_be_empty()
        visit.add(file(some("answer")))


def test_an_image_whose_connection_always_breaks_does_not_hold_up_the_others(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:

        def breaks(route: Route) -> None:
            if route.request.headers.get("x-image-name") == "bad.png":
                route.abort()
            else:
                route.continue_()

        visit.page.route("**/v1/predict*", breaks)
        visit.open()
        cards = visit.add(file(some("answer"), "bad.png"), file(some("answer"), "good.png"))
        expect(cards.nth(0)).to_contain_text("The connection broke off each time")
        expect(cards.nth(1)).to_have_attribute("data-state", "answer")
        expect(visit.page.locator("#banner")).to_be_empty()


def test_a_token_is_asked_for_and_kept_in_the_tab(browser: Browser, guarded: str) -> None:
    with visiting(browser, guarded) as visit:
        page = visit.page
        page.goto(guarded)
        page.fill("#token-value", "not-the-token")
        page.keyboard.press("Enter")
        expect(page.locator("#token-problem")).to_have_text("The server does not accept this token.")
        page.fill("#token-value", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("body.ready", state="attached")
        visit.add(file(some("answer")))
        page.reload()
        page.wait_for_selector("body.ready", state="attached")
        expect(page.locator("#token")).to_be_hidden()
    with visiting(browser, guarded) as visit:
        visit.open(f"#token={TOKEN}")
        assert visit.page.url == guarded, "the token is not left in the address"
    with visiting(browser, guarded) as visit:
        visit.page.goto(guarded)
        visit.page.click("#token [data-close]")
        expect(visit.page.locator("#notice")).to_contain_text("This page needs a token")


def test_names_are_text_and_never_markup(visit: Visit) -> None:
    name = "<img src=x onerror=alert(1)>.png"
    card = visit.add(file(some("answer"), name))
    expect(card.locator(".name")).to_have_text(name)
    script = "<script>alert(1)</script>"
    visit.page.fill("#new-class", script)
    visit.page.press("#new-class", "Enter")
    expect(visit.page.locator("#classes .chip.added span").first).to_have_text(script)
    visit.settle()
    expect(card.locator("th", has_text=script)).to_have_count(1)
    assert visit.page.locator("main script, main img[src=x]").count() == 0


def test_answers_are_downloaded_as_a_table_that_spreadsheets_take_for_text(visit: Visit, tmp_path: Path) -> None:
    names = ["=HYPERLINK(evil).png", "+1,5 kg.png", 'quoted "name".png', "plain.png"]
    kinds = ("answer", "unsure", "none of these", "answer")
    visit.add(*(file(some(kind, 7), name) for kind, name in zip(kinds, names, strict=True)), file(b"", "empty.png"))
    with visit.page.expect_download() as download:
        visit.page.click("#download")
    download.value.save_as(tmp_path / "answers.csv")
    data = (tmp_path / "answers.csv").read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n") == 6
    rows = list(csv.DictReader(data.decode("utf-8-sig").splitlines()))
    assert [row["name"] for row in rows] == [f"'{names[0]}", f"'{names[1]}", names[2], "plain.png", "empty.png"]
    assert [row["decision"] for row in rows] == [*kinds, "problem"]
    assert [bool(row["answer"]) for row in rows] == [True, False, False, True, False], "only answers are answers"
    assert rows[0]["class_name"] == rows[0]["answer"]
    assert 0 < float(rows[1]["probability"]) < 1
    assert rows[0]["promised"] == "true"
    assert rows[4]["problem"] == "The file is empty"


def test_the_theme_follows_the_system_until_it_is_switched(browser: Browser, address: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, address, color_scheme="dark") as visit:
        visit.open()
        dark = visit.page.evaluate(ground)
        expect(visit.page.locator("#theme")).to_have_attribute("aria-pressed", "true")
        visit.page.click("#theme")
        light = visit.page.evaluate(ground)
        assert light != dark
        visit.page.reload()
        assert visit.page.evaluate(ground) == light
        visit.page.emulate_media(color_scheme="light")
        visit.page.click("#theme")
        assert visit.page.evaluate(ground) == dark


def test_everything_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit.page
    page.on("filechooser", lambda chooser: chooser.set_files([file(some("answer", 8))]))
    focused = "document.activeElement.id || document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    visit.wait_for(focused, "Skip to the answers")
    for expected in ("about-button", "theme", "choose"):
        page.keyboard.press("Tab")
        visit.wait_for(focused, expected)
        outline = "((style) => style.outlineStyle + style.outlineWidth)(getComputedStyle(document.activeElement))"
        assert page.evaluate(outline) == "solid3px", "the focus is seen"
    page.keyboard.press("Enter")
    page.wait_for_selector(".card[data-state=answer]")
    page.locator("#threshold").focus()
    page.keyboard.press("Home")
    expect(page.locator("#threshold-value")).to_have_text("0 %")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#threshold-value")).to_have_text("0.5 %")
    expect(page.locator("#threshold")).to_have_attribute("aria-valuetext", re.compile("of them wrong"))
    page.locator(".card").get_by_role("button", name="Wrong").focus()
    page.keyboard.press("Enter")
    visit.wait_for("document.activeElement.tagName", "INPUT")
    page.locator(".card").get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    visit.wait_for("document.activeElement.textContent", "Right")


def test_nothing_jumps_while_answers_come_in(browser: Browser, address: str) -> None:
    with visiting(browser, address) as visit:
        visit.open()
        visit.page.wait_for_timeout(1000)  # shifts right after an input are not counted, these are
        assert visit.page.evaluate("seen.shift") < 0.1
        visit.add(*(file(some("answer", n), f"{n}.png") for n in range(6)))
        visit.page.wait_for_timeout(200)
        assert visit.page.evaluate("seen.shift") < 0.1


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_phone(browser: Browser, address: str, width: int) -> None:
    with visiting(browser, address, viewport={"width": width, "height": 800}) as visit:
        visit.open()
        visit.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        visit.add(file(some("answer"), f"{'a-long-name-' * 12}.png"), file(some("unsure"), "b.png"))
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def serious(page: Any) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(
    ("scheme", "screen"),
    [
        pytest.param("light", DESKTOP, id="light-desktop"),
        pytest.param("dark", PHONE, id="dark-phone"),
        pytest.param("light", PHONE, id="light-phone", marks=pytest.mark.long),
        pytest.param("dark", DESKTOP, id="dark-desktop", marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing_serious(browser: Browser, address: str, scheme: Any, screen: Any) -> None:
    with visiting(browser, address, color_scheme=scheme, viewport=screen) as visit:
        page = visit.page
        visit.open()
        assert serious(page) == [], "empty"
        files = [file(some(kind), f"{kind}.png") for kind in ("answer", "unsure", "none of these")]
        visit.add(*files, file(some("answer", 1), "b.png"), file(b"no picture", "broken.jpg", "image/jpeg"))
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.get_by_role("button", name="Wrong").first.click()
        page.get_by_role("button", name="Right").last.click()
        assert serious(page) == [], "answers, and feedback"
        visit.slide(0.4)
        page.fill("#new-class", "raincoat")
        page.press("#new-class", "Enter")
        expect(page.locator("#classes .chip.added")).to_have_count(1)
        visit.settle()
        page.get_by_role("button", name="Remove coat", exact=True).click()
        expect(page.locator("#removed-classes")).to_have_text("coat")
        visit.settle()
        assert serious(page) == [], "edited classes"
        page.click("#reset-classes")
        expect(page.locator("#standing")).to_contain_text("No promise at this threshold")
        visit.settle()
        for opener, dialog in (
            ("#show-reliability", "#reliability"),
            ("#about-button", "#about"),
            ("#take", "#camera"),
            ("#remove-all", "#confirm"),
        ):
            page.click(opener)
            expect(page.locator(dialog)).to_be_visible()
            assert serious(page) == [], dialog
            page.keyboard.press("Escape")
            expect(page.locator(dialog)).to_be_hidden()
        page.evaluate("document.getElementById('token').showModal()")
        assert serious(page) == [], "token"
        page.keyboard.press("Escape")
        expect(page.locator("#token")).to_be_hidden()
        visit.context.set_offline(True)
        page.evaluate("dispatchEvent(new Event('offline'))")
        expect(page.locator("#banner")).to_contain_text("cannot be reached")
        assert serious(page) == [], "unreachable"
        visit.context.set_offline(False)
