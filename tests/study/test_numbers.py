"""The numbers on the pages are those that the records give, and the markers around them show nowhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.repository import ROOT
from markdown_it import MarkdownIt

from medddpm.errors import BadInput
from study.cli.main import main
from study.numbers import markers, starts

COMMENT = re.compile(r"<!--.*?-->")
PAGES = [path for path in markers.pages(ROOT) if "<!--=" in path.read_text(encoding="utf-8")]
RULES = MarkdownIt("commonmark").enable("table")  # those of MyST and of GitHub
STEP = "<!--=bench.step_ms(H100, FAST)-->{}<!--=-->"
TABLE = "<!--=smallest_step.rows()-->\n|card|{}|||||\n|---|---|---|---|---|---|\n{}<!--=-->\n"


def generated(text: str) -> str:
    return markers.generated(ROOT, text, Path("page.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_generating_the_numbers_changes_nothing(path: Path) -> None:
    """If this fails after a record or a page was changed, `python -m study numbers` writes the numbers anew."""
    text = path.read_text(encoding="utf-8")
    written = markers.generated(ROOT, text, path.relative_to(ROOT))
    assert written.splitlines() == text.splitlines()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_nothing_of_its_markers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    with_markers, without = (RULES.render(source) for source in (text, COMMENT.sub("", text)))
    assert "<!--=" in with_markers
    assert COMMENT.sub("", with_markers).split() == without.split()


def test_windows_that_begin_elsewhere_reproduce_what_the_policy_says() -> None:
    """The paper's start gains and loses nothing beside itself; launch 300 shows the hundredfold, and loses three."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in starts.rows(ROOT)]
    by_start = {int(start): (int(count), gained, lost) for start, count, gained, lost in cells}
    assert list(by_start) == [0, 10, 160, 300, 640]
    assert by_start[10][1:] == ("–", "–")
    assert by_start[300][1:] == ("P104 and P126", "P128, P162 and P182")
    assert all(count < int(starts.numbers(ROOT)) for count, _, _ in by_start.values()), "no start reproduces all"


def test_a_number_stands_in_a_sentence_in_bold_and_in_a_cell() -> None:
    page = f"A step takes **{STEP}** ms.\n\n|FAST|\n|---|\n|{STEP} ms|\n\n- FAST ({STEP}\n  ms)\n"
    wrong, right = page.format(*["7"] * 3), page.format(*["41.4"] * 3)
    assert generated(wrong) == generated(right) == right
    html = COMMENT.sub("", RULES.render(right))
    assert "<p>A step takes <strong>41.4</strong> ms.</p>" in html
    assert "<td>41.4 ms</td>" in html
    assert "<li>FAST (41.4\nms)</li>" in html


def test_a_tables_header_stays_and_its_rows_are_written() -> None:
    page = TABLE.format("as the writer calls it", "|H100|wrong|\n|a row too many|\n")
    written = generated(page)
    assert written.startswith("<!--=smallest_step.rows()-->\n|card|as the writer calls it|||||\n")
    assert written.splitlines()[3].startswith("|H100, all|11|")
    assert [line[:6] for line in written.splitlines()[3:]] == ["|H100,"] * 2 + ["|H200,"] * 2 + ["<!--=-"]
    assert generated(written) == written
    html = RULES.render(written)
    assert html.count("<tr>") == 5
    assert "|" not in COMMENT.sub("", html)


def test_a_text_stays_as_it_is_wrapped() -> None:
    page = "The best tool (<!--=bench.best_tool(H100)-->BF16 autocast with\n`torch.compile` in its mode{}<!--=-->)."
    assert generated(page.format(" `max-autotune`")) == page.format(" `max-autotune`")
    assert "in its mode `max-autotune`<!--=-->" in generated(page.format(""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("takes <!--=bench.step(H100, FAST)-->4<!--=--> ms", "no function of study/numbers: bench.step(H100, FAST)"),
        ("takes <!--=nothing.step_ms(H100)-->4<!--=--> ms", "no function of study/numbers: nothing.step_ms(H100)"),
        ("takes <!--=bench.read_table(H100)-->4<!--=--> ms", "no function of study/numbers: bench.read_table(H100)"),
        ("takes <!--=bench.step_ms-->4<!--=--> ms", "no function of study/numbers: bench.step_ms;"),
        ("takes <!--=bench.step_ms(H100)-->4<!--=--> ms", "bench.step_ms(H100): missing a required argument"),
        ("takes <!--=bench.step_ms(H100, fast)-->4<!--=--> ms", "bench.step_ms(H100, fast): not in the records"),
        ("takes <!--=bench.step_ms(V100, FAST)-->4<!--=--> ms", "bench.step_ms(V100, FAST): not in the records"),
        (f"takes {STEP.replace('<!--=-->', '')} ms", "the marker bench.step_ms(H100, FAST) has no end"),
        ("takes <!--=bench.step_ms(H100", "the marker bench.step_ms(H100 has no end"),
        (f"takes {STEP.replace('<!--=-->', '')} ms, or {STEP}", "the marker bench.step_ms(H100, FAST) has no end"),
        ("takes 4<!--=--> ms", "a marker's end without its beginning"),
        (STEP + " ms", "a marker begins a line"),
        (f"- {STEP} ms", "a marker begins a line"),
        ("- it takes\n  " + STEP, "a marker begins a line"),
        ("rows: <!--=smallest_step.rows()--> none <!--=-->", "no table between the markers"),
        ("<!--=smallest_step.rows()-->\n|a|\n|-|\n<!--=-->", "rows of 6 cells under another header"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_that_names_file_and_line(text: str, said: str) -> None:
    page = f"# Title\n\nA sentence.\n{text}\n"
    with pytest.raises(BadInput) as raised:
        generated(page)
    line = 5 if "it takes\n" in text else 4
    assert str(raised.value).startswith(f"page.md:{line}: {said}")
    assert "\n" not in str(raised.value)


def test_the_command_writes_the_numbers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "records").symlink_to(ROOT / "figures" / "records")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "README.md").write_text(f"FAST takes {STEP.format('7')} ms.\n")
    (tmp_path / "site" / "page.md").write_text(f"FAST takes {STEP.format('41.4')} ms.\n")
    monkeypatch.chdir(tmp_path)
    assert main(["numbers"]) == 0
    assert capsys.readouterr().out == "README.md: numbers changed\n"
    assert (tmp_path / "README.md").read_text() == f"FAST takes {STEP.format('41.4')} ms.\n"
    assert main(["numbers"]) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "site" / "page.md").write_text("FAST takes <!--=bench.nothing()-->7<!--=--> ms.\n")
    (tmp_path / "README.md").write_text(f"FAST takes {STEP.format('7')} ms.\n")
    assert main(["numbers"]) == 1
    assert "site/page.md:1: no function of study/numbers: bench.nothing()" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == f"FAST takes {STEP.format('7')} ms.\n", "nothing is written then"
