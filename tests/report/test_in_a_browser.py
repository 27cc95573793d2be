"""The page in a real browser: nothing fetched, nothing logged, everything visible and readable."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fairrf_lightning.report import Facts, write_report
from fairrf_lightning.report.sections import sections

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
    """A page with what it logged and requested."""

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

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


@pytest.fixture(scope="module")
def file(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(facts, tmp_path_factory.mktemp("report"))[0]


@pytest.fixture(scope="module")
def plots(facts: Facts) -> dict[str, str]:
    """Return the text alternative of each plot."""
    return {plot.name: plot.alt for section in sections(facts) for plot in section.plots}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", SIZES)
def test_all_is_seen_and_nothing_is_fetched(
    browser: Browser, file: Path, plots: dict[str, str], width: int, *, dark: bool
) -> None:
    with Opened(browser, file, width, dark=dark) as opened:
        page = opened.page
        assert opened.requests == [file.as_uri()]
        assert opened.logged == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scrolling"
        names = page.locator("main section").evaluate_all("parts => parts.map((part) => part.id)")
        assert len(names) == 12
        for name in names:
            box = page.locator(f"section#{name}").bounding_box()
            assert box is not None
            assert box["height"] > 50
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        for alt in plots.values():
            plot = page.get_by_role("img", name=alt, exact=True)
            assert plot.count() == 1, "one of two widths is shown"
            box = plot.bounding_box()
            assert box is not None
            assert box["height"] > 50
            assert box["x"] + box["width"] <= width
        assert page.get_by_role("figure").count() == len(plots) > 10
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
        legend = opened.page.locator("#lambda text").all_text_contents()
        assert {"age", "<img src=x onerror=…", "%{y} & more"} <= set(legend)
        tips = opened.page.locator("#lambda title").all_text_contents()
        assert '<img src=x onerror="window.hacked=1">, epoch 1: 0.400' in tips
        value = opened.page.locator("#forest + .wide text", has_text="2.0 points").first
        expect(value).to_have_css("fill", "rgb(27, 36, 48)")
        opened.page.emulate_media(color_scheme="dark")
        expect(value).to_have_css("fill", "rgb(232, 235, 240)")
        assert opened.logged == []


def test_the_text_of_plots_is_readable_on_a_phone(browser: Browser, file: Path) -> None:
    with Opened(browser, file, 390) as opened:
        boxes = opened.page.locator(".plot text").evaluate_all(
            "all => all.filter((of) => of.checkVisibility()).map((of) => of.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) > 100
        # The smaller side is the height of a line; the label of a vertical axis stands on end.
        assert min(min(box["width"], box["height"]) for box in boxes if box["width"] > 12) > 10
        assert all(box["left"] >= 0 and box["right"] <= 390 for box in boxes)


def test_the_page_prints_in_light_with_its_tables(browser: Browser, file: Path) -> None:
    with Opened(browser, file, dark=True) as opened:
        folded = opened.page.locator("details table")
        assert folded.count() > 5
        assert not any(table.is_visible() for table in folded.all())
        opened.page.emulate_media(media="print")
        body = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert body == "rgb(255, 255, 255)"
        value = opened.page.locator("#forest + .wide text", has_text="2.0 points").first
        expect(value).to_have_css("fill", "rgb(27, 36, 48)")
        assert all(table.is_visible() for table in folded.all()), "folded tables are printed open"
        assert not opened.page.locator("nav").is_visible(), "links are no use on paper, however wide"
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
        assert opened.page.locator("section.empty").count() == 1, "no empty section without a reason"
