"""`medddpm compare` from outside: rows, their table and picture, what is resumed, and what is refused in a line."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.pages import page_block, page_text
from helpers.repository import ROOT
from matplotlib import image

from medddpm.cli import compare as command
from medddpm.cli.main import main, parser
from medddpm.measure.compare import results, run
from medddpm.measure.schemas import COMPARED
from medddpm.measure.step_file import StepFile, load
from medddpm.measure.tables import read_meta, read_table
from medddpm.measure.tools import COMPARED as EVERY
from medddpm.measure.tools import OPPONENTS, READERS

Write = Callable[..., Path]
TOY = ["--device", "cpu", "--samples", "3"]
FEW = ["--tools", "pytorch,autocast-benchmark,tf32,graphed-step"]


def complaints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


def test_a_step_is_compared_and_the_same_command_resumes(write: Write, tmp_path: Path, monkeypatch, capsys) -> None:
    path, out = write(), tmp_path / "an out"
    monkeypatch.chdir(tmp_path)
    words = ["compare", os.path.relpath(path, tmp_path), *TOY, *FEW, "--out", "an out"]
    assert main(words) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    table = read_table(out / "compare.csv", COMPARED).set_index("tool")
    assert list(table.index) == ["pytorch", "tf32", "autocast-benchmark", "graphed-step"]
    measured = table.loc[["pytorch", "autocast-benchmark"]]
    assert (measured["samples"] == 3).all()
    assert (measured["p10_ms"] <= measured["median_ms"]).all()
    assert (table["autocast_rel_error_grad"] > 1e-4).all()
    assert table.loc["pytorch", "rel_error_grad"] == 0
    assert table.loc["autocast-benchmark", "rel_error_output"] == pytest.approx(
        table.loc["autocast-benchmark", "autocast_rel_error_output"], rel=0.1
    )
    assert set(measured[["date", "gpu", "torch", "commit", "host"]].notna().to_numpy().ravel()) == {True}
    assert table.loc["graphed-step", "why"].startswith("its kernels and CUDA graphs need an NVIDIA GPU")
    meta = read_meta(out / "compare.csv")
    assert meta["command"].startswith("medddpm compare") or meta["command"]
    assert meta["gpu"] == "cpu"
    best = results.best(table.reset_index())
    assert f"*  {best} " in printed
    assert "not measured: tf32: it is a setting of NVIDIA GPUs" in printed
    assert (out / "lines.py").read_text() in printed
    assert image.imread(out / "compare.png").shape[1] == 1200

    assert main([*words, "--rounds", "2"]) == 0
    printed, _ = capsys.readouterr()
    assert printed.count("there already") == 3
    assert "rows with fewer" not in printed
    again = read_table(out / "compare.csv", COMPARED).set_index("tool")
    assert again.loc["pytorch", "samples"] == 6

    assert main([*words, "--samples", "4"]) == 0
    kept = "an out: rows with fewer than 4 samples stay: pytorch, autocast-benchmark; --again measures all anew"
    assert kept in capsys.readouterr().out.splitlines()

    path.write_text(path.read_text() + "\n# another content\n")
    assert main(words) == 1
    said = (
        "medddpm: an out: it has rows of toy_step.py with another content or function; give another --out, or --again"
    )
    assert complaints(capsys) == [f"{said} to replace them"]
    assert main([*words[:2], *TOY, "--tools", "pytorch", "--out", "an out", "--again"]) == 0
    assert list(read_table(out / "compare.csv", COMPARED)["tool"]) == ["pytorch"], "nothing of the former file stays"


def test_a_forward_pass_is_not_mixed_with_steps(write: Write, tmp_path: Path, capsys) -> None:
    path, out = write(), tmp_path / "out"
    words = ["compare", f"{path}:build", *TOY, "--tools", "pytorch", "--out", str(out)]
    assert main([*words, "--infer"]) == 0
    (row,) = read_table(out / "compare.csv", COMPARED).to_dict("records")
    assert (row["measure"], row["rel_error_output"]) == ("forward", 0)
    assert np.isnan(row["rel_error_grad"])
    assert "output = model(*inputs)" in capsys.readouterr().out
    assert main(words) == 1
    assert "it has rows of toy_step.py with another measure; give another --out" in complaints(capsys)[0]


def test_a_tool_that_fails_is_a_row_that_says_why(write: Write, tmp_path: Path, capsys) -> None:
    """Here a signal ends one; the others are measured, and the same command tries that one again."""
    broken = tmp_path / "broken"
    broken.touch()
    of_tool = f"torch.is_autocast_enabled('cpu') and len(calls) > 6 and os.path.exists({str(broken)!r})"
    told = f"loss_fn(model, x, y):\n        calls.append(1)\n        if {of_tool}: os.abort()"
    path = write(
        ("import torch\n", "import os, torch\n"),
        ("loss_fn(model, x, y):", told),
        ("def build():", "def build():\n    calls = []"),
    )
    words = ["compare", str(path), *TOY, "--tools", "pytorch,autocast-benchmark", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    (line,) = complaints(capsys)
    assert line.startswith("medddpm: [2/2] autocast-benchmark: killed by signal 6, SIGABRT")
    table = read_table(tmp_path / "out" / "compare.csv", COMPARED).set_index("tool")
    assert table.loc["pytorch", "samples"] == 3
    assert table.loc["autocast-benchmark", "why"].startswith("killed by signal 6")
    broken.unlink()
    assert main(words) == 0
    assert read_table(tmp_path / "out" / "compare.csv", COMPARED)["median_ms"].notna().all()


BAD = {
    "missing": ("no.py", [], "no.py: there is no such file"),
    "no build": ("{}:make", [], "toy_step.py: it has no function make"),
    "device": ("{}", ["--device", "cuda:99"], "--device: there is no cuda:99 here"),
}


@pytest.mark.parametrize(("file", "more", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_1(file: str, more, said: str, write: Write, tmp_path: Path, capsys) -> None:
    path = write()
    assert main(["compare", file.format(path), *TOY, *more, "--out", str(tmp_path / "out")]) == 1
    (line,) = complaints(capsys)
    assert said in line
    assert not (tmp_path / "out" / "compare.csv").exists()


def test_a_folder_that_may_not_be_written(write: Write, tmp_path: Path, capsys) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "out").mkdir(mode=0o500)
    assert main(["compare", str(write()), *TOY, "--out", str(tmp_path / "out")]) == 1
    assert "may not be written" in complaints(capsys)[0]


def test_a_file_in_the_place_of_the_folder(write: Write, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").touch()
    assert main(["compare", str(write()), *TOY, "--out", str(tmp_path / "out")]) == 1
    assert complaints(capsys) == [f"medddpm: {tmp_path / 'out'}: a file stands there; give --out a folder"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--infer", "--tools", "pytorch,graphed-step"], "argument --tools: graphed-step: only without --infer"),
        (["--tools", "bf16-weights"], "argument --tools: bf16-weights: only with --infer"),
        (["--tools", "fast"], "argument --tools: 'fast' is none of pytorch, tf32"),
    ],
)
def test_tools_that_the_measure_has_not_are_wrong_arguments(words: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "my_step.py", "--out", "out", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_prints_commands_for_any_shell(write: Write, tmp_path: Path, capsys) -> None:
    path = write()
    assert main(["compare", str(path), "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(run.tools_of("step"))
    words = shlex.split(lines[0])
    assert words[:3] == ["python", "-m", "medddpm.measure.compare.worker"]
    assert words[words.index("--file") + 1] == str(path)
    assert not (tmp_path / "out").exists()


def test_the_tools_to_choose_from_are_all_there_are() -> None:
    names = {tool.slug for tool in EVERY}
    assert len(names) == len(EVERY)
    assert names == {*command.TOOLS, *command.STEP_TOOLS, *command.INFER_TOOLS}
    assert [tool.slug for tool in run.tools_of("step")] == [*command.TOOLS, *command.STEP_TOOLS]
    assert [tool.slug for tool in run.tools_of("forward")] == [*command.TOOLS, *command.INFER_TOOLS]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tool_that_does_nothing_here_is_not_run(device: str, monkeypatch) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    monkeypatch.setattr(run.dispatch, "TRITON", False)
    left = {tool.slug for tool in EVERY if not run.why_not(tool, device, {"volumes": False})}
    if device == "cpu":
        assert left == {"pytorch", "autocast-benchmark", "bf16-weights"}
    else:
        assert left == {
            "pytorch",
            "tf32",
            "cudnn-benchmark",
            "autocast-benchmark",
            "bf16-weights",
            "accelerate",
            "graphed-step",
        }
    assert not run.why_not(OPPONENTS[0], device, {"volumes": True})
    assert bool(run.why_not(READERS[0], device, {"volumes": True})) == (device == "cpu")


def test_the_pages_file_is_a_step_and_its_tools_are_there(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_step.py").write_text(page_block("site/compare.md", "python").replace("SIDE = 96", "SIDE = 16"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    step = load(StepFile(tmp_path / "my_step.py"), torch.device("cpu"))
    del sys.modules["my_step"]
    assert step.unpacked
    assert step.call is not None
    assert step.check_loss() is False
    table = page_text("site/compare.md").partition("## The tools")[2]
    names = set(re.findall(r"`([a-z0-9-]+)`", table)) - {"-channels-last", "--infer"}
    assert names <= {tool.slug for tool in EVERY}
    assert {name.removesuffix("-channels-last") for name in command.TOOLS} - {"channels"} <= names
    page = (ROOT / "site" / "compare.md").read_text().replace("\\\n", " ")
    lines = [line for line in page.splitlines() if line.startswith("medddpm ")]
    assert len(lines) == 3
    for line in lines:
        assert parser().parse_args(shlex.split(line)[1:]).file == "my_step.py"


# the best row


def rows(*known: tuple[str, float, float | None, float | None]) -> pd.DataFrame:
    """A table of tools, their times, and errors of outputs and gradients; autocast's are 1%."""
    measured = [
        {"key": name, "ms": [ms], "peak_bytes": 2**30, "date": "2026", "machine": {}, "measure": "step",
         **{key: value for key, value in (("rel_error_output", output), ("rel_error_grad", grad)) if value is not None}}
        for name, ms, output, grad in known
    ]  # fmt: skip
    first = {"autocast": {"rel_error_output": 0.01, "rel_error_grad": 0.01}}
    return results.rows_of([first, *measured], "a.py", "step", lambda: {"tf32": "it broke"})[0]


def test_the_best_row_is_the_fastest_whose_errors_are_no_worse_than_autocasts() -> None:
    table = rows(("pytorch", 9.0, 0.0, 0.0), ("accelerate", 3.0, 0.0105, 0.01), ("channels-last", 2.0, 0.001, 0.02))
    assert results.best(table) == "accelerate"
    printed = results.printed(table).splitlines()
    assert printed[2].split() == ["*", "accelerate", "3", "3", "to", "3", "3.00", "1", "1.1%", "1%"]
    assert printed[-1] == "not measured: tf32: it broke"
    assert "those of BF16 autocast alone are 1% of outputs and 1% of gradients" in results.judged(table)
    worse = rows(("pytorch", 9.0, 0.02, 0.0), ("channels-last", 2.0, 0.02, 0.0))
    assert results.best(worse) is None
    assert results.judged(worse).endswith("No row has at most 1.1 times these errors.")
    unknown = rows(("pytorch", 9.0, 0.0, 0.0), ("accelerate", 3.0, None, None))
    assert results.best(unknown) == "pytorch", "what nobody can tell is not as exact"
    assert results.best(rows()) is None


def test_a_best_row_that_is_none_is_said() -> None:
    table = rows(("pytorch", 9.0, 0.0, 0.0), ("accelerate", 8.0, 0.01, 0.01))
    assert results.judged(table).endswith("these errors.")
    table.loc[table["tool"] == "accelerate", "p90_ms"] = 9.5
    assert "Its times overlap those of pytorch" in results.judged(table)
    assert results.judged(rows(("accelerate", 8.0, 0.01, 0.01))).startswith("One tool was measured")


def test_a_row_without_errors_beside_others_says_why() -> None:
    table = rows(("pytorch", 9.0, 0.0, 0.0), ("accelerate", 3.0, None, None))
    table.loc[table["tool"] == "accelerate", "why"] = "it builds other weights"
    assert "without errors: accelerate: it builds other weights" in results.printed(table).splitlines()


def test_where_errors_are_unknown_the_fastest_is_marked_and_that_is_said() -> None:
    table = rows(("pytorch", 9.0, None, None), ("accelerate", 3.0, None, None))
    table["why"] = "the network draws"
    assert results.best(table) == "accelerate"
    assert results.judged(table).startswith("Errors are unknown: the network draws.\n* is the fastest;")


def test_rows_from_before_an_imported_module_was_changed_are_not_mixed(write: Write, tmp_path: Path, capsys) -> None:
    path = write(("import torch\n", "import toy_step_parts\nimport torch\n"))
    parts = path.with_name("toy_step_parts.py")
    parts.write_text("N = 1\n")
    words = ["compare", str(path), *TOY, "--tools", "pytorch", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert main(words) == 0
    capsys.readouterr()
    parts.write_text("N = 2\n")
    assert main(words) == 1
    assert "it has rows from before toy_step_parts.py was changed, which toy_step.py imports" in complaints(capsys)[0]


def test_where_no_tool_does_anything_the_table_says_so(write: Write, tmp_path: Path, capsys) -> None:
    assert main(["compare", str(write()), *TOY, "--tools", "accelerate", "--out", str(tmp_path / "out")]) == 0
    assert "not measured: accelerate: its kernels" in capsys.readouterr().out
    assert read_table(tmp_path / "out" / "compare.csv", COMPARED)["median_ms"].isna().all()


def test_without_matplotlib_a_line_says_so(write: Write, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(results.importlib.util, "find_spec", lambda name: None)
    assert main(["compare", str(write()), *TOY, "--tools", "pytorch", "--out", str(tmp_path / "out")]) == 0
    assert "There is no picture: matplotlib is missing; pip install 'medddpm[measure]'" in capsys.readouterr().out
    assert not (tmp_path / "out" / "compare.png").exists()


@pytest.mark.gpu
def test_a_network_is_compared_on_a_gpu(write: Write, tmp_path: Path) -> None:
    words = ["--tools", "pytorch,tf32,autocast-benchmark,accelerate,graphed-step", "--samples", "3"]
    assert main(["compare", str(write()), *words, "--out", str(tmp_path / "out")]) == 0
    table = read_table(tmp_path / "out" / "compare.csv", COMPARED).set_index("tool")
    assert table["median_ms"].notna().all(), table["why"]
    assert (table["peak_gib"] > 0).all()
    for name in ("rel_error_output", "rel_error_grad"):
        assert table.loc["accelerate", name] < 3 * table.loc["autocast-benchmark", name]
        assert table.loc["graphed-step", name] == pytest.approx(table.loc["accelerate", name], rel=0.5)
        assert table.loc["tf32", name] < table.loc["autocast-benchmark", name]
