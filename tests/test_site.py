"""The built site: complete by its HTML, and right in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup
from helpers.browser import browser, needs_browser, served
from helpers.repository import ROOT

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
PAGES = [
    "README",
    "CONTRIBUTING",
    "CHANGELOG",
    "medddpm/README",
    *(f"site/{path.stem}" for path in sorted((ROOT / "site").glob("*.md"))),
]
PAGES += [f"notebooks/{name}" for name in NOTEBOOKS]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network's help; a warning of Sphinx's fails it."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "site", "-d", str(out / "doctrees")]
    published = os.environ | {"BOOK_REPOSITORY": "https://github.com/owner/book"}
    done = subprocess.run([*command, ".", str(out / "html")], cwd=ROOT, env=published, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, BeautifulSoup]:
    return {name: BeautifulSoup((site / f"{name}.html").read_text(), "html.parser") for name in PAGES}


@pytest.mark.long
def test_every_page_is_there(site: Path) -> None:
    assert [name for name in PAGES if not (site / f"{name}.html").is_file()] == []
    assert 'url=notebooks/00_summary.html"' in (site / "index.html").read_text()


@pytest.mark.long
def test_no_link_is_broken_and_no_picture_missing(site: Path, pages: dict[str, BeautifulSoup]) -> None:
    ids = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        attributes = (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src"))
        for tag, attribute in attributes:
            for found in page.find_all(tag, {attribute: True}):
                address = str(found[attribute])
                if re.match(r"[a-z]+:", address):
                    continue
                path, fragment = urldefrag(unquote(address.partition("?")[0]))
                target = ((site / name).parent / path).resolve() if path else site / f"{name}.html"
                key = target.relative_to(site).as_posix().removesuffix(".html") if target.is_relative_to(site) else ""
                if not target.exists() or (fragment and key in ids and fragment not in ids[key]):
                    broken.append(f"{name}: {address}")
    assert "\n".join(sorted(set(broken))) == ""


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, BeautifulSoup]) -> None:
    loaded = [
        str(found[attribute])
        for page in pages.values()
        for tag, attribute in (("img", "src"), ("script", "src"), ("link", "href"))
        for found in page.find_all(tag, {attribute: True})
    ]
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []


def test_every_picture_has_a_text(pages: dict[str, BeautifulSoup]) -> None:
    pictures = [(name, img.get("alt", "")) for name, page in pages.items() for img in page.select("article img")]
    assert len(pictures) > 30
    assert [name for name, alt in pictures if len(alt) < 10 or "_images" in alt] == []


def test_code_is_folded_and_what_it_printed_is_shown(pages: dict[str, BeautifulSoup]) -> None:
    page = pages["notebooks/20_scaling"]
    inputs = page.select("div.cell_input")
    assert inputs
    assert all(cell.find_parent("details") is not None for cell in inputs)
    assert all(output.find_parent("details") is None for output in page.select("div.cell_output"))
    inputs = pages["notebooks/08_fig06_kernel_mix"].select("div.cell_input")
    shown = "\n".join(cell.text for cell in inputs if cell.find_parent("details") is None)
    assert "groupby(" in shown
    assert "sns.barplot(" in shown
    assert "import pandas" not in shown
    assert not any("page.check(" in cell.text for cell in inputs), "assertions are not for readers"


def test_an_exercises_answer_is_folded_with_what_it_printed(pages: dict[str, BeautifulSoup]) -> None:
    folded = pages["notebooks/08_fig06_kernel_mix"].select("details:has(summary:-soup-contains('Show the answer'))")
    assert len(folded) == 3
    assert all(answer.select("div.cell_input") and answer.select("div.cell_output") for answer in folded)


def test_every_claim_has_an_anchor_and_is_linked(pages: dict[str, BeautifulSoup]) -> None:
    audit = pages["notebooks/24_all_verdicts"]
    anchors = {str(tag["id"]) for tag in audit.find_all(id=re.compile(r"^P\d{3}$"))}
    assert anchors == {f"P{number:03}" for number in range(1, 205)}
    link = pages["notebooks/06_fig04_ipc_stacks"].find("a", string="P070")
    assert link["href"] == "24_all_verdicts.html#P070"
    shown = {
        name: re.sub(r"\s", " ", " ".join(page.select_one("article").stripped_strings)) for name, page in pages.items()
    }
    linked = {name: {a.get_text() for a in page.select("article a")} for name, page in pages.items()}
    assert linked["notebooks/13_fig11_memory"] >= set(re.findall(r"\bP\d{3}\b", shown["notebooks/13_fig11_memory"]))


MOVED = [
    "what-the-paper-does-not-say", "what-it-is-about", "how-they-are-counted", "the-policy", "the-three-takeaways",
    "sentences-without-a-number", "what-a-whole-step-confirms", "beyond-the-paper", "all-204", "P104",
]  # fmt: skip


@needs_browser
def test_links_to_verdicts_where_they_were_once_lead_on(
    site: Path, pages: dict[str, BeautifulSoup], chromium: Any
) -> None:
    assert [name for name in MOVED if pages["notebooks/24_all_verdicts"].find(id=name) is None] == []
    page = chromium.new_page()
    with served(site) as address:
        for name, target in (("P104", "24_all_verdicts.html#P104"), ("all-204", "24_all_verdicts.html#all-204")):
            page.goto(f"{address}/notebooks/00_summary.html#{name}")
            page.wait_for_url(f"**/notebooks/{target}")
        page.goto(f"{address}/notebooks/00_summary.html?again#the-tests-that-need-a-gpu")
        page.wait_for_url("**/site/card_tests.html")
        page.goto(f"{address}/notebooks/00_summary.html#the-rule")
        page.wait_for_load_state()
        assert page.url.endswith("/00_summary.html#the-rule")
    page.close()


@needs_browser
@pytest.mark.parametrize("width", [390, 1280, 1600])
def test_the_front_page_has_the_window_and_no_still_picture(site: Path, chromium: Any, width: int) -> None:
    for scheme in ("light", "dark"):
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        with served(site) as address:
            page.goto(f"{address}/index.html")
            page.wait_for_url("**/notebooks/00_summary.html")
            window = page.locator(".launch-window")
            assert window.locator(".ratio").inner_text() == "1.28×"
            assert page.locator('img[alt^="Still picture"]').is_hidden()
            window.get_by_role("button", name="the least").click()
            assert window.locator(".ratio").inner_text() == "1/99"
            colours = window.locator(".words").evaluate(
                "e => [getComputedStyle(e).color, getComputedStyle(document.body).color]"
            )
            assert colours[0] == colours[1]
            assert page.evaluate("document.documentElement.scrollWidth") == width
        page.close()


def test_a_page_offers_its_figures_and_their_data(pages: dict[str, BeautifulSoup]) -> None:
    offered = {str(a["href"]) for a in pages["notebooks/06_fig04_ipc_stacks"].select("a[download]")}
    assert {"../figures/fig04_ipc_stacks.svg", "06_fig04_ipc_stacks.ipynb"} <= offered
    assert any(re.fullmatch(r"\.\./figures/records/H100/kernels_base_window_run1\.csv(\.gz)?", a) for a in offered)


def test_citation_is_bibtex(pages: dict[str, BeautifulSoup]) -> None:
    entries = [block.get_text() for block in pages["site/cite"].select("div.highlight-bibtex")]
    assert [entry.strip().partition("{")[0] for entry in entries] == ["@software", "@inproceedings", "@article"]
    assert "10.1145/3777884.3797012" in entries[1]


def test_order_of_pages(pages: dict[str, BeautifulSoup]) -> None:
    chain = ["README", *(f"notebooks/{name}" for name in NOTEBOOKS)]
    for before, after in pairwise(chain):
        assert pages[before].select_one("a.right-next")["href"].endswith(f"{Path(after).name}.html")
        assert pages[after].select_one("a.left-prev")["href"].endswith(f"{Path(before).name}.html")


def test_search_index_has_the_terms(site: Path) -> None:
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    assert "wgrad" in index["terms"] or "wgrad" in index["titleterms"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@needs_browser
@pytest.mark.parametrize(
    ("words", "page"), [("wgrad", "site/glossary.html"), ("how to sample", "site/commands.html#how-to-sample")]
)
def test_search_finds(site: Path, chromium: Any, words: str, page: str) -> None:
    tab = chromium.new_page()
    with served(site) as address:
        tab.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
        tab.wait_for_selector("#search-results li a")
        tab.wait_for_function("() => /finished/.test(document.querySelector('#search-results p').innerText)")
        found = tab.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    tab.close()
    assert page in found[0]


THEMES = [("light", page) for page in PAGES[::2]] + [("dark", page) for page in PAGES[1::2]]
THEMES += [(theme, f"notebooks/{name}") for theme in ("light", "dark") for name in ("00_summary", "24_all_verdicts")]
SERIOUS = ("serious", "critical")
AXE = """sidebar => {
    const alike = 'tbody tr:nth-child(n+4), details:not([open]) > :not(summary)';
    document.querySelectorAll(sidebar ? alike : alike + ', .bd-sidebar-primary').forEach(element => element.remove());
    const mild = axe._audit.rules.filter(rule => ['minor', 'moderate'].includes(rule.impact));
    const rules = Object.fromEntries(mild.map(rule => [rule.id, {enabled: false}]));
    return axe.run({resultTypes: ['violations'], rules});
}"""


# On a phone: drawings whose letters are too small, and tables whose last column can be neither seen nor scrolled to.
PHONE = """() => {
    const shown = [...document.querySelectorAll('article a.figure')].filter(link => link.offsetParent);
    const small = shown.filter(link => {
        const legible = link.dataset.narrow ? 340 : parseFloat(link.style.getPropertyValue('--legible'));
        return !(link.querySelector('img').getBoundingClientRect().width >= legible - 1);
    });
    const bars = ['auto', 'scroll'];
    const bar = e => bars.includes(getComputedStyle(e).overflowX);
    const scrolls = e => e && (bar(e) || scrolls(e.parentElement));
    const tables = [...document.querySelectorAll('article table')].filter(table => table.offsetParent);
    const beyond = table => table.getBoundingClientRect().right > innerWidth + 1;
    const cut = tables.filter(table => beyond(table) && !scrolls(table.parentElement)
        || table.scrollWidth > table.clientWidth + 1 && !bar(table));
    return [...small.map(link => 'letters of ' + link.getAttribute('href')),
            ...cut.map(table => 'last column of ' + table.innerText.slice(0, 60))];
}"""


class Faults(NamedTuple):
    """What is wrong with the pages: as they load and at several widths, and in axe's eyes."""

    shown: list[str]
    accessible: list[str]


@pytest.fixture(scope="module")
def faults(site: Path, chromium: Any) -> Faults:
    """Of every page in one theme, the essay and the audit in both, each loaded once.

    To axe a table's first rows are shown, nothing that is folded, and the list of pages beside a theme's first page:
    the others are made alike, and take most of the time. Rules whose breach is minor or moderate are not tried.
    """
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    found = Faults([], [])
    with served(site) as address:
        for scheme in ("light", "dark"):
            page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
            page.on("response", lambda r: found.shown.append(f"{r.status} {r.url}") if r.status >= 400 else None)
            page.on("pageerror", lambda error: found.shown.append(str(error)))
            for place, name in enumerate(sorted({name for chosen, name in THEMES if chosen == scheme})):
                page.goto(f"{address}/{name}.html", wait_until="load")
                assert page.evaluate("document.documentElement.dataset.theme") == scheme
                for width in (390, 1100, 1280):
                    page.set_viewport_size({"width": width, "height": 900})
                    page.evaluate("() => new Promise(requestAnimationFrame)")
                    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        found.shown.append(f"{name} scrolls sideways at {width}")
                    if width == 390:
                        found.shown.extend(f"{name} on a phone: {what}" for what in page.evaluate(PHONE))
                page.evaluate(axe)
                serious = [v for v in page.evaluate(AXE, not place)["violations"] if v["impact"] in SERIOUS]
                found.accessible.extend(f"{name} ({scheme}): {v['id']}: {v['nodes'][0]['html']}" for v in serious)
            page.close()
    return found


@needs_browser
def test_pages_fit_their_window_and_load_whole(faults: Faults) -> None:
    assert faults.shown == []


@needs_browser
def test_pages_are_accessible(faults: Faults) -> None:
    """Nothing that axe calls serious or critical."""
    assert "\n".join(faults.accessible) == ""


@needs_browser
def test_a_square_leads_to_its_claims_row(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    with served(site) as address:
        page.goto(f"{address}/notebooks/24_all_verdicts.html")
        square = page.locator('.squares a[href="#P085"]')
        title = square.get_attribute("title")
        assert re.search(r"share of kernel time: paper 78, here [\d.]+, reproduced", title), title
        square.click()
        row = page.locator("tr#P085")
        assert 0 < row.bounding_box()["y"] < 800
        assert "reproduced" in row.locator("td").first.inner_text()
        assert page.locator(".claims table").bounding_box()["width"] <= 1150
    page.close()


@needs_browser
def test_a_figure_opens_and_zooms(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    with served(site) as address:
        page.goto(f"{address}/README.html")
        page.locator("a.figure.marked").first.hover()
        page.mouse.down()
        page.wait_for_selector("a.figure.marked svg", state="attached")  # the drawing comes while the button is down
        page.mouse.up()
        drawing = page.locator("dialog.figure svg").first
        whole = drawing.get_attribute("viewBox")
        page.mouse.move(640, 450)
        page.mouse.wheel(0, -100)
        page.wait_for_function("whole => document.querySelector('dialog.figure > div').shadowRoot"
                               ".querySelector('svg').getAttribute('viewBox') !== whole", arg=whole)  # fmt: skip
        page.keyboard.press("0")
        assert drawing.get_attribute("viewBox") == whole.replace(".0 ", " ")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog.figure", state="detached")
    page.close()


@needs_browser
def test_a_figures_marks_say_what_they_are(site: Path, pages: dict[str, BeautifulSoup], chromium: Any) -> None:
    marked = [name for name, page in pages.items() if page.select("a.figure.marked")]
    assert {"README", "notebooks/08_fig06_kernel_mix", "notebooks/10_fig08_kernel_mix_optimized"} <= set(marked)
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    with served(site) as address:
        page.goto(f"{address}/{marked[-1]}.html")
        figure = page.locator("a.figure.marked").first
        figure.hover()
        page.wait_for_selector("a.figure.marked svg g > title", state="attached")
        figure.click()
        mark = page.locator("dialog.figure svg g:has(> title)").last
        mark.hover(force=True)
        assert page.locator("dialog.figure output").inner_text() in mark.locator("title").first.text_content()
    page.close()


def test_a_published_page_can_be_launched(pages: dict[str, BeautifulSoup]) -> None:
    links = {str(a["href"]) for a in pages["notebooks/06_fig04_ipc_stacks"].find_all("a", href=True)}
    path = "notebooks/06_fig04_ipc_stacks.ipynb"
    assert f"https://mybinder.org/v2/gh/owner/book/main?urlpath=lab/tree/{path}" in links
    assert f"https://colab.research.google.com/github/owner/book/blob/main/{path}" in links


SOURCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "site").glob("*.md"))]
SOURCES += [ROOT / "notebooks" / f"{name}.ipynb" for name in NOTEBOOKS]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_links_lead_from_file_to_file(path: Path) -> None:
    """As JupyterLab and a code host follow them."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if link[0] != "#" and not (path.parent / link.partition("#")[0]).exists()] == []


TERMS = [
    "ipc",
    "wgrad",
    "implicit-gemm",
    "window",
    "step",
    "parity",
    "launch",
    "setting",
    "record",
    "channels-last",
    "sm",
]


def test_the_glossarys_anchors_stay(pages: dict[str, BeautifulSoup]) -> None:
    assert [term for term in TERMS if pages["site/glossary"].find(id=term) is None] == []
