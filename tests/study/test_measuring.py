"""A book is measured on one lent machine and on the next: two folders play them, and nothing is measured twice."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import nbformat
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.lease import UNTIL, LeftForLater
from study import book, carried, measuring
from study.carried import folders_of, take
from study.cli.main import main
from study.records import packing

MEASURES = '''
import json, sys
from pathlib import Path
from medddpm.measure import harness
from medddpm.measure.harness import Job, Need
from medddpm.measure.schemas import Column, Schema
from medddpm.measure.store import Store, Table
from medddpm.measure.tables import write_table
import pandas as pd

name, jobs, expected = {name!r}, {jobs!r}, {expected!r}
runs, records = Path("../runs") / name, Path("../figures/records/cpu")
schema = Schema({{"job": Column("str", "the job"), "host": Column("str", "its host")}})
WRITES = """
import pathlib, sys
pathlib.Path(sys.argv[1]).write_text('{{}}')
print(sys.argv[2], file=open("../said", "a"))
"""

def rows(results):
    return pd.DataFrame([(r["key"], r["machine"]["host"]) for r in results], columns=["job", "host"]), {{}}

if measure:
    meta = {{"gpu": "cpu", "driver": None, "cudnn": None, "torch": "2", "commit": "c", "command": "test"}}
    meta["host"] = Path("../host").read_text()
    store = Store(runs / "t.rows", meta, [Table(runs / "t.csv", schema, rows)])
    planned = [
        Job(job, job, (sys.executable, "-c", WRITES, str(runs / "t.rows" / (job + ".json")), job), Need.ALONE,
            expected=expected)
        for job in jobs
    ]
    harness.run(planned, store, device="cpu")
    write_table(rows(store.results())[0], records / (name + ".csv"), schema, meta)
'''
DRAWS = "from pathlib import Path; Path('../figures/drawn.svg').write_text('<svg>')"


def notebook(root: Path, name: str, code: str, inputs: tuple[str, ...] = (), measures: bool = True) -> None:
    nb = nbformat.v4.new_notebook()
    nb.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nb.metadata["medddpm"] = {"inputs": list(inputs), "outputs": []}
    parameters = "measure: bool = False" if measures else "width: int = 1"
    nb.cells = [
        nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(code.strip()),
    ]
    nbformat.write(nb, root / "notebooks" / f"{name}.ipynb")


def machine(root: Path, host: str, jobs: dict[str, tuple[str, ...]], expected: float = 0.01) -> Path:
    """Returns a fresh checkout of a book on a machine of its own."""
    for folder in ("notebooks", "figures/records/cpu", "medddpm"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "host").write_text(host)
    (root / "said").touch()
    (root / "figures" / "records" / "cpu" / "old.csv").write_text("committed\n")
    digest = hashlib.sha256(b"committed\n").hexdigest()
    (root / "figures" / "records" / "SHA256SUMS").write_text(f"{digest}  cpu/old.csv\n")
    for name, of_notebook in jobs.items():
        code = MEASURES.format(name=name, jobs=of_notebook, expected=expected)
        notebook(root, name, code)
    notebook(root, "03_draw", DRAWS, measures=False)
    for name in ("00_summary", "24_all_verdicts"):
        notebook(root, name, DRAWS)  # they say how their sentences are checked, and measure nothing
    return root


@pytest.fixture(autouse=True)
def kernelless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the cells in this process: what goes on where is decided outside of kernels, which are slow."""

    def execute(notebook: book.Notebook, copy: Path, parameters: dict[str, object], place: str) -> None:
        monkeypatch.chdir(notebook.path.parent)
        first, *cells = nbformat.read(notebook.path, as_version=4).cells
        names: dict[str, object] = {}
        exec(first.source, names)
        exec("\n".join(cell.source for cell in cells), names | parameters)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("{}")

    monkeypatch.setattr(book, "_execute", execute)
    monkeypatch.setattr(measuring, "_card", lambda: "cpu")


MEASURED = 'harness.run(planned, store, device="cpu")'
LOST = f"{MEASURED}; from medddpm.errors import BadInput as Ends; raise Ends('x', 'the machine is lost', 'y')"
JOBS = {"01_first": ("a", "b"), "02_second": ("c", "d", "e")}
LATE = 1e6  # s that a job is expected to take: more than any lease has


def test_a_book_goes_on_on_the_next_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = machine(tmp_path / "first", "h1", JOBS)
    change(first, "02_second", "for job in jobs", "for job in jobs[:1]")  # the machine is lost before the others
    change(first, "02_second", MEASURED, LOST)
    with pytest.raises(BadInput, match="the machine is lost"):
        measuring.measure_book(first, minutes=30, packed=tmp_path / "first.tar")
    assert (first / "said").read_text().split() == ["a", "b", "c"]

    second = machine(tmp_path / "second", "h2", JOBS)
    assert (
        measuring.measure_book(second, minutes=30, packed=tmp_path / "second.tar", results=[tmp_path / "first.tar"])
        == 0
    )
    said = capsys.readouterr().out
    assert "[1/2] 01_first: measured already" in said
    assert said.splitlines()[-1] == "2 of 2 notebooks have measured all"
    assert (second / "said").read_text().split() == ["d", "e"], "what is there is not measured again"
    assert not (second / "figures" / "drawn.svg").exists(), "it is drawn at home"
    records = second / "figures" / "records" / "cpu"
    assert (records / "01_first.csv").read_text() == "job,host\na,h1\nb,h1\n"
    assert (records / "02_second.csv").read_text() == "job,host\nc,h1\nd,h2\ne,h2\n"

    home = machine(tmp_path / "home", "h3", JOBS)
    (home / "figures" / "records" / "cpu" / "01_first.csv").write_text("measured at home\n")
    take(tmp_path / "second.tar", home)
    assert (home / "figures" / "records" / "cpu" / "02_second.csv").is_file()
    assert (home / "figures" / "records" / "cpu" / "01_first.csv").read_text() == "measured at home\n"
    assert not (home / "runs" / "02_second").exists(), "with the records its results have served"
    assert (home / "figures" / "records" / "cpu" / "old.csv").read_text() == "committed\n"


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "notebooks" / f"{name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    assert old in nb.cells[-1].source
    nb.cells[-1].source = nb.cells[-1].source.replace(old, new)
    nbformat.write(nb, path)


def test_what_would_not_end_in_time_is_lacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path / "first", "h1", {"01_first": ("a",)})
    notebook(root, "02_second", MEASURES.format(name="02_second", jobs=("c", "d"), expected=LATE))
    assert measuring.measure_book(root, minutes=30, packed=tmp_path / "first.tar") == 0
    said = capsys.readouterr().out.splitlines()
    assert "2 of 2 results are left for a later call" in said[-2]
    assert said[-1] == "1 of 2 notebooks have measured all; lacking: 02_second"
    assert (root / "said").read_text().split() == ["a"]
    assert not (root / "figures" / "records" / "cpu" / "02_second.csv").exists(), "a record is whole or not there"
    assert measuring.measure_book(root, minutes=0) == 0
    assert capsys.readouterr().out.splitlines()[-1] == said[-1]
    assert UNTIL not in os.environ


def test_another_source_or_card_measures_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    root = machine(tmp_path / "first", "h1", {"01_first": ("a",)})
    for card, again in (("cpu", False), ("cpu", True), ("H200", False)):
        monkeypatch.setattr(measuring, "_card", lambda card=card: card)
        assert measuring.measure_book(root) == 0
        assert ("01_first: measured already" in capsys.readouterr().out) == again
    (root / "medddpm" / "code.py").write_text("x = 2\n")
    assert measuring.measure_book(root) == 0
    assert "measured already" not in capsys.readouterr().out


def test_a_kernel_is_told_its_time_and_left_work_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel of its own, by the command."""
    monkeypatch.undo()
    root = machine(tmp_path / "first", "h1", {"01_first": ("a",)}, expected=LATE)
    command = [sys.executable, "-m", "study", "book", "--measure", "--minutes", "30", "--pack", str(tmp_path / "p.tar")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    left, last = done.stdout.splitlines()[-2:]
    assert left.endswith("1 of 1 results are left for a later call; measure again, with the results so far")
    assert last == "0 of 1 notebooks have measured all; lacking: 01_first"


def test_a_cell_that_goes_on_when_the_time_is_over_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    root = machine(tmp_path / "first", "h1", {})
    notebook(root, "01_first", "import time; time.sleep(600)")
    (each,) = [each for each in book.read_chain(root) if each.name == "01_first"]
    monkeypatch.setattr(book, "GRACE", 1.0)
    monkeypatch.setenv(UNTIL, str(time.time() - 1))
    with pytest.raises(LeftForLater, match="its time was over"):
        book._execute(each, root / "copy.ipynb", {}, "")


def test_folders_serve_until_those_that_read_them_have_measured() -> None:
    measuring = [("02_profile", ()), ("03_parse", ("figures/records/*", "runs/profiles/*")), ("16_fast", ())]
    every = ["02_profile", "03_parse", "profiles", "16_fast"]
    assert folders_of(measuring, []) == every
    assert folders_of(measuring, ["02_profile"]) == every[1:]
    assert folders_of(measuring, ["02_profile", "03_parse"]) == ["16_fast"]


@pytest.mark.parametrize(
    "name", ["../runs/a/b.json", "/runs/a/b.json", "runs/../a.json", "medddpm/a/b.py", "figures/records/SHA256SUMS"]
)
def test_a_tar_writes_results_and_records_alone(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"{}"))
    with pytest.raises(BadInput, match="it holds nothing that a book has measured"):
        take(tmp_path / "odd.tar", machine(tmp_path / "root", "h", {}))


def test_results_come_before_tables_and_weights_stay_behind(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", "h", {})
    for name in ("b.csv", "a.json", "model.safetensors", "state.pt"):
        (root / "runs" / "16_fast").mkdir(parents=True, exist_ok=True)
        (root / "runs" / "16_fast" / name).write_text("{}")
    (root / "figures" / "records" / "cpu" / "new.csv").write_text("1\n")
    assert carried.pack(root, ["16_fast"], tmp_path / "p.tar") == []
    with tarfile.open(tmp_path / "p.tar") as archive:
        assert archive.getnames() == ["figures/records/cpu/new.csv", "runs/16_fast/a.json", "runs/16_fast/b.csv"]
    assert (tmp_path / "p.tar").stat().st_size <= packing.PART


@pytest.mark.parametrize("option", [["--minutes", "3"], ["--pack", "p.tar"], ["--results", "p.tar"]])
def test_options_of_a_lease_need_measure(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["book", *option])
    assert "only with --measure alone" in capsys.readouterr().err
