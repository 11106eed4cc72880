"""`medddpm parse`: made-up CSV of ncu, as its releases print it, to the table of kernels."""

from __future__ import annotations

import csv
import gzip
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ncu_pages import (
    ADD,
    CLASS_CELL,
    CONV,
    CUPTI_ADD,
    CUPTI_NORM,
    LEAD,
    LOG,
    NORM,
    Raw,
    details,
    duration,
    page,
    trace,
)

from medddpm.cli.main import main
from medddpm.errors import BadInput
from medddpm.measure import schemas
from medddpm.measure.profile import ncu_csv
from medddpm.measure.profile.counters import INSTRUCTIONS, METRICS, PARSED
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.profile.ncu_csv import launches_in, numbers, unit_factor
from medddpm.measure.profile.parse import parse
from medddpm.measure.tables import meta_path, read_meta, read_table, write_table


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# what comes out


def test_a_window_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, out = Raw().write(tmp_path), tmp_path / "out" / "kernels.csv"
    assert main(["parse", str(raw), "--setting", "opt1", "--out", str(out)]) == 0
    assert "3 launches in 3 families" in capsys.readouterr().out
    table = read_table(out, schemas.KERNELS)
    assert table["config"].unique().tolist() == ["OPT1"]
    assert table["view"].unique().tolist() == ["window"]
    assert table["kernel"].tolist() == [CONV, ADD, NORM]
    assert table["family"].tolist() == [
        "sm80_xmma_fprop_implicit", "vectorized_elementwise_kernel", "RowwiseMomentsCUDAKernel",
    ]  # fmt: skip
    assert table["grid"].tolist() == ["(64, 1, 1)", "(128, 1, 1)", "(256, 1, 1)"]
    first = table.iloc[0]
    assert (first["duration_ns"], first["cycles_active"], first["instructions"], first["ipc"]) == (
        1000,
        4000,
        2000,
        0.5,
    )
    assert [first[c] for c in CLASSES] == [1000, 600, 250, 30, 20, 0, 100, 0, 0]
    assert [first[column] for column in list(METRICS)[3:]] == [place + 0.5 for place in range(3, len(METRICS))]
    assert table["est_speedup_pct"].isna().all()
    assert table["priority"].isna().all()
    assert read_meta(out)["parsed_from"] == "ncu_raw.csv"


def test_the_description_of_the_measurement_goes_along(tmp_path: Path) -> None:
    raw, out = Raw().write(tmp_path), tmp_path / "kernels.csv"
    meta_path(raw).write_text('{"gpu": "NVIDIA H200"}')
    assert main(["parse", str(raw), "--out", str(out)]) == 0
    assert read_meta(out)["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("unit", "nanoseconds"),
    [
        ("ns", 1.0), ("nsecond", 1.0), ("us", 1e3), ("usecond", 1e3), ("µs", 1e3), ("ms", 1e6), ("msecond", 1e6),
        ("s", 1e9), ("second", 1e9),
    ],
)  # fmt: skip
def test_times_come_in_nanoseconds(tmp_path: Path, unit: str, nanoseconds: float) -> None:
    raw = Raw(units={METRICS["duration_ns"].names[0]: unit}, cells=duration("1,234.5", "2", "0.25"))
    table = parse(raw.write(tmp_path), "BASE", "window").table
    np.testing.assert_allclose(table["duration_ns"], np.array([1234.5, 2, 0.25]) * nanoseconds, rtol=1e-12)


@pytest.mark.parametrize(
    ("unit", "wanted", "factor"),
    [
        ("byte", "byte", 1), ("Kbyte", "byte", 1e3), ("Mbyte", "byte", 1e6), ("Gbyte", "byte", 1e9),
        ("Mcycle", "cycle", 1e6), ("Kinst", "inst", 1e3), ("inst/cycle", "inst/cycle", 1), ("%", "%", 1),
        ("cycle", "ns", None), ("ms", "%", None), ("byte", "inst", None), ("", "%", None),
    ],
)  # fmt: skip
def test_units_are_turned_into_each_other(unit: str, wanted: str, factor: float | None) -> None:
    assert unit_factor(unit, wanted) == factor


def test_numbers_with_commas_and_what_was_not_measured() -> None:
    cells = ["1,234,567", "12", "0.5", "1e3", "n/a", "(!) nan", "inf", "", "-1,234.5"]
    expected = [1234567, 12, 0.5, 1000, np.nan, np.nan, np.nan, np.nan, -1234.5]
    np.testing.assert_array_equal(numbers(cells, "x", Path("f")), expected)
    np.testing.assert_array_equal(numbers(["nan", "3"], "x", Path("f")), [np.nan, 3])


ENCODINGS = {
    "gzip": lambda text: gzip.compress(text.encode()),
    "windows": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "powershell": lambda text: text.encode("utf-16"),
    "no last newline": lambda text: text.rstrip("\n").encode(),
    "log after the rows": lambda text: (text + "==PROF== Disconnected from process 812\n\n").encode(),
    "log between the rows": lambda text: text.replace('"1","812"', '==PROF== Profiling: 50%\n"1","812"').encode(),
    "the program failed in the end": lambda text: (
        text + "==ERROR== The application returned an error code (9)."
    ).encode(),
}


@pytest.mark.parametrize("kind", ENCODINGS)
def test_the_same_page_however_it_is_stored(tmp_path: Path, kind: str) -> None:
    plain = parse(Raw().write(tmp_path), "BASE", "window").table
    other = tmp_path / "other.csv"
    other.write_bytes(ENCODINGS[kind](Raw().text()))
    pd.testing.assert_frame_equal(parse(other, "BASE", "window").table, plain)


def test_classes_by_opcode_and_in_columns_of_their_own(tmp_path: Path) -> None:
    by_class = parse(Raw().write(tmp_path), "BASE", "window").table
    opcodes = "2,000 (FFMA: 900; FADD: 100; IMAD: 600; LDG: 250; BRA: 60; EXIT: 40; MOV: 30; PLOP3: 20)"
    old = Raw(left_out=(INSTRUCTIONS[0],), more={INSTRUCTIONS[1]: [opcodes] * 3})
    pd.testing.assert_frame_equal(parse(old.write(tmp_path), "BASE", "window").table, by_class)
    amounts = {"Floating Point": "1,000", "Integer": "600", "Load/Store": "250", "Control": "100", "Movement": "30",
               "Predicate": "20"}  # fmt: skip
    apart = {f"{INSTRUCTIONS[0]} ({name})": [cell] * 3 for name, cell in amounts.items()}
    old = Raw(left_out=(INSTRUCTIONS[0],), more=apart)
    pd.testing.assert_frame_equal(parse(old.write(tmp_path), "BASE", "window").table, by_class)


def test_what_ncu_prints_while_it_profiles_is_told_from_a_raw_page(tmp_path: Path, capsys) -> None:
    """`ncu --csv --metrics …` prints a row a metric, in a layout of its own (Nsight Compute CLI, "Output Pages")."""
    header = [*LEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    lead = ["0", "1", "python", "127.0.0.1", CONV, "1", "7", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0"]
    row = [*lead, "Command line profiler metrics", "gpu__time_duration.sum", "ns", "117,344"]
    (tmp_path / "printed.csv").write_text(LOG + page([header, row]))
    assert main(["parse", str(tmp_path / "printed.csv"), "--out", str(tmp_path / "k.csv")]) == 1
    line = complaint(capsys)
    assert "printed.csv: is not ncu's raw page but its details page; export it anew: " in line
    assert "--page raw --csv --print-metric-instances details" in line


def test_a_field_may_be_long(tmp_path: Path) -> None:
    """Metrics with an instance for each address fill fields of more characters than csv takes by default."""
    before = csv.field_size_limit(131_072)
    try:
        raw = Raw(more={"group:smsp__pcsamp_warp_stall_reasons": ["9 (" + "0x7f00: 1; " * 20_000 + "0: 1)"] * 3})
        assert len(parse(raw.write(tmp_path), "BASE", "window").table) == 3
    finally:
        csv.field_size_limit(before)


def test_an_unknown_class_is_said_once(tmp_path: Path) -> None:
    raw = Raw(cells={INSTRUCTIONS[0]: ["12 (Integer: 5; Quantum: 7)"] * 3})
    parsed = parse(raw.write(tmp_path), "BASE", "window")
    assert parsed.table["inst_misc"].tolist() == [7, 7, 7]
    (note,) = parsed.notes
    assert note.endswith("counted as miscellaneous: Quantum (0.35% of all)")


def test_a_card_without_stall_counters_and_a_launch_without_dram(tmp_path: Path) -> None:
    stalls = ("stall_long_scoreboard", "stall_math_pipe", "stall_branch")
    dram = METRICS["dram_pct"].names[0]
    raw = Raw(left_out=tuple(METRICS[s].names[0] for s in stalls), cells={dram: ["12.5", "n/a", "3"]})
    parsed = parse(raw.write(tmp_path), "BASE", "window")
    assert parsed.table[list(stalls)].isna().all(axis=None)
    assert parsed.table["dram_pct"].isna().tolist() == [False, True, False]
    assert "stall_long_scoreboard" in parsed.notes[0]
    write_table(parsed.table, tmp_path / "kernels.csv", schemas.KERNELS, {})


def test_launches_without_classes_are_said(tmp_path: Path) -> None:
    raw = Raw(cells={INSTRUCTIONS[0]: [CLASS_CELL, "n/a", "0"]})
    parsed = parse(raw.write(tmp_path), "BASE", "window")
    assert parsed.notes == ["ncu_raw.csv has no instruction classes of 1 of 3 launches: left empty"]
    assert parsed.table["inst_int"].tolist() == pytest.approx([600, np.nan, 0], nan_ok=True)


def test_too_much_time_in_no_family_is_said(tmp_path: Path) -> None:
    raw = Raw(kernels=[CONV, ADD, "mystery(int)"], cells=duration("900", "50", "50"))
    parsed = parse(raw.write(tmp_path), "BASE", "window")
    assert parsed.other == 0.05
    assert "5.0%" in parsed.notes[0]
    assert "mystery" in parsed.notes[0]


def test_rows_are_held_in_batches_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are read as few are, in pieces of at most `BATCH`; the pieces are put together in order."""
    sizes: list[int] = []
    read = ncu_csv.Page.batches

    def watched(self, columns):
        for rows in read(self, columns):
            sizes.append(len(rows))
            yield rows

    monkeypatch.setattr(ncu_csv, "BATCH", 4)
    monkeypatch.setattr(ncu_csv.Page, "batches", watched)
    raw = Raw(kernels=[ADD] * 10, cells=duration(*map(str, range(1, 11))))
    table = parse(raw.write(tmp_path), "BASE", "window").table
    assert sizes == [4, 4, 2]
    assert table["duration_ns"].tolist() == list(range(1, 11))
    assert len({id(name) for name in table["kernel"]}) == 1, "each row holds a name of its own"


def test_the_largest_global_estimate_counts_else_the_largest_local_one(tmp_path: Path) -> None:
    raw = Raw(cells=duration("1,000", "2,000", "4,000")).write(tmp_path)
    rules = [(0, "local", "90"), (0, "global", "10.5"), (0, "global", "30"), (1, "local", "12"), (1, "local", "25.0%")]
    (tmp_path / "d.csv").write_text(details([*rules, (1, "", "")]))
    table = parse(raw, "BASE", "window", details=tmp_path / "d.csv").table
    assert table["est_speedup_pct"].tolist() == [30, 25, 0]
    assert table["priority"].tolist() == [300, 500, 0]
    (tmp_path / "d.csv").write_text(details([(0, "global", "1,250.5")]))
    assert parse(raw, "BASE", "window", details=tmp_path / "d.csv").table["est_speedup_pct"][0] == 100


@pytest.mark.parametrize(
    ("kernels", "says"),
    [((CONV, ADD), "launch 2"), ((CONV, ADD, NORM, ADD), "launch 3"), ((CONV, NORM, ADD), "launch 1")],
)
def test_details_of_another_report(tmp_path: Path, kernels: tuple[str, ...], says: str) -> None:
    raw = Raw().write(tmp_path)
    (tmp_path / "d.csv").write_text(details([], kernels))
    with pytest.raises(BadInput, match=r"d\.csv: is of another report") as raised:
        parse(raw, "BASE", "window", details=tmp_path / "d.csv")
    assert says in str(raised.value)


def test_an_estimate_that_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(details([(0, "global", "much")]))
    with pytest.raises(BadInput, match=r"d\.csv: column Estimated Speedup holds 'much'.*--page details"):
        parse(Raw().write(tmp_path), "BASE", "window", details=tmp_path / "d.csv")


def test_details_of_an_ncu_that_estimates_nothing(tmp_path: Path) -> None:
    text = details([]).replace('"Estimated Speedup Type","Estimated Speedup"', '"A","B"')
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(BadInput, match="lacks the column Estimated Speedup Type"):
        parse(Raw().write(tmp_path), "BASE", "window", details=tmp_path / "d.csv")


def test_launches_of_either_page_are_counted() -> None:
    assert launches_in(Raw().text() + "==PROF== Disconnected from process 812\n") == 3
    assert launches_in(details([(0, "global", "50")])) == 3
    assert launches_in(LOG) == launches_in("") == launches_in(Raw(kernels=[]).text()) == 0
    assert launches_in(Raw().text()[:-5]) == 0, "the last field is not closed"


def test_a_step_is_weighted_by_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CUPTI's names, counts and durations; ncu's counters; a launch that ncu has not seen keeps its time."""
    launches = [
        (CONV, "64x1x1", 500.0), (CUPTI_ADD, "(128, 1, 1)", 100.0), (CUPTI_NORM, "(256, 1, 1)", 30.0),
        (CUPTI_ADD, "(128, 1, 1)", 200.0), (CONV, "(64, 1, 1)", 100.0), ("Memset (Device)", "", 70.0),
    ]  # fmt: skip
    raw, path, out = Raw().write(tmp_path), trace(tmp_path, launches), tmp_path / "kernels.csv"
    (tmp_path / "d.csv").write_text(details([(0, "global", "50")]))
    command = ["parse", str(raw), "--details", str(tmp_path / "d.csv"), "--trace", str(path), "--out", str(out)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "4 distinct of 6 launches" in said
    assert "93.0% of the time has counters" in said
    assert "7.0% of the step's time has no counters, most of it Memset" in said
    table = read_table(out, schemas.KERNELS).set_index("kernel")
    assert table["view"].unique().tolist() == ["step"]
    assert table["count"].tolist() == [2, 2, 1, 1]
    assert table["duration_ns"].tolist() == [300, 150, 30, 70]
    assert table["launch_index"].tolist() == [0, 1, 2, 5]
    # The profiled launch was each kind's first: its 500 ns stand for a mean of 300, its 100 ns for a mean of 150.
    assert table["cycles_active"].dropna().tolist() == [4000 * 300 / 500, 4000 * 150 / 100, 4000]
    assert table.loc[CONV, "inst_fp"] == 1000 * 300 / 500
    assert table["tensor_pct"].dropna().nunique() == table["ipc"].dropna().nunique() == 1, "a rate is scaled"
    assert np.isnan(table.loc["Memset (Device)", "cycles_active"])
    assert table.loc[CONV, "priority"] == 2 * 300 * 0.5
    assert read_meta(out)["scaled_by"]["trace"] == "trace.csv"


def test_ncus_rows_of_one_launch_are_averaged(tmp_path: Path) -> None:
    cycles = METRICS["cycles_active"].names[0]
    text = (
        Raw(kernels=[ADD, ADD], cells={cycles: ["1,000", "3,000"]})
        .text()
        .replace('(128, 1, 1)","0"', '(64, 1, 1)","0"')
    )
    (tmp_path / "raw.csv").write_text(text)
    parsed = parse(tmp_path / "raw.csv", "BASE", "step", trace=trace(tmp_path, [(CUPTI_ADD, "(64, 1, 1)", 10.0)]))
    assert parsed.table["cycles_active"].tolist() == [2000]
    assert parsed.matched == 1


def test_a_name_that_differs_is_matched_by_its_function(tmp_path: Path) -> None:
    other = CUPTI_ADD.replace("CUDAFunctor_add<float>", "opmath_add<c10::BFloat16>")
    parsed = parse(Raw().write(tmp_path), "BASE", "step", trace=trace(tmp_path, [(other, "(128, 1, 1)", 10.0)]))
    assert parsed.matched == 1
    assert "by function, grid and block only" in parsed.notes[0]
    assert "2 launches of ncu_raw.csv are not in" in parsed.notes[1]


def test_another_grid_is_another_launch(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"only 0\.0% of its time is in launches of ncu_raw\.csv"):
        parse(Raw().write(tmp_path), "BASE", "step", trace=trace(tmp_path, [(CUPTI_ADD, "(512, 1, 1)", 10.0)]))


@pytest.mark.parametrize(("known", "taken"), [(40.0, False), (60.0, True)])
def test_a_trace_of_another_setting_is_refused(tmp_path: Path, known: float, taken: bool) -> None:
    """What two settings have in common is the lesser part of a step's time."""
    path = trace(tmp_path, [(CUPTI_ADD, "(128, 1, 1)", known), ("another", "(1, 1, 1)", 100 - known)])
    raw = Raw().write(tmp_path)
    if taken:
        assert parse(raw, "BASE", "step", trace=path).matched == pytest.approx(0.6)
    else:
        with pytest.raises(BadInput, match=r"trace\.csv: only 40\.0% .*; trace and profile the same step"):
            parse(raw, "BASE", "step", trace=path)


def test_a_trace_without_a_launch(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(",".join(schemas.TRACE.columns) + "\n")
    with pytest.raises(BadInput, match=r"trace\.csv: holds no launch"):
        parse(Raw().write(tmp_path), "BASE", "step", trace=path)


def test_a_window_takes_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, path = Raw().write(tmp_path), trace(tmp_path, [(CONV, "(64, 1, 1)", 1.0)])
    assert main(["parse", str(raw), "--trace", str(path), "--view", "window", "--out", str(tmp_path / "k.csv")]) == 1
    assert "--view step" in complaint(capsys)


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("ncu_raw.csv", "ncu_raw.csv"), ("ncu_raw.csv", "ncu_raw.csv.gz"), ("ncu_raw.csv", "sub/../ncu_raw.csv"),
        ("d.csv", "d.csv"), ("trace.csv", "trace.csv"), ("ncu_raw.csv", "link.csv"),
    ],
)  # fmt: skip
def test_what_is_read_is_not_overwritten(
    tmp_path: Path, given: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, path = Raw().write(tmp_path), trace(tmp_path, [(CONV, "(64, 1, 1)", 1.0)])
    (tmp_path / "d.csv").write_text(details([]))
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.csv").symlink_to(raw)
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    command = ["parse", str(raw), "--details", str(tmp_path / "d.csv"), "--trace", str(path)]
    assert main([*command, "--out", str(tmp_path / out)]) == 1
    assert f" {tmp_path / given}: --out would overwrite what is read;" in complaint(capsys)
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_compressed_page_is_not_overwritten_by_a_plain_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table would take the compressed one's place: `tables.write_table` leaves only one of the two."""
    raw = tmp_path / "raw.csv.gz"
    raw.write_bytes(gzip.compress(Raw().text().encode()))
    assert main(["parse", str(raw), "--out", str(tmp_path / "raw.csv")]) == 1
    assert "--out would overwrite" in complaint(capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["raw.csv.gz"]


@pytest.mark.parametrize(("there", "force", "code"), [("k.csv", [], 1), ("k.csv.gz", [], 1), ("k.csv", ["--force"], 0)])
def test_a_table_is_replaced_only_when_asked(tmp_path: Path, there: str, force: list[str], code: int, capsys) -> None:
    raw, out = Raw().write(tmp_path), tmp_path / "k.csv"
    assert main(["parse", str(raw), "--out", str(out)]) == 0
    out.rename(tmp_path / there)
    before = (tmp_path / there).read_bytes()
    capsys.readouterr()
    assert main(["parse", str(raw), "--setting", "fast", "--out", str(out), *force]) == code
    assert ((tmp_path / there).read_bytes() == before) == bool(code)
    if code:
        assert "give --force to replace it" in complaint(capsys)


def test_a_strangers_file_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, out = Raw().write(tmp_path), tmp_path / "notes.csv"
    out.write_text("mine\n")
    assert main(["parse", str(raw), "--out", str(out), "--force"]) == 1
    assert "did not write" in complaint(capsys)
    assert out.read_text() == "mine\n"


# what is wrong


DECIMAL_COMMAS = Raw(cells={METRICS["l1_hit_pct"].names[0]: ["12,5", "7,25", "0"]})
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "blank": ("\n \n", "is empty"),
    "not of ncu": ("name,value\na,1\n", "holds no table of ncu's raw page"),
    "a report": (b"NVR\0\x01\x02" * 100, "is no text; if it is ncu's report, its CSV is wanted"),
    "log only": (LOG, "holds no table"),
    "errors": (
        LOG + "==ERROR== Failed to prepare kernel for profiling\n==ERROR== Unknown Error on device 0.\n",
        "ncu failed: Failed to prepare kernel",
    ),
    "no permission": (
        "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters.\n",
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "errors after rows": (Raw().text() + "==ERROR== Failed to profile kernel 3\n", "ncu failed: Failed to profile"),
    "no rows": (Raw(kernels=[]).text(), "has a header but no launch"),
    "header only": (page([[*LEAD, *PARSED]]), "is cut off after its header"),
    "no units": (page([[*LEAD, "a__b.sum"], ["0", *"x" * 10, "3"]]), "no row of units"),
    "details for raw": (details([]), "is not ncu's raw page but its details page"),
    "decimal commas": (DECIMAL_COMMAS.text(), "numbers are written with decimal commas"),
    "points for thousands": (Raw(cells=duration("1.234.567", "2", "3")).text(), "decimal commas"),
    "words for numbers": (Raw(cells=duration("fast", "2", "3")).text(), "holds 'fast' where a number is wanted"),
    "translated": (Raw().text().replace("Kernel Name", "Kernelname"), "are not ncu's English ones"),
    "spreadsheet": (Raw().text().replace('","', '";"'), "a spreadsheet saved it"),
    "two reports": (Raw(log="").text() * 2, "two reports, one after the other"),
    "an ID twice": (Raw().text().replace('"1","812"', '"0","812"'), "two launches of one ID"),
    "a short row": (Raw().text().replace('"127.0.0.1",', "", 1), "fields where its header"),
    "not measured": (Raw(cells=duration("n/a", "2", "3")).text(), "was not measured (n/a) in 1 of 3"),
    "bare classes": (Raw(cells={INSTRUCTIONS[0]: ["2,000"] * 3}).text(), "--print-metric-instances details"),
    "odd unit": (Raw(units={METRICS["dram_pct"].names[0]: "Gbyte"}).text(), "--print-units base"),
    "classes with points": (
        Raw(cells={INSTRUCTIONS[0]: ["2.000 (Integer: 1.000; Control: 1.000)"] * 3}).text(),
        "column sass__inst_executed_per_opcode_category holds '2.000 (Integer",
    ),
    "an odd ID": (Raw().text().replace('"1","812"', '"1.5","812"'), "no whole number for its ID"),
    "a vast ID": (Raw().text().replace('"1","812"', '"99999999999999999999","812"'), "no whole number for its ID"),
    "no name": (Raw(kernels=[CONV, "", NORM]).text(), "a launch has no kernel name"),
    "negative time": (Raw(cells=duration("-5", "2", "3")).text(), "is -5 in a launch, where a finite number"),
    "a trace": ('{"traceEvents": []}', "holds no table of ncu's raw page"),
    "no shape": (Raw().text().replace('"Grid Size"', '"Grid"'), "lacks the column Grid Size"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, says = BROKEN[kind]
    raw, out = tmp_path / "ncu_raw.csv", tmp_path / "kernels.csv"
    raw.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["parse", str(raw), "--out", str(out)]) == 1
    line = complaint(capsys)
    assert says in line
    assert str(raw) in line
    assert not out.exists()


@pytest.mark.parametrize("metric", [m.names[0] for m in METRICS.values() if not m.optional])
def test_a_missing_metric_is_named_with_its_option(tmp_path: Path, metric: str) -> None:
    with pytest.raises(BadInput, match="lacks the metric") as raised:
        parse(Raw(left_out=(metric,)).write(tmp_path), "BASE", "window")
    assert f"--metrics {metric}" in str(raised.value)


def test_files_that_are_not_there_or_broken_archives(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        parse(tmp_path / "none.csv", "BASE", "window")
    with pytest.raises(BadInput, match="a folder stands there; give ncu's raw page as CSV"):
        parse(tmp_path, "BASE", "window")
    broken = tmp_path / "raw.csv.gz"
    broken.write_bytes(gzip.compress(Raw().text().encode())[:-30])
    with pytest.raises(BadInput, match="gzip archive is broken"):
        parse(broken, "BASE", "window")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Raw().write(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ncu_csv, "_open", refuse)
    with pytest.raises(BadInput, match=r"ncu_raw\.csv: cannot be read \(Permission denied\)"):
        parse(raw, "BASE", "window")


def test_a_page_cut_anywhere_gives_its_first_launches_or_an_error(tmp_path: Path) -> None:
    """At a line's end a cut cannot be seen; anywhere else it is an error, never a wrong number."""
    text = Raw(cells=duration("1,234", "2,345.5", "34")).text()
    whole = parse(Raw(cells=duration("1,234", "2,345.5", "34")).write(tmp_path), "BASE", "window").table
    path, lengths = tmp_path / "cut.csv", set()
    for cut in [*range(0, len(text), 17), *random.Random(0).sample(range(len(text)), 60), len(text) - 1, len(text) - 2]:
        path.write_text(text[:cut])
        try:
            table = parse(path, "BASE", "window").table
        except BadInput:
            continue
        assert text[cut - 1 : cut + 1].strip() in ('"', ""), f"cut inside a row after {text[cut - 20 : cut]!r}"
        pd.testing.assert_frame_equal(table, whole.iloc[: len(table)])
        lengths.add(len(table))
    assert 3 in lengths
