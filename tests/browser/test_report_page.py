"""The report page in a real browser: it sorts, filters, enlarges, prints, asks nobody, and everyone can use it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import samples
from calprompt.report.page.build import build_report
from calprompt.report.page.render import write_report
from calprompt.results.sources import read_source
from report import reports

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SORT = """(column) => {
  document.querySelectorAll("#table-results thead button")[column].click();
  document.body.offsetHeight; // wait for the layout
}"""


@cache
def large() -> Path:
    """A report of more than two thousand results."""
    return write_report(build_report(read_source(EXPERIMENTS / "paper.csv.xz")), samples.shared() / "large.html")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """The page, which must neither complain nor ask for anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(dialog.message))
    opened.on("request", lambda request: complaints.append(request.url))
    opened.goto(reports.written().as_uri())
    yield opened
    context.close()
    pages = [reports.written().as_uri(), (samples.shared() / "large.html").as_uri()]
    assert [each for each in complaints if each not in pages and not each.startswith("data:image/webp")] == []


def column(page: Page, table: str, place: int) -> list[str]:
    script = """([table, place]) => [...document.querySelectorAll(`#table-${table} tbody tr:not([hidden])`)]
      .map((row) => row.cells[place].firstChild?.textContent ?? "")"""
    return list(page.evaluate(script, [table, place]))


def test_columns_sort_by_value_and_what_is_missing_comes_last(page: Page) -> None:
    heads = page.locator("#table-datasets thead button")
    place = heads.all_inner_texts().index("accuracy")
    heads.nth(place).focus()
    page.keyboard.press("Enter")
    values = [float(text) for text in column(page, "datasets", place)]
    assert values == sorted(values)
    expect(page.locator("#table-datasets thead th").nth(place)).to_have_attribute("aria-sort", "ascending")
    heads.nth(place).click()
    expect(page.locator("#table-datasets thead th").nth(place)).to_have_attribute("aria-sort", "descending")
    assert [float(text) for text in column(page, "datasets", place)] == sorted(values, reverse=True)
    difference = heads.all_inner_texts().index("ECE difference")
    for _ in range(2):
        heads.nth(difference).click()
        texts = column(page, "datasets", difference)
        missing = [text == "–" for text in texts]
        assert missing == sorted(missing)
        assert any(missing)


def test_rows_are_chosen_by_value_and_by_words(page: Page) -> None:
    table = page.locator("#table-results")
    everything = len(column(page, "results", 0))
    table.get_by_label("classes").select_option("novel")
    expect(table.get_by_role("status")).to_contain_text(f"{everything // 2} of {everything // 2} rows that fit")
    assert len(column(page, "results", 0)) == everything // 2
    table.get_by_label("find").fill("tcpt")
    expect(table.locator("tbody tr:not([hidden])", has_not_text="TCPT")).to_have_count(0)
    found = column(page, "results", 1)
    assert found
    assert all("TCPT" in text for text in found)
    table.get_by_label("find").fill("no such thing")
    expect(table.locator("tbody tr:not([hidden])")).to_have_count(0)


def test_figures_enlarge_and_go_back(page: Page) -> None:
    figure = page.locator("figure").first
    before = figure.locator("svg").bounding_box()
    figure.get_by_role("button").click()
    dialog = page.locator("dialog")
    expect(dialog).to_have_attribute("open", "")
    expect(dialog.locator("svg")).to_be_visible()
    enlarged = dialog.locator("svg").bounding_box()
    assert before is not None
    assert enlarged is not None
    assert enlarged["width"] > before["width"]
    page.keyboard.press("Escape")
    expect(dialog).not_to_have_attribute("open", "")
    expect(figure.locator("svg")).to_have_count(1)  # the closing event puts it back


def test_the_theme_follows_the_system_until_it_is_chosen(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != light
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert page.evaluate(background) == light
    button.click()
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark
    page.emulate_media(media="print")
    assert page.evaluate(background) == light
    expect(page.locator("nav")).to_be_hidden()


def test_it_prints(page: Page) -> None:
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        pytest.param("light", 390, marks=pytest.mark.long),
        pytest.param("dark", 1280, marks=pytest.mark.long),
    ],
)
def test_it_is_accessible_and_fits_the_screen(page: Page, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page).response["violations"]
    serious = [
        (each["id"], each["nodes"][0]["html"][:200]) for each in found if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_hostile_names_are_shown_and_do_nothing(page: Page) -> None:
    text = page.locator("body").inner_text()
    assert all(name in text for name in reports.NAMES)
    expect(page.locator("main img:not([src^='data:image/webp'])")).to_have_count(0)


def test_sorting_two_thousand_rows_takes_below_a_tenth_of_a_second(browser: Browser, page: Page) -> None:
    page.goto(large().as_uri())
    page.wait_for_timeout(500)
    session = browser.new_browser_cdp_session()

    def busy() -> float:
        """Seconds that pages have computed, whatever else runs on this machine."""
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(float(each["cpuTime"]) for each in processes if each["type"] == "renderer")

    before = busy()
    for place in (0, 1, 6, 7, 8):
        page.evaluate(SORT, place)
        page.evaluate(SORT, place)
    assert (busy() - before) / 10 < 0.1
    page.locator("#table-results").get_by_role("button", name="Show all").click()
    assert len(column(page, "results", 0)) > 1000
    page.locator("#table-results tbody a").last.click()
    assert page.evaluate("document.querySelector(location.hash) !== null")


def test_the_columns_that_matter_are_on_a_phone(page: Page) -> None:
    """Without scrolling: a reader sees what is compared, and accuracy and ECE of it."""
    page.set_viewport_size({"width": 390, "height": 844})
    heads = page.locator("#table-datasets thead th button")
    texts = heads.all_inner_texts()
    for name in ("method", "accuracy", "ECE"):
        box = heads.nth(texts.index(name)).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
