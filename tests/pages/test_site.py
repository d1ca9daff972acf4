"""The course site: `make site` builds it without a warning, and every page works in a browser, without a network."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import test_lab
from course_copy import copied_course, run_in
from playwright.sync_api import Browser, Page, expect

chromium = test_lab.chromium  # the browser

PHONE = {"width": 360, "height": 740}
READ_CLOSELY = (
    "index",
    "notebooks/05_attention_heatmaps",
    "docs/guides/teach",
    "docs/reference/transformer_lm.attention",
)

IMAGES_THAT_FAIL = """() => [...document.images].filter(image => !image.naturalWidth || !image.alt.trim())
    .map(image => image.outerHTML.slice(0, 200))"""
# The page, and elements that extend beyond its edge, unless they can be scrolled: the theme would cut them off.
TOO_WIDE = """() => {
    const scrolls = element => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
    const outside = element => {
        const [{ left, right }, visible] = [element.getBoundingClientRect(), !scrolls(element)];
        return Math.max(right, visible && element.clientWidth ? left + element.scrollWidth : 0) > innerWidth + 1;
    };
    const found = [...document.querySelectorAll('article *')].filter(element => {
        if (!outside(element)) return false;
        for (let box = element.parentElement; box.tagName !== 'ARTICLE'; box = box.parentElement)
            if (scrolls(box)) return false;
        return true;
    }).map(element => element.outerHTML.slice(0, 100));
    return document.documentElement.scrollWidth > innerWidth ? ['the page', ...found] : found;
}"""
# A LaTeX command that the converter does not know stays in the formula with its backslash.
BAD_FORMULAS = """() => [
    ...[...document.querySelectorAll('merror')],
    ...[...document.querySelectorAll('math')].filter(formula => /[\\\\$]/.test(formula.textContent)),
    ...[...document.querySelectorAll('article :is(p, li, td, th, h1, h2, h3)')].filter(part =>
        [...part.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.includes('$'))),
].map(element => element.textContent)"""
# The visible texts with less contrast than WCAG requires for normal text (level AA).
HARD_TO_READ = """() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => {
        const [r, g, b] = colour.slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (; element; element = element.parentElement) {
            const colour = numbers(getComputedStyle(element).backgroundColor);
            if ((colour[3] ?? 1) > 0.5) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('article *')].filter(element => {
        if (element.closest('.attention-viewer, script, style, .headerlink')) return false;
        if (![...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())) return false;
        const [text, page] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
        return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05) < 4.5;
    }).map(element => [element.className, element.textContent.slice(0, 40)]);
}"""


class Links(HTMLParser):
    """Collects from a page its links, the files that it loads, and its anchors."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.leads_to: set[str] = set()
        self.loads: set[str] = set()
        self.places: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if given.get("href"):
            (self.loads if tag == "link" and given.get("rel") == "stylesheet" else self.leads_to).add(given["href"])
        if given.get("src"):
            self.loads.add(given["src"])


@dataclass
class Site:
    """The built site, and what was printed while it was built."""

    folder: Path
    printed: str
    pages: dict[Path, Links] = field(default_factory=dict)

    def address(self, page: str) -> str:
        """Return the address of a page, such as `docs/guides/teach`."""
        return (self.folder / f"{page}.html").as_uri()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    course = copied_course(tmp_path_factory.mktemp("site"))
    done = run_in(course, "make site")
    assert done.returncode == 0, done.stdout
    site = Site(course / "site", done.stdout)
    written = sorted(page for page in site.folder.rglob("*.html") if "_static" not in page.parts)  # the theme's own
    site.pages = {page: Links(page.read_text()) for page in written}
    return site


@dataclass
class Visit:
    """The result of opening a page on a phone."""

    errors: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    formulas: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def visits(site, chromium) -> dict[str, Visit]:
    """Open every page once, on a phone."""
    page, visits = chromium.new_page(viewport=PHONE), {}
    page.on("console", lambda message: visit.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("request", lambda request: visit.asked_for.append(request.url))
    for path in site.pages:
        visit = visits[str(path.relative_to(site.folder))] = Visit()
        page.goto(path.as_uri())
        visit.images = page.evaluate(IMAGES_THAT_FAIL)
        visit.formulas = page.evaluate(BAD_FORMULAS)
        visit.too_wide = page.evaluate(TOO_WIDE)
    page.close()
    return visits


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    yield page
    page.close()


def test_nothing_is_printed_but_where_to_begin(site):
    assert site.printed == "The front page: site/index.html\n"


def test_every_lesson_and_assignment_has_a_page(site):
    built = {path.relative_to(site.folder).with_suffix(".ipynb") for path in site.pages}
    course = site.folder.parent
    notebooks = [*course.glob("notebooks/*.ipynb"), *course.glob("release/*/*.ipynb")]
    assert len(notebooks) >= 12
    assert {path.relative_to(course) for path in notebooks} <= built


def test_every_module_has_a_page(site):
    package = site.folder.parent / "transformer_lm"
    paths = [path.relative_to(package).with_suffix("") for path in package.rglob("[!_]*.py")]
    modules = {".".join(path.parts) for path in paths if path.parts[0] != "checks"} | {"checks"}
    pages = {path.stem for path in site.pages if path.parent.name == "reference"}
    assert {page.removeprefix("transformer_lm.") for page in pages} == modules


def test_no_page_has_an_error(visits):
    assert {page: visit.errors for page, visit in visits.items() if visit.errors} == {}


def test_nothing_is_fetched_from_elsewhere(visits):
    elsewhere = {url for visit in visits.values() for url in visit.asked_for if not url.startswith(("file:", "data:"))}
    assert elsewhere == set()


def test_nothing_that_a_page_loads_is_elsewhere(site):
    loaded = {address for links in site.pages.values() for address in links.loads}
    assert {address for address in loaded if urlsplit(address).scheme not in ("", "data")} == set()


def test_every_picture_is_shown_and_has_alternative_text(visits):
    assert {page: visit.images for page, visit in visits.items() if visit.images} == {}


def test_no_formula_is_left_as_it_was_typed(visits):
    assert {page: visit.formulas for page, visit in visits.items() if visit.formulas} == {}


def test_no_page_is_wider_than_a_phone(visits):
    assert {page: visit.too_wide for page, visit in visits.items() if visit.too_wide} == {}


def test_every_link_within_the_site_leads_somewhere(site):
    broken = []
    for page, links in site.pages.items():
        for address in links.leads_to | links.loads:
            url = urlsplit(address)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            place = unquote(url.fragment)
            if not target.is_file() or (place and target.suffix == ".html" and place not in site.pages[target].places):
                broken.append((str(page.relative_to(site.folder)), address))
    assert broken == []


def test_links_to_elsewhere_are_web_addresses(site):
    schemes = {urlsplit(address).scheme for links in site.pages.values() for address in links.leads_to}
    assert schemes <= {"", "http", "https"}


@pytest.mark.parametrize("lesson", ["01_self_attention", "02_multi_head_attention", "06_encoder_decoder"])
def test_every_formula_of_a_lesson_is_there(site, lesson):
    notebook = nbformat.read(site.folder.parent / "notebooks" / f"{lesson}.ipynb", as_version=4)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    written = sum(len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", re.sub(r"`[^`]*`", "", text), re.DOTALL)) for text in texts)
    shown = (site.folder / "notebooks" / f"{lesson}.html").read_text().count("<math ")
    assert shown == written > 3


def test_the_front_page_is_the_readmes(site, page):
    page.goto(site.address("index"))
    expect(page.locator("article")).to_contain_text("At the end of this course you can write a transformer")
    expect(page.locator("article img")).to_have_attribute("alt", re.compile("how much four words attend to each other"))
    expect(page.locator("article table").nth(1).locator("tbody tr")).to_have_count(6)
    page.get_by_role("link", name="05 Attention heatmaps").click()
    expect(page).to_have_url(site.address("notebooks/05_attention_heatmaps"))


def test_the_menu_works_on_a_phone(site, page):
    page.set_viewport_size(PHONE)
    page.goto(site.address("docs/guides/teach"))
    page.locator(".primary-toggle").click()
    page.get_by_role("link", name="Lessons").filter(visible=True).click()
    expect(page).to_have_url(site.address("docs/lessons"))


def test_the_attention_viewer_works(site, page):
    page.goto(site.address("notebooks/05_attention_heatmaps"))
    viewer = page.locator(".attention-viewer").first
    expect(viewer.locator(".state")).to_contain_text("layer 0, head 0")
    viewer.locator(".heads canvas").last.click()
    expect(viewer.locator(".state")).to_contain_text("layer 1, head 3")
    viewer.locator(".strip.query [role=option]").nth(5).click()
    expect(viewer.locator(".state")).to_contain_text("%")


def test_search_finds_words_without_a_server(site, page):
    page.goto(f"{site.address('search')}?q=entropy")
    expect(page.locator("#search-results li a").first).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", READ_CLOSELY)
def test_text_stands_out_from_what_is_behind_it(site, chromium, name, scheme):
    page = chromium.new_page(color_scheme=scheme)
    page.goto(site.address(name))
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    assert page.evaluate(HARD_TO_READ) == []
    page.close()
