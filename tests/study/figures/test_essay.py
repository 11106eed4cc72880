"""The window that a reader drags: what its page has in it, in Python and as its script shows it in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.browser import browser, needs_browser
from helpers.repository import ROOT

from study.figures import essay

START = "<!doctype html><meta charset='utf-8'><meta name='viewport' content='width=device-width'><body>"
SHOWN = "document.querySelector('.launch-window').shadowRoot"


@pytest.fixture(scope="module")
def page() -> str:
    """The page of the committed notebook, which nbval compares with the function's."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_summary.ipynb", as_version=4)
    (html,) = [
        output.data["text/html"]
        for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if "launch-window" in output.get("data", {}).get("text/html", "")
    ]  # fmt: skip
    return str(html)


def embedded(page: str) -> dict[str, Any]:
    (text,) = re.findall(r"const data = (\{.*\});", page)
    return dict(json.loads(text))


def ratios(data: dict[str, Any]) -> list[float]:
    """The cycles of each window of the second run, divided by those of the first run's."""
    base, other = (run["cycles"] for run in data["runs"])
    width = data["window"]
    return [sum(other[at : at + width]) / sum(base[at : at + width]) for at in range(len(base) - width + 1)]


def test_the_embedded_timelines_give_the_ratios_of_the_text(page: str) -> None:
    data = embedded(page)
    found = ratios(data)
    assert (data["window"], len(found)) == (100, 1130)
    assert (round(1 / min(found)), found.index(min(found))) == (99, 349)
    assert (round(max(found)), found.index(max(found))) == (126, 689)
    assert round(found[data["start"]], 2) == 1.28
    for run in data["runs"]:
        assert len(run["cycles"]) == len(run["kinds"]) == 1229
        assert set(run["kinds"]) == set(essay.KINDS)


def test_the_page_is_whole_and_small_and_the_same_each_time(page: str) -> None:
    assert len(page) < 40_000
    assert not re.search(r"https?:|//cdn|import\(|fetch\(|\bsrc=|url\(", page), "nothing is loaded"
    runs = essay.timelines(ROOT, "H100")
    assert [len(run) for run in runs.values()] == [1229, 1229]
    pages = [essay.window(runs, (0.01, 0.02), 1.17)._repr_html_() for _ in range(2)]
    assert pages[0] == pages[1] == page


def test_the_template_is_short() -> None:
    """A reader can take it in."""
    template = Path(essay.__file__).with_name("window.html").read_text()
    assert len(template[template.index("<script>") :].splitlines()) < 150


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium: Any, page: str, tmp_path: Path) -> Iterator[Any]:
    """The page at the width of a phone, opened from a file."""
    (tmp_path / "window.html").write_text(START + page)
    tab = chromium.new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((tmp_path / "window.html").as_uri())
    yield tab
    tab.close()
    assert errors == []


def shown(tab: Any) -> str:
    return str(tab.evaluate(f"{SHOWN}.querySelector('.ratio').textContent"))


def frames(tab: Any) -> set[str]:
    return set(tab.evaluate(f"[...{SHOWN}.querySelectorAll('.frame')].map(frame => frame.getAttribute('x'))"))


@needs_browser
def test_the_slider_runs_from_a_ninety_ninth_to_126(opened: Any, page: str) -> None:
    assert shown(opened) == "1.28×"
    every = opened.evaluate(
        f"""() => {{
            const [slider, ratio] = ['input', '.ratio'].map(name => {SHOWN}.querySelector(name));
            return Array.from({{length: Number(slider.max) + 1}}, (_, start) => {{
                slider.value = start;
                slider.dispatchEvent(new Event('input'));
                return ratio.textContent;
            }});
        }}"""
    )
    assert (every[349], every[689], len(every)) == ("1/99", "126×", 1130)
    values = [1 / float(text[2:]) if text.startswith("1/") else float(text[:-1]) for text in every]
    assert (min(values), max(values)) == (1 / 99, 126)
    assert values == pytest.approx(ratios(embedded(page)), rel=0.06), "the number that is told is rounded"


@needs_browser
def test_the_keyboard_a_drag_a_touch_and_the_buttons_move_the_window(opened: Any) -> None:
    slider = opened.get_by_role("slider", name="first launch of the window")
    slider.focus()
    opened.keyboard.press("ArrowRight")
    assert frames(opened) == {"11"}
    assert slider.get_attribute("aria-valuetext") == f"launches 11 to 110: {shown(opened)}"
    for name, said in (("the least: 1/99", "1/99"), ("the most: 126×", "126×"), ("the paper's start", "1.28×")):
        opened.get_by_role("button", name=name).click()
        assert shown(opened) == said
    lane = opened.locator(".lane").first.bounding_box()
    x = [lane["x"] + lane["width"] * (launch + 50) / 1229 for launch in (10, 349)]
    opened.mouse.move(x[0], lane["y"] + 20)
    opened.mouse.down()
    opened.mouse.move(x[1], lane["y"] + 20, steps=4)
    opened.mouse.up()
    (start,) = frames(opened)
    assert abs(int(start) - 349) <= 4, "a pixel is almost four launches"
    assert shown(opened).startswith("1/")
    opened.keyboard.press("ArrowLeft")
    assert frames(opened) == {str(int(start) - 1)}, "after a drag the arrow keys go on"
    opened.touchscreen.tap(lane["x"] + lane["width"] * 739 / 1229, lane["y"] + 20)
    assert shown(opened).endswith("×")
    assert float(shown(opened)[:-1]) > 80


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_accessible(chromium: Any, page: str, tmp_path: Path, scheme: str) -> None:
    import axe_playwright_python

    title = "<html lang='en'><title>a window</title><style>:root { color-scheme: light dark }</style><main>"
    (tmp_path / "window.html").write_text(START.replace("<body>", title) + page)
    tab = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    tab.goto((tmp_path / "window.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    assert [violation["id"] for violation in found if violation["impact"] in ("serious", "critical")] == []
    tab.close()


@needs_browser
def test_where_scripts_do_not_run_the_still_picture_stays(chromium: Any, page: str, tmp_path: Path) -> None:
    picture = '<p><img alt="Still picture: two strips"></p>'
    (tmp_path / "window.html").write_text(START + picture + page)
    for scripts in (True, False):
        tab = chromium.new_page(java_script_enabled=scripts)
        tab.goto((tmp_path / "window.html").as_uri())
        assert tab.locator("p:has(> img)").is_hidden() is scripts
        assert tab.locator(".untrusted").is_hidden() is scripts
        tab.close()
