"""What a record says of the machine it was measured on: card, driver, versions, commit."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def gpu_folder_name(gpu: str) -> str:
    """The records folder of a card by the name its driver gives: "NVIDIA H100 80GB HBM3" is "H100"; "cpu" stays."""
    if gpu == "cpu":
        return gpu
    words = [w for w in re.split(r"[\s-]+", gpu) if w and w not in {"NVIDIA", "Tesla", "GeForce", "Quadro"}]
    if words and re.fullmatch(r"[A-Z]+\d+[A-Z]*", words[0]):
        return words[0]
    return "-".join(words) or "gpu"


def machine_meta(command: Sequence[str] | None = None) -> dict[str, Any]:
    """What a measurement made now must carry; a thing this machine lacks is None.

    Args:
        command: the command line that measures; by default this process's own. Folders are cut from it.
    """
    import torch

    cuda = torch.cuda.is_available()
    driver, sm_clock, memory_clock = (_nvidia_smi() if cuda else None) or (None, None, None)
    return {
        "gpu": torch.cuda.get_device_name() if cuda else "cpu",
        "processor": _processor(),
        "driver": driver,
        "clock_sm_mhz": sm_clock,
        "clock_memory_mhz": memory_clock,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ncu": _ncu_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_git_state(),
        "command": _without_folders(sys.argv if command is None else command),
    }


def _output(*command: str) -> str | None:
    """What a program prints, or None where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _nvidia_smi() -> tuple[str, int, int] | None:
    """Driver, SM clock and memory clock (MHz, as they stand now) of the first card."""
    text = _output("nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader,nounits")
    try:
        driver, sm_clock, memory_clock = (text or "").splitlines()[0].split(", ")
        return driver, int(sm_clock), int(memory_clock)
    except (IndexError, ValueError):
        return None


def _ncu_version() -> str | None:
    found = re.search(r"Version ([\d.]+)", _output("ncu", "--version") or "")
    return found.group(1) if found else None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty or the bare architecture on Linux
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _git_state() -> dict[str, Any]:
    """The commit that measures, and whether files differ from it.

    A machine that gets the tree without its history is told the commit by MEDDDPM_COMMIT; it cannot know the rest.
    """
    if told := os.environ.get("MEDDDPM_COMMIT"):
        return {"commit": told, "dirty": None}
    here = str(Path(__file__).parent)
    commit = _output("git", "-C", here, "rev-parse", "HEAD")
    changes = _output("git", "-C", here, "status", "--porcelain") if commit else None
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None}


def _without_folders(command: Sequence[str]) -> str:
    """`command` as one line, every absolute path cut to its last part; a notebook's kernel is named as such."""
    if command and "ipykernel" in command[0]:
        return "a notebook's kernel"  # its arguments name a connection file that is gone by the time it is read
    # `python -m medddpm` is the command medddpm, and its file's name says nothing.
    named = re.sub(r"\w+/__main__\.py$", lambda m: Path(m[0]).parent.name, command[0]) if command else ""
    words = [named, *command[1:]]
    return " ".join(re.sub(r"(^|=)(/[^=]*)", lambda m: m[1] + Path(m[2]).name, word) for word in words)
