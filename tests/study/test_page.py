"""A notebook with other parameters: its messages, and the folders that it writes to."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import nbformat
import pytest
import torch
from helpers.cells import run_cells
from helpers.repository import ROOT

from medddpm.errors import BadInput
from study.page import none_failed, one_of, open_page


def named(number: str) -> Path:
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return path


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change (ns) of every picture and table under `folder`."""
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("number", ["01", "02", "04", "16", "17", "18", "19", "21"])
def test_measuring_without_a_gpu_is_answered_in_one_line(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    printed, error = run_cells(named(number), measure=True)
    assert isinstance(error, BadInput)
    assert printed.strip().splitlines()[-1:] == [str(error)]
    assert "Traceback" not in printed
    assert str(error).startswith(
        "measure = True: measures on an NVIDIA GPU, and PyTorch finds none here; set it to False"
    )


@pytest.mark.parametrize(
    ("number", "parameters", "line"),
    [
        (
            "16",
            {"gpu": "H100"},
            "gpu = 'H100': no record of steps, forward passes and samples of H100; there are: H200",
        ),
        ("11", {"gpu": "B200"}, "gpu = 'B200': no records of B200; there are: H100, H200"),
        ("10", {"gpu": "H200"}, "gpu = 'H200': no windows under another cuDNN of H200; there are: H100"),
        ("10", {"beside": "V100"}, "beside = 'V100': no windows that begin elsewhere of V100; there are: H100, H200"),
        ("08", {"setting": "opt1"}, "setting = 'opt1': no records of opt1; there are: BASE, OPT1, OPT2, OPT12, FAST"),
        ("01", {"steps": "3"}, "steps = '3': is not of type int; give such a value, as 20"),
        ("01", {"steps": 0}, "steps = 0: is too small; give 1 or more"),
        ("01", {"measure": "yes"}, "measure = 'yes': is not of type bool; give such a value, as False"),
        ("17", {"gpu": "A100"}, "gpu = 'A100': no records of A100; there are: H100, H200"),
        ("20", {"gpu": ""}, "gpu = '': is empty; there are: H100, H200"),
        ("20", {"dollars": -3.0}, "dollars = -3.0: is no number above 0; give one, as 3.0"),
    ],
)
def test_a_parameter_that_has_no_answer_is_told_in_one_line(
    number: str, parameters: dict[str, object], line: str
) -> None:
    before = states(ROOT / "figures")
    printed, error = run_cells(named(number), **parameters)
    assert str(error) == line
    assert printed.strip().splitlines()[-1] == line
    assert "Traceback" not in printed
    assert states(ROOT / "figures") == before


def test_other_parameters_draw_elsewhere_and_say_which_sentences_do_not_hold() -> None:
    before = states(ROOT / "figures")
    picture = ROOT / "runs" / "figures" / "fig06_kernel_mix.png"
    picture.unlink(missing_ok=True)
    printed, error = run_cells(named("08"), setting="OPT1")
    assert error is None
    assert "setting = 'OPT1': figures go to ../runs/figures, and the book's stay as they are" in printed
    assert "not so here (setting = 'OPT1'): Convolutions take nine tenths of a step, " in printed
    assert picture.is_file()
    assert states(ROOT / "figures") == before


def test_a_copy_elsewhere_writes_beside_itself(tmp_path: Path) -> None:
    before = states(ROOT / "figures")
    copy = Path(shutil.copy(named("08"), tmp_path))
    printed, error = run_cells(copy)
    assert error is None
    assert "a copy of 08_fig06_kernel_mix outside the book's notebooks/: figures go to figures" in printed
    assert (tmp_path / "figures" / "fig06_kernel_mix.png").is_file()
    assert states(ROOT / "figures") == before


def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "figures").touch()  # root may write to every folder, but to none of this name
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="figures: a file stands where its folder should be; choose another place"):
        open_page("08_fig06_kernel_mix", setting="BASE")


def test_a_renamed_copy_beside_the_book_leaves_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/08_fig06_kernel_mix-Copy1.ipynb")
    assert open_page("08_fig06_kernel_mix", setting="BASE").figures == ROOT / "runs" / "figures"
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/08_fig06_kernel_mix.ipynb")
    page = open_page("08_fig06_kernel_mix", setting="BASE")
    assert (page.figures, page.runs, page.why) == (ROOT / "figures", ROOT / "runs", "")


def test_records_come_from_the_books_own_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L40S")
    monkeypatch.chdir(ROOT / "notebooks")
    with pytest.raises(BadInput, match=r"would make the book's records from another run \(measured_steps = 5\)"):
        open_page("01_train", True, steps=20, measured_steps=5, seed=0)
    page = open_page("16_fast_path", True, gpu="H200")
    assert page.gpu == "L40S"
    assert page.figures == ROOT / "runs" / "figures", "the committed figures show the H200"
    assert open_page("01_train", True, steps=20, measured_steps=50, seed=0).figures == ROOT / "figures"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="a copy of 18_cuda_convnext outside"):
        open_page("18_cuda_convnext", True)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")), ids=lambda path: path.stem)
def test_every_assertion_stands_below_its_sentence(path: Path) -> None:
    """Outside of `Page.check` it would stop a reader's own run."""
    checked: set[int] = set()
    assertions: dict[int, str] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source.replace("%matplotlib inline", ""))):
                if isinstance(node, ast.With) and ast.unparse(node).startswith("with page.check("):
                    checked |= {id(inner) for inner in ast.walk(node)}
                if isinstance(node, ast.Assert):
                    assertions[id(node)] = ast.unparse(node)
    assert assertions
    assert [text for node, text in assertions.items() if node not in checked] == []


def test_at_the_committed_parameters_an_assertion_stops(tmp_path: Path) -> None:
    """Of a book of one notebook, of which one sentence does not hold."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    nb = nbformat.v4.new_notebook()
    nb.metadata["medddpm"] = {"parameters": {"top": 1}}
    opens = 'from study.page import open_page\npage = open_page("01_a", top=top)'
    checks = ["with page.check('Long.'):\n    assert top > 2", "with page.check('Known.'):\n    {}['lacking']"]
    sources = ["top: int = 1", opens, *checks, "print('the end')"]
    nb.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, tmp_path / "notebooks" / "01_a.ipynb")
    _, stopped = run_cells(tmp_path / "notebooks" / "01_a.ipynb")
    assert isinstance(stopped, AssertionError)
    assert str(stopped) == "Long.", "make book's message names the sentence"
    printed, error = run_cells(tmp_path / "notebooks" / "01_a.ipynb", top=2)
    assert error is None
    assert printed.splitlines()[-3:] == [
        "not so here (top = 2): Long.",
        "not so here (top = 2): Known.",
        "the end",
    ]


@pytest.fixture
def new_card(tmp_path: Path) -> Path:
    """A book in which a card has been added by its windows alone."""
    records = tmp_path / "figures" / "records"
    records.mkdir(parents=True)
    for name in ("paper", "H100", "H200"):
        (records / name).symlink_to(ROOT / "figures" / "records" / name)
    (records / "L40S").mkdir()
    for path in (ROOT / "figures" / "records" / "H100").glob("kernels_*_window_run1.*"):
        shutil.copy(path, records / "L40S")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns("1[6-9]*", "0[013-5]*"))
    return tmp_path


@pytest.mark.parametrize(
    ("number", "parameters"),
    [("02", {}), ("08", {}), *((number, {"gpu": "L40S"}) for number in ("11", "12", "13", "14", "15"))],
)
@pytest.mark.long
def test_a_card_with_windows_alone_is_drawn(new_card: Path, number: str, parameters: dict[str, object]) -> None:
    (path,) = (new_card / "notebooks").glob(f"{number}_*.ipynb")
    printed, error = run_cells(path, **parameters)
    assert error is None, printed[-2000:]
    folder = new_card / ("runs/figures" if parameters else "figures")
    assert list(folder.glob("*.png"))


def test_one_of_and_none_failed() -> None:
    assert one_of(["a", "b"], "gpu", "b") == "b"
    with pytest.raises(BadInput, match="no records of c; there are: none"):
        one_of([], "gpu", "c")
    none_failed(0)
    with pytest.raises(BadInput, match="2 of the runs failed"):
        none_failed(2)
