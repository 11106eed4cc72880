"""Describes this machine for a record: card, driver, versions, commit."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs

MACHINE = ("gpu", "driver", "cuda", "cudnn", "torch", "triton", "commit", "host", "card")
"""The columns of `machine_meta` that a row may have."""


def of_machine(meta: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns a row's columns `MACHINE` from the `machine_meta` of the machine that measured it; None if unknown."""
    return {name: None if meta.get(name) is None else str(meta[name]) for name in MACHINE}


def gpu_folder_name(gpu: str) -> str:
    """Returns a card's records folder by its driver's name for it: "NVIDIA H100 80GB HBM3" is "H100"; "cpu" stays."""
    if gpu == "cpu":
        return gpu
    words = [w for w in re.split(r"[\s-]+", gpu) if w and w not in {"NVIDIA", "Tesla", "GeForce", "Quadro"}]
    if words and re.fullmatch(r"[A-Z]+\d+[A-Z]*", words[0]):
        return words[0]
    return "-".join(words) or "gpu"


def machine_meta(command: Sequence[str] | None = None, device: str = "auto") -> dict[str, Any]:
    """Describes this machine, now; values that the machine lacks are None.

    Args:
        command: the command line that measures; by default this process's own. It is recorded without its folders.
        device: the measuring device. With "cpu" the record names no card, even if the machine has one.
    """
    import torch

    cuda = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if cuda and device != "cpu" else "cpu",
        "processor": _processor(),
        **_driver_state(),
        **software(),
        "ncu": _version(programs.output("ncu", "--version")),
        "date": now(),
        **_git_state(),
        "command": without_folders(sys.argv if command is None else command),
        "host": _host(),
        "card": _card() if cuda and device != "cpu" else None,
    }


def now() -> str:
    """Returns the date and time in UTC, as records have them."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def package_version(name: str) -> str | None:
    """Returns the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def software() -> dict[str, Any]:
    """Returns the versions that this process computes with; None for libraries that it lacks."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "torch": str(torch.__version__),
        "triton": package_version("triton"),
        "python": platform.python_version(),
    }


@contextlib.contextmanager
def nvml(uuid: object = None) -> Iterator[tuple[Any, Any]]:
    """NVIDIA's management library (nvidia-ml-py), open, and its handle of a GPU.

    Args:
        uuid: the GPU's, as PyTorch's device properties have it; None is the machine's first, whatever PyTorch sees.

    Raises:
        BadInput: this machine has no such library, no driver or no GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(0) if uuid is None else pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        )
    except Exception as error:  # no library, no driver, no GPU: NVML has an exception for each
        problem = f"NVML finds no NVIDIA GPU here ({type(error).__name__})"
        raise BadInput("card", problem, "read the card on a machine with one; the records need none") from None
    try:
        yield pynvml, handle
    finally:
        pynvml.nvmlShutdown()


def _host() -> str | None:
    """Identifies this machine until its next start, without describing it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return _digest(boot.read_text().strip()) if boot.is_file() else None


def _card() -> str | None:
    """Identifies this process's card among all of its model, without describing it."""
    import torch

    with contextlib.suppress(AssertionError, AttributeError, RuntimeError):  # PyTorch before 2.5 tells none
        return _digest(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _driver_state() -> dict[str, Any]:
    """Returns the driver's version, and the highest clocks of the first GPU; None for values the driver lacks."""
    state: dict[str, Any] = dict.fromkeys(("driver", "max_sm_mhz", "max_memory_mhz"))
    with contextlib.suppress(BadInput), nvml() as (library, handle), contextlib.suppress(library.NVMLError):
        state["driver"] = library.nvmlSystemGetDriverVersion()
        state["max_sm_mhz"] = library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM)
        state["max_memory_mhz"] = library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_MEM)
    return state


def _version(text: str | None) -> str | None:
    match = re.search(r"Version ([\d.]+)", text or "")
    return match.group(1) if match else None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty or the bare architecture on Linux
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _git_state() -> dict[str, Any]:
    """Returns the commit that measures, and whether files differ from it.

    Where the tree comes without its history, MEDDDPM_COMMIT names the commit, and whether files differ is unknown.
    """
    if commit := os.environ.get("MEDDDPM_COMMIT"):
        return {"commit": commit, "dirty": None}
    here = str(Path(__file__).parent)
    # A package installed into an environment inside someone's repository is not that repository's.
    tracked = programs.output("git", "-C", here, "ls-files", Path(__file__).name)
    commit = programs.output("git", "-C", here, "rev-parse", "HEAD") if tracked else None
    changes = programs.output("git", "-C", here, "status", "--porcelain") if commit else None
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None}


def without_folders(command: Sequence[str]) -> str:
    """Writes `command` as one line, every absolute path cut to its last part; a notebook's kernel is named as such."""
    if command and "ipykernel" in command[0]:
        return "a notebook's kernel"  # its arguments name a connection file that is gone by the time it is read
    # `python -m medddpm` is the command medddpm; of another package's __main__.py the name is its folder's.
    name = Path(command[0]).parent.name if command and command[0].endswith("/__main__.py") else None
    named = (name and (name if name == "medddpm" else f"python -m {name}")) or (command[0] if command else "")
    words = [named, *command[1:]]
    return " ".join(re.sub(r"(^|=)(/[^=]*)", lambda m: m[1] + Path(m[2]).name, word) for word in words)
