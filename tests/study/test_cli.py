"""`python -m study`: its commands, what they refuse, and that it is found from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from study.cli.main import main

PARITY = ["parity", "--out", "p", "--dry-run", "--plan"]
UNREAD = {
    "data of kernels": (["convnext", "--out", "c", "--dry-run", "--part", "kernels", "--data", "d"],
                        "--data: only with the part training"),
    "steps of kernels": (["convnext", "--out", "c", "--dry-run", "--part", "kernels", "--steps", "2000"],
                         "--steps: only with the part training"),
    "checkpoint of a training": ([*PARITY, "short", "--checkpoint", "c"],
                                 "--checkpoint: only with the plans samplers, redrawn and redrawn_fp32"),
    "data of the phantom": ([*PARITY, "short,redrawn", "--data", "d"], "--data: only with the plan brats"),
    "steps of no training": ([*PARITY, "redrawn", "--steps", "5"], "--steps: only with a plan that trains"),
    "seeds of no training": ([*PARITY, "redrawn", "--seeds", "1"], "--seeds: only with a plan that trains"),
    "subjects of a case": ([*PARITY, "brats", "--subjects", "2", "--data", "d"],
                           "--subjects: only with a plan that trains on the phantom"),
    "GPUs of a CPU": ([*PARITY, "short", "--gpus", "2", "--device", "cpu"], "--gpus: only on GPUs"),
    "tools of others": (["bench", "--out", "b.csv", "--dry-run", "--network", "monai-unet", "--opponents"],
                        "--opponents: only of med-ddpm and med-ddpm-brats, without --setting"),
    "samples asked for": (["bench", "--out", "b.csv", "--dry-run", "--setting", "base", "--all-samples"],
                          "--all-samples: only with samples of med-ddpm, without --setting"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "said"), UNREAD.values(), ids=UNREAD)
def test_an_option_without_an_effect_is_a_wrong_argument(
    command: list[str], said: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"python -m study {command[0]}: error: argument {said}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["parity", "--plan", "short", "--seeds", "0", "--size", "8", "--device", "cpu", "--out", "p"],
         "--size: 8 × 8 × 8 is too small to compare; give edges of 16 voxels or more"),
        (["book", "--only", "77"], "names 0 notebooks"),
        (["book", "--only", "05", "--measure"], "--measure: 05_fig03_architecture measures nothing; leave it out"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_1(command: list[str], said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    if command[0] != "book":  # which looks for the repository
        monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_width_is_told_to_be_a_multiple(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--out", "o.csv", "--channels", "20"])
    said = f"argument --channels: '20' is not a whole number from 32 to {2**31 - 1}, a multiple of 32"
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


@pytest.mark.parametrize(
    "command",
    ["book", "bench", "coverage", "throughput", "endurance", "scaling", "parity", "trainings", "judge", "convnext"],
)
def test_help_shows_examples_without_waiting_for_pytorch(command: str) -> None:
    script = "import sys; from study.cli.main import parser; parser().parse_args(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", script, command, "--help"], capture_output=True)
    assert done.returncode == 0
    assert f"examples:\n  python -m study {command}" in done.stdout.decode()
    assert not any(line.endswith(b" torch") for line in done.stderr.splitlines())


def test_the_study_is_found_from_any_folder(tmp_path: Path) -> None:
    """As by JupyterLab, `papermill` and `pytest --nbval` in whatever folder they are started."""
    done = subprocess.run([sys.executable, "-m", "study", "book", "--help"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
