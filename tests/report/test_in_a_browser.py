"""The page in a real browser: nothing fetched, nothing logged, everything to be seen."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fairrf_lightning.report import Facts, write_report
from fairrf_lightning.report.facts import SECTIONS
from fairrf_lightning.report.page import figures_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--disable-quic", "--disable-dev-shm-usage"]
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
SIZES = {390: 844, 1400: 900}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: .ci/run installs it")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Opened:
    """A page with what it logged and asked for."""

    def __init__(self, browser: Browser, file: Path, width: int = 1400, *, dark: bool = False) -> None:
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": SIZES[width]}, color_scheme="dark" if dark else "light"
        )
        self.logged: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        expect(self.page.locator(".plot:not(.js-plotly-plot)")).to_have_count(0)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


@pytest.fixture
def file(facts: Facts, tmp_path: Path) -> Path:
    return write_report(facts, tmp_path)[0]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", SIZES)
def test_all_is_seen_and_nothing_is_fetched(
    browser: Browser, file: Path, facts: Facts, width: int, *, dark: bool
) -> None:
    with Opened(browser, file, width, dark=dark) as opened:
        page = opened.page
        assert opened.requests == [file.as_uri()]
        assert opened.logged == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scrolling"
        for name in ("verdict", *SECTIONS, "limits"):
            box = page.locator(f"section#{name}").bounding_box()
            assert box is not None
            assert box["height"] > 50
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        figures = [figure for of in figures_of(facts).values() for figure in of]
        for figure in figures:
            plot = page.get_by_role("img", name=figure.alt, exact=True)
            assert plot.locator("svg.main-svg").first.is_visible()
        assert page.get_by_role("figure").count() == len(figures) > 10
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img").count() == 0, "names are shown, not read as markup"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 22, 28)") == dark
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        contrast = page.evaluate(CONTRAST)
        assert contrast["poor"] == []
        assert contrast["seen"] > 300


def test_plots_show_names_as_text_and_follow_the_colour_scheme(browser: Browser, file: Path) -> None:
    with Opened(browser, file) as opened:
        legend = opened.page.locator("#lambda .legendtext").all_text_contents()
        assert legend == ["age", '<img src=x onerror="win…', "%{y} & more"]
        label = opened.page.locator("#forest .annotation-text").first
        expect(label).to_have_css("fill", "rgb(27, 36, 48)")
        opened.page.emulate_media(color_scheme="dark")
        expect(label).to_have_css("fill", "rgb(232, 235, 240)")
        assert opened.logged == []


def test_the_page_prints_in_light_with_its_tables(browser: Browser, file: Path) -> None:
    with Opened(browser, file, dark=True) as opened:
        opened.page.emulate_media(media="print")
        opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        body = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert body == "rgb(255, 255, 255)"
        assert opened.page.locator("details:not([open])").count() == 0
        assert opened.page.locator("#forest .main-svg").first.get_attribute("width") == "640"
        opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert opened.page.locator("details[open]").count() == 0
        assert opened.page.pdf(format="A4").startswith(b"%PDF")
        assert opened.logged == []


def test_a_page_without_facts_says_why(browser: Browser, nothing: Facts, tmp_path: Path) -> None:
    (file, _) = write_report(nothing, tmp_path)
    with Opened(browser, file) as opened:
        for width, height in SIZES.items():
            opened.page.set_viewport_size({"width": width, "height": height})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.logged == []
        assert opened.page.locator("section#gaps").inner_text().count("No S.") == 1
        assert opened.page.locator(".absent").count() == len(SECTIONS)
