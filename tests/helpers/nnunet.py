"""nnU-Net's commands, run as its users run them, in folders of their own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from helpers.repository import ROOT

COMMAND = """
import sys
from importlib.metadata import distribution
(command,) = [e for e in distribution("nnunetv2").entry_points if e.name == sys.argv[1]]
del sys.argv[0]
command.load()()
"""
ANY = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
"""


def write_stubs(folder: Path, *packages: str) -> None:
    """Writes stand-ins for packages that nnU-Net imports and here does not use, where they are not installed.

    In search of a trainer it imports all of its own, one of which needs timm; its U-Nets do not.
    """
    files = {
        "timm": {"__init__": "", "layers": ANY, "models/__init__": "", "models/eva": ANY},
        "SimpleITK": {"__init__": ANY},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(package)
            continue
        for name, text in files[package].items():
            path = folder / package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def run(work: Path, *arguments: str, trainers: str, augmenters: int = 0) -> None:
    """Runs one of nnU-Net's commands in one process.

    Args:
        work: holds nnU-Net's folders raw, preprocessed and results, and `stubs`.
        arguments: the command's name and its arguments.
        trainers: what `nnUNet_extTrainer` is set to.
        augmenters: the processes of data augmentation; planning wants one.
    """
    environment = {
        **os.environ,
        **{f"nnUNet_{name}": str(work / name) for name in ("raw", "preprocessed", "results")},
        "nnUNet_extTrainer": trainers,
        "nnUNet_def_n_proc": "1",
        "nnUNet_n_proc_DA": str(augmenters),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path, str(work / "stubs")])),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
