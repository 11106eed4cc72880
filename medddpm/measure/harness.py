"""Runs the measuring programs of jobs whose results, a file each, are missing.

A job names its need of the machine. A *ready* program times something: the programs of a wave prepare beside each
other, so that imports, tracing and code generation overlap; once all have reported that they are ready
(`ready.rounds`), they go one at a time, so that every timing, and every choice by time, has card and host alone. A
program that needs the card *alone* is the only one from its start to its end. *Queued* programs, trainings, take a card
each.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import os
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

from medddpm.measure import programs
from medddpm.measure.lease import LeftForLater, time_left
from medddpm.measure.ready import HARNESS
from medddpm.measure.store import Store
from medddpm.runtime.signals import ended_by_sigterm

GIB = 2**30
POLL = 0.1  # s between two looks at running programs; the one that is timed shares the host with nothing else
GRACE = 60.0  # s that a program has to end after SIGTERM


class Need(enum.Enum):
    """A program's need of the machine."""

    READY = "to prepare beside others, and the machine alone when it is told to go"
    ALONE = "the machine alone from start to end"
    QUEUE = "a card of its own"


@dataclass(frozen=True)
class Job:
    """One result and the program that leaves it. Jobs with the same command are measured by one program in their order.

    Args:
        key: names the result's file in the store's folder, KEY.json.
        title: names the result in progress lines and messages.
        command: begins with this Python.
        need: of the machine.
        word: the job's argument, added to the command; a program gets the words of the jobs whose result is missing.
        limit: seconds that the program may take for this result.
        gib: device memory that a ready program holds at most before it is told to go, and between rounds; no program
            prepares beside one whose `gib` is infinite.
        rounds: how often the result is measured; programs of a wave take turns. The program learns the round's number.
        group: of ready programs with several rounds; a group that fits the card's memory is a wave of its own, so that
            all of it takes turns, however many cores there are.
        expected: seconds that a queued program, or one alone, should take for this result; longer where earlier ones
            took longer. 0 is unknown: as long as the longest before it.
        describe: describes a result for its progress line.
        problem: returns why the program failed; empty if it did not. Raises `BadInput` if no job can be measured.
    """

    key: str
    title: str
    command: tuple[str, ...]
    need: Need
    word: str = ""
    limit: float = math.inf
    gib: float = math.inf
    rounds: int = 1
    group: str = ""
    expected: float = 0.0
    describe: Callable[[dict[str, Any]], str] = lambda _: "done"
    problem: Callable[[subprocess.CompletedProcess[str]], str] = programs.problem

    def named(self, number: int) -> str:
        """Returns the title of a round."""
        return self.title if self.rounds == 1 else f"{self.title}, round {number} of {self.rounds}"


def show(jobs: Sequence[Job]) -> int:
    """Prints the commands of all jobs, for any Python; returns 0."""
    for program in _programs((job, 1) for job in jobs):
        print(shlex.join(["python", *program.command[1:]]))
    return 0


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    again: bool = False,
    device: str = "auto",
    cards: Sequence[str | None] = (None,),
    seconds: float = math.inf,
) -> int:
    """Measures each job whose result is missing, prints a line for it and writes the tables after it.

    If a program fails, the first of its jobs without a result has failed; a new program measures the jobs behind it.

    Args:
        jobs: in their order.
        store: keeps the results and writes the tables.
        again: whether existing results are measured anew.
        device: "auto", "cuda" or "cpu"; ready programs hold at most two thirds of its memory together.
        cards: the cards of queued programs, as CUDA_VISIBLE_DEVICES names them; None leaves the variable alone.
        seconds: that this call has, besides those of `lease.time_left`; a program that is not expected to end within
            them is not started, and its jobs are left for a later call. Ready programs are expected to take as long as
            those before them did on average, and a group is begun as a whole or not at all.

    Returns:
        the number of jobs that failed; stderr names each, and the others are measured all the same.

    Raises:
        BadInput: a table cannot be written, another process measures there, or nothing was measured.
        LeftForLater: the time of the environment's lease was too short for all; the results so far are in the store.
    """
    left = time_left()
    store.check()
    with store.alone(), ended_by_sigterm():
        call = _Call(jobs, store, again, list(cards), _room(device), min(seconds, left))
        try:
            call.work()
        finally:  # what was measured before an interruption counts
            store.collect()
    if call.late and left < seconds:
        of = sum(job.rounds for job in jobs)
        raise LeftForLater(store.out, f"{call.late} of {of} results are left for a later call")
    store.tell()
    return len(call.failed)


class _Program:
    """The jobs that one program measures, and the rounds of them that are still missing."""

    def __init__(self, missing: Iterable[tuple[Job, int]]) -> None:
        self.missing = list(missing)
        self.jobs = list(dict.fromkeys(job for job, _ in self.missing))
        self.need = self.jobs[0].need
        self.command = [*self.jobs[0].command, *(job.word for job in self.jobs if job.word)]
        self.gib = max(job.gib for job in self.jobs)
        self.limit = sum(job.limit for job in self.jobs)
        self.expected = sum(job.expected for job in self.jobs)
        self.rounds = sorted({number for _, number in self.missing})
        self.group = self.jobs[0].group if self.rounds[-1] > 1 else ""


def _programs(missing: Iterable[tuple[Job, int]]) -> list[_Program]:
    """Groups missing rounds into the programs that measure them, in the order of their first jobs."""
    by_command: dict[tuple[tuple[str, ...], Need], list[tuple[Job, int]]] = {}
    for job, number in missing:
        by_command.setdefault((job.command, job.need), []).append((job, number))
    return [_Program(group) for group in by_command.values()]


@dataclass
class _Running:
    """A program's process, the file of its output and, of a ready program, the socket that it waits at."""

    program: _Program
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    first: int  # byte of its output
    until: float
    channel: socket.socket | None = None
    is_ready: bool = False
    has_gone: bool = False
    late: bool = False
    since: float = field(default_factory=time.monotonic)  # it was started, or last told to go

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def give_up(self) -> None:
        """Ends the process if its time is over."""
        if time.monotonic() > self.until and not self.has_ended:
            self.late = True
            self.tell_to_end()
            self.wait(GRACE)

    def tell_to_end(self) -> None:
        """Kills a ready program, which starts none; gives any other the time to end those that it started."""
        if self.program.need is Need.READY:
            self.process.kill()
        else:
            self.process.terminate()

    def wait(self, seconds: float | None) -> None:
        """Waits for the process to end, and kills it after so many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def done(self) -> subprocess.CompletedProcess[str]:
        """Returns the process's exit status and its output."""
        if self.late:
            return subprocess.CompletedProcess([], programs.TIMED_OUT, f"it took more than {self.program.limit:g} s")
        self.printed.seek(self.first)
        said = self.printed.read().decode(errors="replace")
        return subprocess.CompletedProcess([], self.process.returncode, said)


@dataclass
class _Call:
    """One call of `run`."""

    jobs: Sequence[Job]
    store: Store
    again: bool
    cards: Sequence[str | None]
    room: float
    seconds: float
    failed: set[str] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)
    slowness: float = 1.0  # the largest ratio of the time that a queued program took to the expected one
    longest: float = 0.0  # that a program took of which nothing was expected
    waves: list[tuple[float, int]] = field(default_factory=list)  # the time that each wave took, and its programs
    measured: int = 0
    left: int = 0
    late: int = 0  # results that were left for a later call

    def work(self) -> None:
        """Measures the missing rounds."""
        missing = []
        for job in self.jobs:
            if self.again:
                self.store.remove_beyond(job.key, job.rounds)
            for number in range(1, job.rounds + 1):
                if self.again or self.store.lacks(job.key, number):
                    missing.append((job, number))
                else:
                    self._say(job, number, "there already")
        self.left = len(missing)
        for need, batch in itertools.groupby(_programs(missing), key=lambda program: program.need):
            if need is Need.READY:
                self._waves(list(batch))
            else:
                self._queue(list(batch), self.cards if need is Need.QUEUE else (None,))

    # processes

    def _start(self, program: _Program, card: str | None = None) -> _Running:
        job = program.jobs[0]
        for measured, number in program.missing:
            self.store.remove(measured.key, number)
        environment = {name: value for name, value in os.environ.items() if name != HARNESS}
        ours, theirs = socket.socketpair() if program.need is Need.READY else (None, None)
        printed = self.store.log(job.key) if program.need is Need.QUEUE else _file()
        if ours is not None:
            environment[HARNESS] = "ready"
        if program.need is Need.QUEUE:
            environment["PYTHONUNBUFFERED"] = "1"
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(self.cards))))
            if card is not None:
                environment["CUDA_VISIBLE_DEVICES"] = card
            self._say(job, 1, "begun" if card is None else f"begun on GPU {card}")
        first = printed.seek(0, os.SEEK_END)
        process = programs.start(
            program.command, subprocess.DEVNULL if theirs is None else theirs.fileno(), printed, environment
        )
        if theirs is not None:
            theirs.close()  # the program's side: only then does ours show its end
        return _Running(program, process, printed, first, time.monotonic() + program.limit, ours)

    @contextlib.contextmanager
    def _ended(self, running: Sequence[_Running] | dict[str | None, _Running]) -> Iterator[None]:
        """On leaving, ends the programs that still run, waits for them and takes their results."""
        try:
            yield
        finally:
            started = list(running.values() if isinstance(running, dict) else running)
            for run in started:
                if run.channel is not None:
                    run.channel.close()
                run.tell_to_end()
            for run in started:
                run.wait(None if run.program.need is Need.QUEUE else GRACE)
                self._take(run)
                run.printed.close()

    # needs

    def _waves(self, waiting: list[_Program]) -> None:
        """Runs ready programs, as many at once as memory allows: a group, or programs of none up to a core each."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        while waiting:
            wave = [waiting.pop(0)]
            while waiting and waiting[0].group == wave[0].group and (wave[0].group or len(wave) < cores):
                memory = sum(program.gib for program in (*wave, waiting[0]))
                if memory > self.room or math.isinf(memory):
                    break
                wave.append(waiting.pop(0))
            late = self._late(wave)
            self._leave(late)
            if wave := [program for program in wave if program not in late]:
                began = time.monotonic()
                waiting[:0] = self._wave(wave, cores)
                self.waves.append((time.monotonic() - began, len(wave)))

    def _wave(self, wave: Sequence[_Program], cores: int) -> list[_Program]:
        """Prepares programs, then lets them go one at a time; returns programs for the rounds behind a failure."""
        running: list[_Running] = []
        again: list[_Program] = []
        to_start = list(wave)
        with self._ended(running):
            while True:
                preparing = [run for run in running if not run.is_ready and not run.has_ended]
                while to_start and len(preparing) < cores:
                    running.append(self._start(to_start.pop(0)))
                    preparing.append(running[-1])
                if not preparing:
                    break
                self._hear(preparing)
            for run in [run for run in running if not run.is_ready]:
                running.remove(run)
                again += self._finish(run)
            for number in sorted({number for program in wave for number in program.rounds}):
                for run in [run for run in running if number in run.program.rounds]:
                    assert run.channel is not None
                    last = number == run.program.rounds[-1]
                    run.is_ready, run.has_gone = False, True
                    run.since = time.monotonic()
                    run.until = run.since + run.program.limit
                    with contextlib.suppress(OSError):  # it has just ended
                        run.channel.sendall(f"{number}\n".encode())
                        if last:
                            run.channel.shutdown(socket.SHUT_WR)
                    while not run.has_ended and (last or not run.is_ready):
                        self._hear([run])
                    if run.has_ended:
                        running.remove(run)
                        again += self._finish(run)
                    else:
                        self._take(run)
                        self.store.collect()
        return again

    def _hear(self, running: Sequence[_Running]) -> None:
        """Waits a moment for one of the programs to be ready or to end."""
        by_channel = {run.channel: run for run in running if run.channel is not None}
        heard, _, _ = select.select([*by_channel], [], [], POLL)
        for channel in heard:
            with contextlib.suppress(OSError):
                said = channel.recv(64)
                by_channel[channel].is_ready |= bool(said)
                if not said:  # it has closed its side and is about to end
                    time.sleep(POLL)
        for run in running:
            run.give_up()

    def _queue(self, waiting: list[_Program], cards: Sequence[str | None]) -> None:
        """Runs programs in their order, one on each card."""
        running: dict[str | None, _Running] = {}
        with self._ended(running):
            while waiting or running:
                waiting = self._in_time(waiting)
                for card in cards:
                    if card not in running and waiting:
                        running[card] = self._start(waiting.pop(0), card)
                time.sleep(POLL)
                for card, run in list(running.items()):
                    run.give_up()
                    if run.has_ended:
                        took = time.monotonic() - run.since
                        if expected := run.program.expected:
                            self.slowness = max(self.slowness, took / expected)
                        else:
                            self.longest = max(self.longest, took)
                        del running[card]
                        waiting[:0] = self._finish(run)

    def _in_time(self, waiting: list[_Program]) -> list[_Program]:
        """Returns the programs that are expected to end in time; the others are left for a later call."""
        left = self.began + self.seconds - time.monotonic()
        late = [program for program in waiting if (program.expected * self.slowness or self.longest) > left]
        self._leave(late)
        return [program for program in waiting if program not in late]

    def _late(self, wave: Sequence[_Program]) -> Sequence[_Program]:
        """Returns the programs of a wave that are not expected to end in time: its last ones, or all of a group."""
        left = self.began + self.seconds - time.monotonic()
        each = sum(took for took, _ in self.waves) / max(1, sum(number for _, number in self.waves))
        if len(wave) * each <= left:
            return []
        return wave if wave[0].group else wave[max(0, int(left / each) if each else 0) :]

    def _leave(self, programs: Sequence[_Program]) -> None:
        for job, number in (pair for program in programs for pair in program.missing):
            self.left -= 1
            self.late += 1
            self._say(job, number, "left for a later call")

    # results

    def _take(self, run: _Running) -> None:
        """Takes the results that a program has left so far, and prints a line for each."""
        for job, number in list(run.program.missing):
            if self.store.stamp(job.key, number, job.named(number)):
                run.program.missing.remove((job, number))
                self.measured += 1
                self.left -= 1
                report = job.describe(self.store.read(job.key, number) or {})
                taken = [f"{time.monotonic() - run.since:.0f} s"] if len(run.program.jobs) == 1 else []
                then = ", ".join(taken + self._estimate())
                self._say(job, number, f"{report} ({then})" if then else report)

    def _finish(self, run: _Running) -> list[_Program]:
        """Takes an ended program's results and reports its failure; returns programs for the rounds behind that."""
        done = run.done()
        run.printed.close()
        if run.channel is not None:
            run.channel.close()
        self._take(run)
        behind: list[tuple[Job, int]] = []
        if missing := run.program.missing:
            job, number = min(missing, key=lambda pair: pair[1])  # a round of every job comes before the next round
            self._fail(job, number, job.problem(done) or "it left no result")
            behind = [(later, its_round) for later, its_round in missing if later != job]
            self.left -= len(missing) - len(behind)
            if run.channel is not None and not run.has_gone:  # it can measure none of its jobs
                for later in dict.fromkeys(later for later, _ in behind):
                    self._fail(later, 1, job.problem(done))
                self.left -= len(behind)
                behind = []
        self.store.collect()
        return _programs(behind)

    def _fail(self, job: Job, number: int, problem: str) -> None:
        self.failed.add(job.key)
        self.store.failed[job.named(number)] = problem
        place = self.jobs.index(job) + 1
        print(f"medddpm: [{place}/{len(self.jobs)}] {job.named(number)}: {problem}", file=sys.stderr, flush=True)

    def _say(self, job: Job, number: int, message: str) -> None:
        print(f"[{self.jobs.index(job) + 1}/{len(self.jobs)}] {job.named(number)}: {message}", flush=True)

    def _estimate(self) -> list[str]:
        """Estimates the time left from the results so far, in a list; empty at the end."""
        if not self.left:
            return []
        seconds = (time.monotonic() - self.began) / self.measured * self.left
        return [f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"]


def _file() -> IO[bytes]:
    """Opens a file without a name, which ends with this process."""
    return cast(IO[bytes], tempfile.TemporaryFile())


def _room(device: str) -> float:
    """Returns two thirds of the card's memory in GiB, the rest being a timed program's; infinite on a CPU."""
    import torch  # not for a dry run, which can do without

    if device == "cpu" or not torch.cuda.is_available():
        return math.inf
    index = torch.device("cuda" if device == "auto" else device).index
    return torch.cuda.get_device_properties(index or 0).total_memory / GIB * 2 / 3
