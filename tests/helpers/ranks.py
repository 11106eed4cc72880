"""A script in several processes that train together, as torchrun starts them, without torchrun's own seconds."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

SLOW = ("nibabel", "nilearn.datasets", "pandas", "torch._dynamo", "torch.distributed.tensor", "torch.utils.tensorboard")
"""Imported once, by the server of which every process is a fork: in each anew they take longer than most scripts."""


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(count: int, script: str, *arguments: object, timeout: float = 120) -> list[subprocess.CompletedProcess]:
    """Runs `script` in `count` processes; returns how each ended, by rank.

    Args:
        count: how many.
        script: Python; it finds `arguments` in sys.argv[1:], and joins by `medddpm.runtime.ranks.joined`.
        arguments: as words.
        timeout: in seconds; a process that takes longer is killed, and fails the test.
    """
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = {**os.environ, **place, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words, end = list(map(str, arguments)), time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        printed = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(count)]
        started = [
            start(script, words, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, *printed[rank])
            for rank in range(count)
        ]
        try:
            for process in started:
                process.join(max(0.0, end - time.monotonic()))
                if process.exitcode is None:
                    raise subprocess.TimeoutExpired(script, timeout)
        finally:
            for process in started:
                process.kill()
        return [
            subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())
            for process, (out, err) in zip(started, printed, strict=True)
        ]


def start(script: str, words: list[str], environment: Mapping[str, str], out: Path, err: Path) -> BaseProcess:
    """Starts `python -c SCRIPT WORDS`, which prints to two files, as a fork of a process that has imported `SLOW`.

    Nothing has been computed there, and no thread started, that a fork could lack.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(SLOW))
    process = context.Process(target=_run, args=(script, words, dict(environment), out, err))
    # A fork would load this process's main module too; a test may have left one there that cannot be loaded.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def _run(script: str, words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    multiprocessing.set_start_method(None, force=True)  # this process's own is none that its script would find
    sys.argv = ["-c", *words]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(script, "<string>", "exec"), main.__dict__)
    finally:
        atexit._run_exitfuncs()  # as Python does; multiprocessing does from 3.14 on
