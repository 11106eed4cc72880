"""`medddpm window`: what it prints, its table and picture, and what it refuses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers.pages import page_blocks
from helpers.profiles import ADD, Launch, write_profile
from helpers.repository import ROOT
from matplotlib import image

from medddpm.cli.main import main
from medddpm.measure.report import starts
from medddpm.measure.tables import read_meta, read_table

RECORDS = ROOT / "figures" / "records" / "H100"
STEP = [*[Launch(us=100.0)] * 8, *[Launch(ADD, 20.0, "backward")] * 8]


def cells(text: str, begin: str) -> list[list[str]]:
    """Returns the cells of printed lines that begin with a word."""
    return [re.split(r" {2,}", line) for line in text.splitlines() if line.startswith(begin)]


def test_the_command_on_a_card_s_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The finding of the book, with the paper's window, and the rule at the end."""
    out = tmp_path / "curve.csv"
    words = ["window", str(RECORDS), "--setting", "opt2", "--baseline-setting", "base", "--out", str(out)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "launches 10 to 109, from the program's first launch; the step has 1651 kernel launches" in text
    assert "The window has 6.06% of the launches and 3.58% of the step's time" in text
    assert cells(text, "SM cycles")[1][:2] == ["SM cycles", "3.01e-06"]
    assert cells(text, "time")[1][-1] == "1.82%", "as the page says"
    assert cells(text, "SM cycles")[2] == ["SM cycles", "1.28", "1.17"]
    assert cells(text, "SM cycles")[3] == ["SM cycles", "0.0101", "349", "1.71", "126", "689", "2.57%"]
    assert text.splitlines()[-1] == starts.RULE
    table = read_table(out, starts.CURVE)
    assert len(table) == 2088
    assert read_meta(out)["gpu"] == "NVIDIA H100 80GB HBM3"
    assert main(words) == 0, "its own table is replaced"


def test_a_window_of_a_small_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_profile(tmp_path / "p", STEP, counted=False)
    words = ["window", str(folder), "--start", "8", "--count", "8"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "There are no counters, only times" in text
    assert cells(text, "backward") == [["backward", "8", "8", "100%", "16.7%", "100%"]]
    assert "not in the window: 83.3% of the step's time (forward)" in text
    assert cells(text, "time") == [
        ["time", "16.7%", "2e+04", "6e+04", "0.333"],
        ["time", "0.333", "8", "1", "1.67", "0", "11.1%"],
    ]
    assert text.splitlines()[-1] == starts.RULE


def test_a_terminal_gets_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launches = [Launch(us=9.0, phase=f"\x1b[31m\u202e{place}" + "x" * 99) for place in range(20)]
    folder = write_profile(tmp_path / "p", launches, program={"name": "\x1b[2J"})
    assert main(["window", str(folder), "--start", "0", "--count", "2", "--baseline", str(folder)]) == 0
    assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 0
    text = capsys.readouterr().out
    assert "".join(text.split("\n")).isprintable()
    assert "x" * 40 not in text
    assert "… and 12 more" in text


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture(suffix: str, counted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_profile(tmp_path / "p", STEP, counted=counted)
    out = tmp_path / f"curve.{suffix}"
    words = ["window", str(folder), "--count", "4", "--start", "2", "--out", str(out)]
    assert main(words) == 0
    assert f"{out}: windows of 4 launches from 13 starts" in capsys.readouterr().out
    if suffix == "png":
        assert image.imread(out).shape[1] == 1200
    else:
        first = out.read_bytes()
        assert main(words) == 0
        assert out.read_bytes() == first


def test_a_long_run_is_thinned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The least and the most of each stretch stay."""
    folder = write_profile(tmp_path / "p", [*STEP * 200, Launch(us=5000.0)], counted=False)
    assert main(["window", str(folder), "--count", "1", "--out", str(tmp_path / "c.svg")]) == 0
    assert (tmp_path / "c.svg").stat().st_size < 100_000
    assert cells(capsys.readouterr().out, "time")[1][4:6] == [f"{5000 * 3201 / (200 * 960 + 5000):.3g}", "3200"]


def test_the_pages_commands_run_on_the_records(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "figures").symlink_to(ROOT / "figures")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(page_blocks("site/profile_yours.md", "")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith(("medddpm window ", "medddpm report "))]
    assert len(lines) == 5
    assert [main(shlex.split(line)[1:]) for line in lines] == [0] * 5
    assert {path.name for path in tmp_path.iterdir()} == {"figures", "starts.png", "fast.html", "settings.html"}


BAD = {
    "count": (["--count", "17"], "--count: a window of 17 launches from 10 on ends after the last of 16"),
    "out": (["--count", "2", "--out", "curve.txt"], "curve.txt: its name tells no kind of file"),
    "setting": (["--setting", "x"], "holds no profile x; choose one by --setting: own"),
    "baseline": (["--count", "2", "--baseline", "none"], "none: there is no such folder"),
}


@pytest.mark.parametrize(("more", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(more: list[str], said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_profile(tmp_path / "p", STEP)
    assert main(["window", str(folder), *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
