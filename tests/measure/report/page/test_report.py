"""`medddpm report`: a page that needs nothing else, whatever a profile's names hold and however large it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from helpers.browser import browser, needs_browser
from helpers.profiles import ADD, CONV, SUM, Launch, kernels_of, write_profile
from helpers.repository import ROOT

from medddpm.cli.main import main
from medddpm.measure.report.folder import read_profile
from medddpm.measure.report.page.report import write_report
from medddpm.measure.schemas import KERNELS
from medddpm.measure.tables import write_table

RECORDS = ROOT / "figures" / "records" / "H100"
STEP = [Launch(us=100.0, tensor=70.0), Launch(ADD, 30.0, dram=80.0), Launch("unheard_of", 20.0, "backward")] * 4
FIGURES = {
    "Kernel families by time", "Instructions a cycle", "Instruction mix", "Utilization", "Memory", "Active warps",
    "Stalls",
}  # fmt: skip
TAGS = (
    "html head meta title style body header main section figure figcaption h1 h2 h3 h4 p ul li span div table thead "
    "tbody tr th td code br a svg rect line polyline"
)
ATTRIBUTES = (
    "lang charset name content http-equiv class style title href id tabindex role aria-label viewbox "
    "preserveaspectratio x y width height x1 x2 y1 y2 points"
)
"""All that a page has: nothing of it runs or loads, except for a link's address and a style's."""


def page(folder: Path, *profiles: Path) -> tuple[str, BeautifulSoup]:
    path = write_report([read_profile(profile) for profile in profiles], folder / "report.html")
    text = path.read_text(encoding="utf-8")
    soup = BeautifulSoup(text, "html.parser")
    assert {tag.name for tag in soup.find_all(True)} <= set(TAGS.split())
    assert {name for tag in soup.find_all(True) for name in tag.attrs} <= set(ATTRIBUTES.split())
    assert {link["href"] for link in soup.select("[href]")} == {"#rules"}
    styles = [tag["style"] for tag in soup.select("[style]")] + [style.get_text() for style in soup.select("style")]
    assert not re.search(r"url\(|@import|expression", " ".join(styles))
    return text, soup


def words(soup: Any) -> str:
    return " ".join(soup.get_text(" ").split())


def test_a_page_says_what_bounds_the_step_and_for_which_share_it_knows(tmp_path: Path) -> None:
    _, soup = page(tmp_path, write_profile(tmp_path, STEP, program={"name": "train.py", "step_ms": [0.6]}))
    said = words(soup)
    assert "Tensor Cores bound this step: 67% of the step's time." in said
    assert "100.0% of the step's time on the GPU is in launches that have counters." in said
    assert "train.py on NVIDIA Toy" in said
    assert {h4.get_text() for h4 in soup.select("h4")} == FIGURES
    assert "In no family, by time: 13.3% unheard_of" in said
    assert "Never compare two programs by the same number of launches" in said
    shares = [row.select("td")[0].get_text() for row in soup.select("table")[0].select("tbody tr")]
    assert shares == ["66.7%", "20.0%", "13.3%"]


def test_priorities_are_shown_where_they_were_estimated(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, STEP)
    table = kernels_of(STEP).assign(est_speedup_pct=[30.0, 20.0, 0.0], priority=[120_000.0, 24_000.0, 0.0])
    write_table(table, folder / "kernels_own_step_run1.csv", KERNELS, {})
    _, soup = page(tmp_path, folder)
    (figure,) = [figure for figure in soup.select("figure") if figure.h4 and figure.h4.get_text() == "Priorities"]
    assert "sm80_xmma_fprop_implicit 83.3%" in words(figure)


def test_without_counters_a_page_says_what_is_missing(tmp_path: Path) -> None:
    _, soup = page(tmp_path, write_profile(tmp_path, STEP, counted=False))
    said = words(soup)
    assert "What bounds this step cannot be told" in said
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said
    assert "0.0% of the step's time on the GPU is in launches that have counters." in said
    assert {h4.get_text() for h4 in soup.select("h4")} == {"Kernel families by time"}


@pytest.mark.parametrize(
    "launches",
    [[Launch()], [Launch(tensor=0.0)] * 300, [Launch("Memset (Device)", 5.0, None, None, counted=False)],
     [Launch(us=0.0), Launch(ADD, 1.0, None)],
     [Launch(us=1e-300, cycles=1e-300, instructions=0.0), Launch(ADD, 1e12, cycles=1e18, warps=1000.0)],
     [Launch(instructions=0.0, tensor=0.0, dram=0.0, sm=0.0, warps=0.0)] * 3],
    ids=["one launch", "no tensor work", "no kernel", "no time", "extremes", "zeros"],
)  # fmt: skip
def test_small_and_odd_profiles_have_a_page(launches: list[Launch], tmp_path: Path) -> None:
    _, soup = page(tmp_path, write_profile(tmp_path, launches))
    assert len(soup.select("section")) == 2


def test_what_is_not_straightforward_is_said(tmp_path: Path) -> None:
    program = {"processes": 4, "gpus": 2, "graphs": True, "varies": True}
    _, soup = page(tmp_path, write_profile(tmp_path, STEP, program=program))
    said = words(soup)
    for part in ("launches CUDA graphs", "has 4 processes on 2 GPUs", "steps differ in their launches"):
        assert part in said
    _, plain = page(tmp_path, write_profile(tmp_path / "plain", STEP))
    assert "Not straightforward" not in words(plain)


def test_two_profiles_stand_side_by_side(tmp_path: Path) -> None:
    before = write_profile(tmp_path / "a", STEP, program={"step_ms": [2.0]})
    after = write_profile(tmp_path / "b", STEP[:6], program={"step_ms": [1.0]})
    _, soup = page(tmp_path, before, after)
    table = soup.select("table")[0]
    assert [th.get_text() for th in table.select("th")] == ["of a step", "OWN (1)", "OWN (2)", "OWN (2) ÷ OWN (1)"]
    rows = {row.td.get_text(): [td.get_text() for td in row.select("td")[1:]] for row in table.select("tbody tr")}
    assert rows["a step, ms"] == ["2", "1", "0.5"]
    assert rows["launches"] == ["12", "6", "0.5"]
    assert rows["Tensor Core pipe, %"][2] == "1"
    assert rows["time with counters"] == ["100.0%", "100.0%", ""]


HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "' onmouseover='alert(1)", "</code></table></body>",
    "{{ 7 * 7 }}{% raw %}", "$\\frac{1}$ &lt;b&gt; &amp;", "\u202egnp.exe", "שלום עולם", "k" * 10_000,
    "javascript:alert(1)", "]]><!--", "\u0000\u001b[31m",
]  # fmt: skip


def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Of kernels, grids, phases, the program and the card."""
    launches = [Launch(name, 10.0 + place, phase=name, grid=name) for place, name in enumerate(HOSTILE[:-1])]
    folder = write_profile(tmp_path, launches, counted=False, program={"name": HOSTILE[0] + HOSTILE[6]})
    meta = folder / "launches_own_step_run1.meta.json"
    meta.write_text(meta.read_text().replace('"NVIDIA Toy"', '"<b onclick=x>card"').replace("2.11.0", "<i>"))
    text, soup = page(tmp_path, folder)
    assert "\u202e" not in text
    assert "k" * 201 not in text
    shown = [code.get_text() for code in soup.select("td.name > code:first-child")]
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[4], HOSTILE[5], HOSTILE[7], "\\u202egnp.exe"} <= set(shown)
    assert "49" not in shown
    assert len(soup.select("section")) == 2, "no name ended the page"


def test_a_profile_of_a_hundred_thousand_launches_is_a_small_page(tmp_path: Path) -> None:
    kinds = [
        Launch(f"{(CONV, ADD, SUM)[n % 3]}_{n}{'<x>' * 60}", 1.0 + n % 7, ("forward", "backward")[n % 2])
        for n in range(500)
    ]
    folder = write_profile(tmp_path, kinds * 200, counted=False)
    text, soup = page(tmp_path, folder)
    assert len(text.encode()) < 1_000_000
    assert "cannot be told" in words(soup)
    assert len(soup.select("table")[0].select("tbody tr")) == 20


def test_the_same_profile_gives_the_same_page(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, STEP)
    assert page(tmp_path, folder)[0] == page(tmp_path, folder)[0]


# the command


def test_the_command_makes_a_page_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    words_ = ["report", str(RECORDS), "--setting", "fast", "--baseline-setting", "base", "--out", str(out)]
    assert main(words_) == 0
    assert capsys.readouterr().out == f"{out}: BASE, 100% with counters, FAST, 99% with counters\n"
    assert main(words_) == 0, "its own page is replaced"
    capsys.readouterr()
    out.write_text("<html>mine</html>")
    assert main(words_) == 1
    assert "a file stands there that this command did not write" in capsys.readouterr().err


BAD = {
    "no folder": (["report", "none"], "none: there is no such folder"),
    "no setting": (["report", str(RECORDS)], "holds several profiles: base, fast, opt1, opt12, opt2; choose one by"),
    "no such setting": (["report", str(RECORDS), "--setting", "fast,x"], "holds no profile x"),
    "too many": (["report", *[str(RECORDS)] * 9, "--setting", "fast"], "a page of 9 profiles; give at most 8"),
    "out": (["report", str(RECORDS), "--setting", "fast", "--out", "."], "a folder stands there"),
}


@pytest.mark.parametrize(("command", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(command: list[str], said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in command else ["--out", "report.html"]
    assert main([*command, *out]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.iterdir())


@needs_browser
def test_a_page_fits_a_phone_and_asks_for_nothing(tmp_path: Path) -> None:
    launches = [*STEP, *(Launch(name, 15.0, grid=name) for name in HOSTILE[:-1])]
    path = write_report(
        [read_profile(write_profile(tmp_path / "a", launches, program={"name": "n" * 300})),
         read_profile(RECORDS, "opt1")],
        tmp_path / "report.html",
    )  # fmt: skip
    said: list[str] = []
    with browser() as chromium:
        for scheme in ("light", "dark"):
            opened = chromium.new_page(color_scheme=scheme)
            opened.on("console", lambda message: said.append(message.text))
            opened.on("dialog", lambda dialog: said.append(dialog.message))
            opened.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith("file:") else None)
            for width in (390, 1280):
                opened.set_viewport_size({"width": width, "height": 900})
                opened.goto(path.as_uri())
                assert not opened.evaluate("document.documentElement.scrollWidth > innerWidth"), (scheme, width)
            back = opened.evaluate("getComputedStyle(document.body).backgroundColor")
            assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 22)"}[scheme]
            opened.close()
    assert said == []
