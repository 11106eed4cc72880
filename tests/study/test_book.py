from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from study import book
from study.book import find_root, read_chain, run_book

WRITES = """
from pathlib import Path
print("measured" if measure else "replayed", file=open("../runs/said", "a"))
Path("../figures/table.csv").write_text("1,2\\n")
"""
DRAWS = """
from pathlib import Path
Path("../figures/picture.svg").write_text("<svg>" + Path("../figures/table.csv").read_text())
"""
SUMS = 'import os; print(os.environ.get("SOURCE_DATE_EPOCH"), open("../figures/picture.svg").read())'


def notebook(path: Path, code: str, inputs: list[str], outputs: list[str]) -> None:
    nb = nbformat.v4.new_notebook()
    nb.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nb.metadata["medddpm"] = {"inputs": inputs, "outputs": outputs}
    parameters = nbformat.v4.new_code_cell("measure: bool = False", metadata={"tags": ["parameters"]})
    nb.cells = [nbformat.v4.new_markdown_cell("# A title"), parameters, nbformat.v4.new_code_cell(code.strip())]
    nbformat.write(nb, path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A book of three: 01 writes a table, 02 draws it, 00 reads the drawing last."""
    root = tmp_path / "a {book} with spaces"
    for folder in ("notebooks", "figures", "runs", "medddpm"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "medddpm" / "code.py").write_text("x = 1\n")
    (root / "figures" / "given.csv").write_text("3\n")
    notebook(root / "notebooks" / "00_summary.ipynb", SUMS, ["figures/*.svg"], [])
    notebook(root / "notebooks" / "01_table.ipynb", WRITES, ["figures/given.csv"], ["figures/table.csv"])
    notebook(root / "notebooks" / "02_draw.ipynb", DRAWS, ["figures/table.csv"], ["figures/picture.svg"])
    return root


@pytest.fixture
def ran(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs the book and returns the notebooks it did not find fresh."""

    def run(**options) -> list[str]:
        capsys.readouterr()
        assert run_book(root, **options) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
        return [line.split()[1].rstrip(":") for line in lines if not line.endswith(": fresh")]

    return run


@pytest.fixture
def kernelless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the cells in this process: what is stale is decided before any kernel starts, and kernels are slow."""

    def execute(notebook: book.Notebook, copy: Path, parameters: dict[str, object], place: str) -> None:
        monkeypatch.chdir(notebook.path.parent)
        nb = nbformat.read(notebook.path, as_version=4)
        exec("\n".join(c.source for c in nb.cells[1:]), {})
        copy.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, copy)

    monkeypatch.setattr(book, "_execute", execute)


def change_source(root: Path, name: str, code: str) -> None:
    path = root / "notebooks" / f"{name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    nb.cells[-1].source = code
    nbformat.write(nb, path)


ALL = ["01_table", "02_draw", "00_summary"]


def test_runs_in_chain_order_and_then_nothing(root: Path, ran: Callable[..., list[str]]) -> None:
    committed = {p: p.read_bytes() for p in (root / "notebooks").glob("*")}
    assert ran() == ALL
    assert ran() == []
    executed = nbformat.read(root / "runs" / "book" / "00_summary.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "0 <svg>1,2\n\n"
    assert {p: p.read_bytes() for p in (root / "notebooks").glob("*")} == committed, "the committed notebooks changed"


def by_command(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "study", "book", "--only", "01"]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)


def test_a_signal_amid_a_notebook_is_one_line(root: Path) -> None:
    change_source(root, "01_table", "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)")
    ended = by_command(root)
    line = "medddpm: interrupted; the same command goes on where it was\n"
    assert (ended.returncode, ended.stderr) == (130, line)


def test_a_kernel_that_dies_is_one_line(root: Path) -> None:
    change_source(root, "01_table", "import os; os._exit(1)")
    ended = by_command(root)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert line.startswith(f"medddpm: {root / 'notebooks' / '01_table.ipynb'}: its kernel failed: Kernel died; open ")


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def edit(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(text) and None


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        (remove("figures/table.csv"), ALL),
        (remove("figures/picture.svg"), ["02_draw", "00_summary"]),
        (remove("runs/book/00_summary.ipynb"), ["00_summary"]),
        (edit("figures/picture.svg", "spoilt"), ["02_draw", "00_summary"]),
        (edit("figures/given.csv", "4\n"), ALL),
        (edit("medddpm/code.py", "x = 2\n"), ALL),
        (edit("runs/book/state.json", "{"), ALL),
        (lambda root: change_source(root, "02_draw", DRAWS + "# again"), ["02_draw", "00_summary"]),
        (lambda root: change_source(root, "00_summary", "print(1)"), ["00_summary"]),
    ],
    ids=["record", "figure", "copy", "spoilt figure", "given input", "code", "state", "source", "last source"],
)
@pytest.mark.usefixtures("kernelless")
def test_redoes_what_a_change_touches_and_nothing_else(
    root: Path, ran: Callable[..., list[str]], change: Callable[[Path], None], redone: list[str]
) -> None:
    ran()
    change(root)
    assert ran() == redone
    assert ran() == []


def test_failure_is_one_line_and_the_next_run_resumes_there(root: Path, ran: Callable[..., list[str]]) -> None:
    change_source(root, "02_draw", "1 / 0")
    with pytest.raises(
        BadInput, match=r"02_draw\.ipynb: cell \[2\] failed: ZeroDivisionError.*open runs/book/02_draw"
    ) as e:
        run_book(root)
    assert "\n" not in str(e.value)
    executed = nbformat.read(root / "runs" / "book" / "02_draw.ipynb", as_version=4)
    assert any(o.output_type == "error" for c in executed.cells if c.cell_type == "code" for o in c.outputs)
    change_source(root, "02_draw", DRAWS)
    assert ran() == ["02_draw", "00_summary"]


def test_a_place_that_cannot_hold_the_runs_is_one_line(root: Path) -> None:
    (root / "runs" / "book").write_text("")
    with pytest.raises(BadInput, match="a file stands where its folder should be"):
        run_book(root)


def test_kernel_that_dies_is_one_line(root: Path) -> None:
    change_source(root, "01_table", "import os; os._exit(3)")
    with pytest.raises(BadInput, match=r"01_table\.ipynb: its kernel failed: .*died"):
        run_book(root)


def test_declared_output_must_be_written(root: Path) -> None:
    change_source(root, "01_table", "pass")
    with pytest.raises(BadInput, match=r"01_table\.ipynb: ran but left no figures/table\.csv"):
        run_book(root)


@pytest.mark.usefixtures("kernelless")
def test_only_and_from_run_what_they_name(ran: Callable[..., list[str]]) -> None:
    ran()
    assert ran(only="02") == ["02_draw"]
    assert ran(only="notebooks/00_summary.ipynb") == ["00_summary"]
    assert ran(start="02") == ["02_draw", "00_summary"]
    assert ran(force=True) == ALL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "7"}, "--only: '7' names 0 notebooks; give one of 00_summary, 01_table, 02_draw"),
        ({"start": "0"}, "--from: '0' names 3 notebooks"),
        ({"only": "01", "start": "02"}, "cannot be combined with --from"),
        ({"refresh": True, "measure": True}, "leave out --measure"),
    ],
)
def test_options_that_name_nothing_are_refused(root: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run_book(root, **options)


@pytest.mark.usefixtures("kernelless")
def test_other_parameters_make_stale(ran: Callable[..., list[str]]) -> None:
    ran()
    assert ran(measure=True) == ALL
    assert ran(measure=True) == []
    assert ran() == ALL


def test_measure_reaches_the_parameters(root: Path, ran: Callable[..., list[str]]) -> None:
    assert ran(only="01") == ["01_table"]
    assert ran(only="01", measure=True) == ["01_table"]
    assert (root / "runs" / "said").read_text().split() == ["replayed", "measured"]


@pytest.mark.long
def test_refresh_commits_outputs_and_nothing_volatile(root: Path, ran: Callable[..., list[str]]) -> None:
    assert ran(refresh=True) == ALL
    first = {p.name: p.read_bytes() for p in (root / "notebooks").glob("*.ipynb")}
    assert ran() == [], "a refreshed notebook went stale"
    assert ran(refresh=True, force=True) == ALL
    assert {p.name: p.read_bytes() for p in (root / "notebooks").glob("*.ipynb")} == first
    nb = nbformat.read(root / "notebooks" / "00_summary.ipynb", as_version=4)
    assert [c.execution_count for c in nb.cells if c.cell_type == "code"] == [1, 2]
    assert not {"papermill", "execution"} & set(nb.metadata).union(*(c.metadata for c in nb.cells))
    assert not any("injected-parameters" in c.metadata.get("tags", []) for c in nb.cells)


@pytest.mark.parametrize("text", ["", "{}", '{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'])
def test_what_is_no_notebook_is_named(root: Path, text: str) -> None:
    (root / "notebooks" / "03_broken.ipynb").write_text(text)
    with pytest.raises(BadInput, match=r"03_broken\.ipynb: is not a notebook"):
        read_chain(root)


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../other/*.csv", "", 5])
def test_files_outside_the_repository_are_refused(root: Path, pattern: str) -> None:
    notebook(root / "notebooks" / "03_away.ipynb", "pass", [pattern], [])
    with pytest.raises(BadInput, match="name files relative to the repository"):
        read_chain(root)


@pytest.mark.parametrize("declared", [None, "x", 3, {"inputs": 5}, {"outputs": "figures/a.png"}])
def test_a_notebook_that_declares_no_lists_is_named(root: Path, declared: object) -> None:
    path = root / "notebooks" / "03_odd.ipynb"
    notebook(path, "pass", [], [])
    content = json.loads(path.read_text())
    content["metadata"]["medddpm"] = declared
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"03_odd\.ipynb: declares (in|out)puts "):
        read_chain(root)


def test_root_is_found_from_below_and_from_the_package(root: Path, tmp_path: Path) -> None:
    assert find_root(root / "notebooks") == root
    assert find_root(tmp_path) == ROOT


def test_empty_book_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no numbered notebook"):
        run_book(tmp_path)
