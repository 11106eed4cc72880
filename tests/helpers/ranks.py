"""A script in several processes that train together, as torchrun starts them, without torchrun's own seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


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
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        printed = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(started, printed, strict=True)
    ]
