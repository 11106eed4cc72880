"""What stands among ncu's rows: the profiled program's output is passed over, a row cut short is damage."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pandas as pd
import pytest
from helpers.ncu_pages import CONV, Raw, details, duration

from medddpm.errors import BadInput
from medddpm.measure.profile import ncu_csv
from medddpm.measure.profile.counters import INSTRUCTIONS, METRICS
from medddpm.measure.profile.ncu_csv import launches_in
from medddpm.measure.profile.parse import parse

PRINTED = (
    "training finished\n", "loss: 0.1, lr: 1e-4\n", "step 2 loss 0.5\r\n", '{"epoch":"1","loss":"0.5"}\n', '"done"\n',
    "ID: 42\n", "ID,name,group,site,age,sex,scanner,date,note\n", " 10%|#  | 1/9\r 20%|## | 2/9\r\n", "a;b;c\n",
    "\x1b[32mok\x1b[0m\n", 'say "hi", twice\n', "==PROF== Profiling: 50%\n", "\n",
)  # fmt: skip
UNENDED = (
    "step 10 loss 0.12",
    "100%|####| 1/1 [00:03<00:00,  3.1s/it]",
    " 10%|#  | 1/9\r 20%|## | 2/9\r",
    "7, ",
    'a "b" ',
)


def table_of(text: str, folder: Path) -> pd.DataFrame:
    path = folder / "page.csv"
    path.write_text(text, newline="")
    return parse(path, "BASE", "window").table


@pytest.fixture
def good(tmp_path: Path) -> tuple[list[str], pd.DataFrame]:
    text = Raw(log="", cells=duration("1,234", "2,345.5", "34")).text()
    return text.splitlines(keepends=True), table_of(text, tmp_path)


@pytest.mark.parametrize("printed", PRINTED)
def test_what_the_program_printed_is_passed_over_wherever_it_stands(printed: str, good, tmp_path: Path) -> None:
    lines, expected = good
    for place in range(len(lines) + 1):
        text = "".join([*lines[:place], printed, *lines[place:]])
        pd.testing.assert_frame_equal(table_of(text, tmp_path), expected)
        assert launches_in(text) == 3
    pd.testing.assert_frame_equal(table_of("".join(lines) + printed.rstrip("\r\n"), tmp_path), expected)


@pytest.mark.parametrize("printed", UNENDED)
@pytest.mark.parametrize("place", [0, 2, 4])  # the header, the first row, the last
def test_what_stands_in_front_for_want_of_a_newline_is_passed_over(
    printed: str, place: int, good, tmp_path: Path
) -> None:
    lines, expected = good
    text = "".join([*lines[:place], printed, *lines[place:]])
    pd.testing.assert_frame_equal(table_of(text, tmp_path), expected)
    assert launches_in(text) == 3


def test_the_details_page_may_have_output_between_too(tmp_path: Path) -> None:
    raw, page = Raw().write(tmp_path), tmp_path / "d.csv"
    lines = details([(0, "global", "50")]).splitlines(keepends=True)
    page.write_text("step 1" + "step 2 loss 0.5\n".join(lines) + "bye")
    assert parse(raw, "BASE", "window", details=page).table["est_speedup_pct"].tolist() == [50, 0, 0]


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize("printed", ["", "\n", "\nstep 2 loss 0.5\n", "Killed\n"])
def test_a_row_cut_short_is_damage(place: int, printed: str, good, tmp_path: Path) -> None:
    lines, _ = good
    row = lines[place].rstrip("\n")
    last = row.rindex(',"')  # after which all that is wanting is the last field
    for cut in (*range(1, len(row) - 1, 41), last, last + 1, last + 2, len(row) - 1):
        if row[:cut].strip('"').isdigit() or cut == 1:
            continue  # too little is left to be told from what a program prints
        with pytest.raises(BadInput, match=r"page\.csv: .*cut short"):
            table_of("".join([*lines[:place], row[:cut] + printed, *lines[place + 1 :]]), tmp_path)


def test_a_row_without_its_beginning_is_damage(good, tmp_path: Path) -> None:
    lines, _ = good
    for begins in ('"x","812"', '"-1","812"', '"812"', '12"'):
        with pytest.raises(BadInput, match=r"a row does not begin with its ID|a row has"):
            table_of("".join([*lines[:3], lines[3].replace('"1","812"', begins), lines[4]]), tmp_path)


@pytest.mark.parametrize("cell", [CONV, "python3", "127.0.0.1"])
def test_a_row_of_two_lines_is_damage(cell: str, good, tmp_path: Path) -> None:
    """Else the end of another row could stand for its own."""
    lines, _ = good
    row = lines[2].replace(cell, cell[:3] + "\n" + cell[3:])
    with pytest.raises(BadInput, match="a quoted field is not closed"):
        table_of("".join([*lines[:2], row, *lines[3:]]), tmp_path)


LOGS = "==PROF== Connected to process 1\n{}==PROF== Disconnected from process 1\n"
WARNING = "==WARNING== No kernels were profiled.\n"
CHILDREN = "==WARNING== Profiling kernels launched by child processes requires the --target-processes all option.\n"


@pytest.mark.parametrize(
    "text", [LOGS.format(WARNING) + CHILDREN, "step 1\n" + WARNING, Raw(kernels=[]).text() + WARNING]
)
def test_ncu_s_own_words_are_quoted_where_it_profiled_nothing(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r'page\.csv: ncu says "No kernels were profiled"; ') as raised:
        table_of(text, tmp_path)
    assert "--target-processes all" in raised.value.remedy
    assert "--profile-from-start" in raised.value.remedy
    assert "export" not in raised.value.remedy


def test_an_error_of_ncu_s_counts_before_that_it_profiled_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ncu failed: Unknown Error on device 0"):
        table_of(WARNING + "==ERROR== Unknown Error on device 0.\n", tmp_path)


# ranges

PERCENT = METRICS["l2_hit_pct"].names[0]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({PERCENT: ["1e300", "2", "3"]}, f"{PERCENT} is 1e\\+300 in a launch, where a finite number from 0 to 1000"),
        ({PERCENT: ["12", "-0.5", "3"]}, "is -0.5 in a launch"),
        ({METRICS["cycles_active"].names[0]: ["1e300", "2", "3"]}, "is 1e\\+300 in a launch"),
        ({METRICS["cycles_active"].names[0]: ["1e-9", "2", "3"]}, "instructions by active cycles is"),
        ({METRICS["warps_per_cycle"].names[0]: ["1e5", "2", "3"]}, "is 100000 in a launch"),
        ({INSTRUCTIONS[0]: ["9 (Integer: -5; Control: 14)"] * 3}, "holds '9 \\(Integer: -5"),
        ({INSTRUCTIONS[0]: [f"9 (Integer: {'9' * 30})"] * 3}, "in a launch, where"),
        (duration("0", "2", "3"), "is 0 in a launch, and every launch takes time"),
        (duration("1e300", "2", "3"), "is 1e\\+300 in a launch"),
    ],
)
def test_a_number_out_of_its_range_is_refused(cells: dict[str, list[str]], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        parse(Raw(cells=cells).write(tmp_path), "BASE", "window")


def test_a_hit_rate_somewhat_above_100_is_ncu_s(tmp_path: Path) -> None:
    table = parse(Raw(cells={PERCENT: ["290", "100.5", "0"]}).write(tmp_path), "BASE", "window").table
    assert table["l2_hit_pct"].tolist() == [290, 100.5, 0]


@pytest.mark.parametrize("estimate", ["1e300", "-1e300", "20,000"])
def test_an_estimate_that_is_no_percentage_is_refused(estimate: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(details([(0, "global", estimate)]))
    with pytest.raises(BadInput, match=r"d\.csv: Estimated Speedup is"):
        parse(Raw().write(tmp_path), "BASE", "window", details=tmp_path / "d.csv")


# bounds


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_without_an_end_is_refused(pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_csv, "LARGEST_LINE", 4096)
    path = tmp_path / "raw.csv"
    for text in ("a" * 9000, Raw().text() + '"3","' + "a" * 9000, Raw().text() + "a" * 9000 + "\n"):
        path.write_bytes(pack(text.encode()))
        with pytest.raises(BadInput, match="is larger than a page may be"):
            parse(path, "BASE", "window")


@pytest.mark.parametrize("limit", ["LARGEST", "MOST_LINES"])
def test_a_page_that_goes_on_and_on_is_refused(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_csv, limit, 9000)
    path = tmp_path / "raw.csv"
    path.write_bytes(gzip.compress(Raw().text().encode() + b"x\n" * 9000))
    with pytest.raises(BadInput, match="is larger than a page may be"):
        parse(path, "BASE", "window")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "raw.csv")
    for path in (tmp_path / "raw.csv", Path("/dev/zero")):
        with pytest.raises(BadInput, match=r"a (FIFO|device) stands there"):
            parse(path, "BASE", "window")
