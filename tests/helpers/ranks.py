"""A script in several processes that train together, as torchrun starts them, without torchrun's own seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from helpers.forks import start


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
        ended = [
            subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())
            for process, (out, err) in zip(started, printed, strict=True)
        ]
    for rank, one in enumerate(ended):
        if one.returncode:  # for whoever reads of a failed test: the first to say something has often lost another
            print(f"rank {rank} ended with {one.returncode}: {one.stderr[-2000:]}")
    return ended
