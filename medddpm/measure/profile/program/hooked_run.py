"""Runs a program with the hooks of `hooked` to its end, and takes its answer or says why there is none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.profile.program.observer import Order

POLL, ENDING = 0.2, 60.0  # s: between two looks at a program; that it has to end after its last step


def run_program(
    command: Sequence[str], order: Order, follow: Callable[[str], object] = bool
) -> subprocess.CompletedProcess[str]:
    """Runs a program with hooks to its end; `stdout` of the result holds the output of both streams.

    Once its last step is recorded, its processes have `ENDING` seconds to end; then those that make steps are told to,
    and after as long again all are killed. They are killed, too, if this process is told to end.

    Args:
        command: the program with its environment, alone or under ncu.
        order: what is wanted of it, among that whether it may go on for as long as it likes.
        follow: gets what it prints, a piece at a time.
    """
    folder, to_the_end = order.folder, order.to_the_end
    marked = programs.mark()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **marked},
        )  # fmt: skip
        late: float | None = None
        told, read = False, 0
        try:
            while process.poll() is None:
                time.sleep(POLL)
                piece = os.pread(printed.fileno(), 2**20, read)
                read += len(piece)
                follow(piece.decode(errors="replace"))
                if late is None and not to_the_end and (folder / "status.json").is_file():
                    late = time.monotonic() + ENDING if _status(folder).get("is_over") else None
                if late is not None and time.monotonic() > late:
                    if told:
                        break
                    told, late = True, time.monotonic() + ENDING
                    for path in folder.glob("process-*.json"):
                        _tell(json.loads(path.read_text())["pid"])
        finally:
            if process.poll() is None or not to_the_end:
                with contextlib.suppress(ProcessLookupError):  # with what it started
                    os.killpg(process.pid, signal.SIGKILL if process.returncode is None else signal.SIGTERM)
                programs.kill_marked(marked)
            process.wait()
        printed.seek(0)
        said = printed.read().decode(errors="replace")
    return subprocess.CompletedProcess(list(command), process.returncode, said)


def _tell(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)


def _status(folder: Path) -> dict[str, Any]:
    path = folder / "status.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def answer(order: Order, done: subprocess.CompletedProcess[str], name: str) -> dict[str, Any]:
    """Returns what the program's process told once its step was recorded.

    Args:
        order: what was wanted of it.
        done: its end.
        name: of the run, for messages.

    Raises:
        BadInput: the step was not recorded; says why, how many steps were seen, and what to do.
    """
    folder, needed = order.folder, order.steps
    status = _status(folder)
    if status.get("is_over"):
        return status
    how = programs.problem(done, "use a smaller batch")
    seen = int(status.get("steps_seen", 0))
    if problem := status.get("problem"):
        raise BadInput(name, f"recording failed: {problem}", "end other profilers, the program's own too")
    if how and seen < needed:
        raise BadInput(name, f"the program failed after {seen} whole steps: {how}", "run it by itself first")
    if not (folder / "python").exists():
        problem = "no Python in the program loaded the hooks"
        remedy = "start Python without -I, -E and -S, and without sudo or a container between"
    elif (folder / "unhooked").exists():
        problem, remedy = (folder / "unhooked").read_text(), "install medddpm in the program's environment too"
    elif not (folder / "hooked").exists():
        problem, remedy = "the program never imported torch", "profile a program that computes with PyTorch"
    elif not list(folder.glob("process-*.json")):
        problem = "the program ended, and no step was seen: it called no optimizer of torch.optim"
        remedy = "put `with medddpm.measure.step():` around a step of its loop, also if a CUDA graph replays the step"
    else:
        problem = f"the program ended after {seen} whole steps, and {needed} are needed"
        remedy = f"let it make more, or give --warmup below {order.warmup}"
    raise BadInput(name, problem, remedy)
