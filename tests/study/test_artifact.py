"""The page for whoever evaluates the artifact has every claim and every record, with sums that a shell confirms."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.tables import read_table
from study.cli.main import parser
from study.numbers import artifact
from study.records import durations, groups, schemas
from study.records.durations import Took, took

RECORDS = ROOT / "figures" / "records"


def cells(rows: list[str]) -> list[list[str]]:
    return [row.strip("|").split("|") for row in rows]


def test_every_claim_of_the_paper_is_in_one_row() -> None:
    rows = cells(artifact.paper(ROOT))
    assert [row[0].partition("]")[0].strip("[") for row in rows[:12]] == [f"Figure {n}" for n in range(2, 14)]
    numbers: list[int] = []
    for first, last in re.findall(r"P(\d{3})(?:–P(\d{3}))?", " ".join(row[0] for row in rows)):
        numbers += range(int(first), int(last or first) + 1)
    assert sorted(numbers) == list(range(1, 205))
    by_figure = {row[0].partition("]")[0].strip("["): row for row in rows}
    assert by_figure["Figure 11"][4] == "20% or 5%", "P203 and P204 say nearly identical, and flat"
    assert by_figure["Figure 5"][4] == "equal", "ranks"
    assert by_figure["Figure 8"][1] == "`python -m study book --only 10`"
    assert by_figure["Figure 8"][5] == "`kernels_`, `launches_`"
    assert by_figure["Figure 3"][2:4] == ["–", "–"]


def test_every_record_is_of_a_kind_that_a_claim_rests_on() -> None:
    rests_on = {kind for row in cells(artifact.paper(ROOT) + artifact.ours(ROOT)) for kind in row[5].split(", ")}
    rows = cells(artifact.records(ROOT))
    measured = {f"`{row[0].strip('`').partition('/')[2]}`" for row in rows}
    assert measured - rests_on == {"`opt1_window_run2_`"}, "03 alone reads it, as an example of ncu's own pages"
    names = [name for name in groups.sums(ROOT) if not name.startswith("paper/")]
    assert sum(int(row[1]) for row in rows) == len(names)
    with pytest.raises(BadInput, match=r"study/records/groups\.py"):
        groups.kind("unheard_of.csv")


def test_a_shell_confirms_the_sums() -> None:
    for name, *_, printed in cells(artifact.records(ROOT)):
        found = subprocess.run(
            f'grep -F "  {name.strip("`")}" SHA256SUMS | sha256sum', shell=True, cwd=RECORDS, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert found.stdout.startswith(printed.strip("`")), name


def test_the_commands_are_the_programs_own() -> None:
    """Each is parsed; `make`'s and nnU-Net's are no commands of the study."""
    rows = cells(artifact.paper(ROOT) + artifact.ours(ROOT))
    commands = {line for row in rows for cell in row[1:3] for line in re.findall(r"`(python -m study [^`]+)`", cell)}
    assert len(commands) > 20
    for command in commands:
        parser().parse_args(shlex.split(command.replace("NAME", "monai-unet"))[3:])


def test_what_a_record_says_of_its_time_comes_first(tmp_path: Path) -> None:
    def record(described: dict[str, object], **columns: list[object]) -> Took:
        path = tmp_path / "t.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        (tmp_path / "t.meta.json").write_text(json.dumps(described))
        return took(path)

    dates: list[object] = [f"2026-12-01T{time}+00:00" for time in ("10:00:00", "10:01:00", "10:31:00", "11:02:00")]
    calls = {"calls": {"2026-12-01": 60.0, "2026-12-02": 30.0}}
    hosts: list[object] = ["a", "a", "b", "b"]
    assert record(calls, date=dates, host=hosts) == Took(90.0)
    assert record(calls, date=dates, host=["a", None, "b", "b"]) == Took(90.0, whole=False), "an old row took more"
    assert record({"seconds": 7.5}, date=dates) == Took(7.5)
    runs = {"one": {"training_s": 5.0, "judging_s": 1.0}, "two": {"training_s": 4.0}}
    assert record({"runs": runs}, value=[1]) == Took(10.0, whole=False)
    assert record({"runs": {"one": runs["one"]}}, value=[1]) == Took(6.0)
    assert record({}, step=[1, 2], step_ms=[500.0, 700.0]) == Took(1.2, whole=False)
    assert record({}, date=dates) == Took(60.0 + durations.SITTING, whole=False), "31 minutes apart is another sitting"
    assert record({}, value=[1]) == Took(whole=False)


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (Took(660.0), "11"),
        (Took(30.0), "0.5"),
        (Took(660.0, whole=False), "at least 11"),
        (Took(30.0, whole=False), "at least 0.5"),
        (Took(whole=False), "not recorded"),
        (Took(60.0) + Took(60.0, whole=False), "at least 2"),
    ],
)
def test_minutes_say_how_much_is_known(time: Took, said: str) -> None:
    assert str(time) == said


def test_leases_are_named_with_their_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    record = read_table(RECORDS / "H200" / "bench.csv", schemas.BENCH)
    mine = record[(record["network"] == "med-ddpm") & (record["setting"] == "accelerate")]
    new = [mine.assign(host=f"h{day}", card="c", date=f"2026-12-0{day}T10:00:00+00:00") for day in (1, 2)]
    monkeypatch.setattr(artifact, "recorded", lambda _root: {"H200": pd.concat([record, new[1]])})
    monkeypatch.setattr(artifact.leases, "anchors", lambda *_: pd.concat(new))
    first, second, old = cells(artifact.leases_of(ROOT, "H200"))
    assert first[:4] == ["A", "`h1`", "`c`", "1 December 2026"]
    assert second[:4] == ["B", "`h2`", "`c`", "2 December 2026"]
    (row,) = mine.itertuples()
    assert first[4] == f"{row.median_ms:.2f} ({row.p10_ms:.2f} to {row.p90_ms:.2f})"
    assert old[:3] == ["–", "not recorded", "not recorded"]
