"""nnU-Net's commands, run as its users run them, in folders of their own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.repository import ROOT

COMMANDS = """
import json, multiprocessing, os, sys
from importlib.metadata import distribution

entries = {entry.name: entry for entry in distribution("nnunetv2").entry_points}
commands = [(words, entries[words[0]].load()) for words in json.loads(sys.argv[1])]
# The processes that a command starts would each import nnU-Net; as forks of one that has, they compute the same.
multiprocessing.set_forkserver_preload([command.__module__ for _, command in commands])
multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.get_context("forkserver")
for sys.argv, command in commands:
    os.environ["nnUNet_n_proc_DA"] = "1" if "plan" in sys.argv[0] else "0"  # planning wants one
    command()
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


def run(work: Path, *commands: Sequence[str], trainers: str) -> None:
    """Runs nnU-Net's commands in one process, one after the other, without processes for data augmentation.

    Args:
        work: holds nnU-Net's folders raw, preprocessed and results, and `stubs`.
        commands: of each its name and its arguments.
        trainers: what `nnUNet_extTrainer` is set to.
    """
    environment = {
        **os.environ,
        **{f"nnUNet_{name}": str(work / name) for name in ("raw", "preprocessed", "results")},
        "nnUNet_extTrainer": trainers,
        "nnUNet_def_n_proc": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path, str(work / "stubs")])),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env=environment, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
