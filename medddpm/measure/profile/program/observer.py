"""Counts the steps of a program that runs anywhere, times some, and has others recorded.

A step begins and ends with a mark of the program (`medddpm.measure.step()`, an NVTX range) or, where there are no
marks, with the return of an optimizer's call: a step is then what happens from one call's end to the next one's.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMED, TIMED_SECONDS = 5, 60.0  # steps, and no further one after so long: choices
TRACED = 2  # consecutive steps, of which the second is the trace and the first tells whether steps differ
RECENT = 16  # calls of each optimizer by which the one that ends a step is chosen: a choice


@dataclass(frozen=True)
class Order:
    """What is wanted of the program, as the environment says it.

    Args:
        folder: of the answers: `status.json`, `trace.json`, and a file for each process that makes steps.
        kind: "trace", or "counters" where ncu profiles what lies between the profiler's marks.
        warmup: steps before the first that is timed or counted.
        to_the_end: whether the program runs on after that.
        nvtx: name of the program's NVTX range that is a step; empty without one.
        seconds: after so long ncu profiles no further launch; the step goes on without it.
    """

    folder: Path
    kind: str
    warmup: int
    to_the_end: bool = False
    nvtx: str = ""
    seconds: float = math.inf

    def stages(self) -> list[tuple[str, int]]:
        """Returns the stages that the program goes through, each with its number of steps."""
        if self.kind == "counters":
            return [("warm-up", self.warmup), ("counted", 1)]
        # CUPTI loses launches while it starts up, for which one step is given.
        return [("warm-up", self.warmup), ("timed", TIMED), ("starting", 1), ("traced", TRACED)]

    @property
    def steps(self) -> int:
        """The number of whole steps that are needed at most."""
        return sum(steps for _, steps in self.stages())


class Observer:
    """Follows the steps of one process.

    Args:
        order: what is wanted.
        recorder: records; a `hooked.Recorder`.
        identity: returns rank and number of processes, once the program makes steps.

    Attributes:
        is_over: whether all was recorded.
        marked: whether marks tell the steps, and calls of optimizers no longer do.
    """

    def __init__(self, order: Order, recorder: Any, identity: Callable[[], tuple[int, int]]) -> None:
        self.order, self.recorder, self.identity = order, recorder, identity
        self._stages = order.stages()
        self.marked, self.is_over, self.leads = False, False, False
        self.by, self.problem = "", ""
        self._pid, self._thread, self._rank = 0, 0, 0
        self._stage, self._in_stage, self._seen, self._is_open = 0, 0, 0, False
        self._recent: deque[int] = deque()
        self._calls: Counter[int] = Counter()  # of each optimizer, among the recent ones
        self._main = 0
        self._laps: list[tuple[Any, Any]] = []
        self._loads: list[float] = []
        self._timed_since = 0.0
        self._loading, self._has_loaded, self._depth, self._ended = 0.0, False, 0, 0.0
        self._begun: Any = None
        self._range: Callable[[], None] | None = None
        self._phase: Callable[[], None] | None = None
        self._phase_name = ""

    # what the program does

    def stepped(self, optimizer: object, by: str) -> None:
        """Takes the return of an optimizer's call as the end of a step, if that optimizer ends steps.

        Of several optimizers one that is called much less often than others does, or else the first one: a step of a
        GAN holds updates of both networks. When another one does than before, counting begins anew.

        Args:
            optimizer: the optimizer.
            by: how the step is told, in words.
        """
        if self.marked or self.is_over:
            return
        called = id(optimizer)
        self._recent.append(called)
        self._calls[called] += 1
        while len(self._recent) > RECENT * len(self._calls):
            self._calls[self._recent.popleft()] -= 1
        often, rarely = self._calls[self._main], self._calls[called]
        if not self._is_recording and (not often or (rarely + 2 <= often and 1.5 * rarely < often)):
            self._main, self.by = called, by
            self._begin_anew()
        if called == self._main:
            self.end()
            self.begin()

    def skipped(self, optimizer: object) -> None:
        """Takes an update that a gradient scaler left out as the end of a step that does not count."""
        if self._is_open and not self.marked and not self._is_recording and id(optimizer) == self._main:
            self.abandon()
            self.begin()

    def begin(self) -> bool:
        """Begins a step; returns whether there was none open."""
        if self.is_over or self._is_open:
            return False
        if self._pid != os.getpid():  # a fork of a process that had none
            self._pid = os.getpid()
            self._claim()
        self._thread = threading.get_ident()
        now = time.perf_counter()
        while self._in_stage >= self._length():
            self._stage, self._in_stage = self._stage + 1, 0
            self._timed_since = now
            if self.leads:
                self._try(lambda: self.recorder.enter(self._name))
                self.write()
        self._is_open, self._loading = True, 0.0
        if self.marked and self._ended:
            self._loading, self._has_loaded = 1e3 * (now - self._ended), True
        if self.leads and self._name == "timed":
            self._begun = self.recorder.now()
        elif self.leads and self._is_recording:
            self._range = self.recorder.mark(STEP) if self._name == "traced" else None
            self.phase("forward")
        return True

    def abandon(self) -> None:
        """Ends a step that does not count."""
        self.phase("")
        self._is_open = False

    def end(self) -> None:
        """Ends a step; after the last one that was wanted, ends the program too, unless it is to run on.

        Raises:
            SystemExit: all was recorded.
        """
        if self.is_over or not self._is_open:
            return
        self._is_open = False
        self._seen += 1
        self._in_stage += 1
        self.phase("")
        if self._range:
            self._range()
            self._range = None
        if self._name == "timed":
            if self.leads:
                self._laps.append((self._begun, self.recorder.now()))
                self._loads.append(self._loading)
            if time.perf_counter() - self._timed_since > TIMED_SECONDS:
                self._in_stage = TIMED
        self._ended = time.perf_counter()
        if self._stage == len(self._stages) - 1 and self._in_stage >= self._length():
            self.is_over = True
            if self.leads:
                self._try(self.recorder.finish)
                self.write()
            if not self.order.to_the_end and (self.leads or self._rank):
                raise SystemExit(0)

    def phase(self, name: str) -> str:
        """Begins a phase of the step and ends the one before, where steps are recorded; returns the former one's name.

        Args:
            name: one of `trace.PHASES`; empty begins none.
        """
        before = self._phase_name
        if self._thread != threading.get_ident():  # as of a loader's own threads
            return before
        if self._phase:
            self._phase()
        can = name and self._is_open and self.leads and self._is_recording and self._name != "starting"
        self._phase = self.recorder.mark(name) if can else None
        self._phase_name = name if can else ""
        return before

    @property
    def has_phase(self) -> bool:
        """True if phases are recorded now."""
        return bool(self._phase_name)

    def load(self, work: Callable[[], Any]) -> Any:
        """Does the work of a data loader as the phase "load", and adds up its time."""
        if self.is_over or self._thread != threading.get_ident() or self._depth:
            return work()
        began, before = time.perf_counter(), self.phase("load")
        self._depth += 1
        try:
            return work()
        finally:
            self._depth -= 1
            self.phase(before)
            self._loading += 1e3 * (time.perf_counter() - began)
            self._has_loaded = True

    # what the profiling process learns

    def write(self) -> None:
        """Writes what is known so far, if this process leads."""
        if not self.leads or self._pid != os.getpid() or not self.order.folder.is_dir():
            return
        laps: list[float] = []
        self._try(lambda: laps.extend(self.recorder.between(*lap) for lap in self._laps))
        told = {
            "is_over": self.is_over and not self.problem,
            "problem": self.problem,
            "steps_seen": self._seen,
            "by": self.by,
            "step_ms": [round(lap, 4) for lap in laps],
            "loading_ms": [round(load, 4) for load in self._loads] if self._has_loaded else None,
        }
        path = self.order.folder / "status.json"
        path.with_suffix(".new").write_text(json.dumps(told), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def _claim(self) -> None:
        """Notes that this process makes steps; the first of rank 0 leads, and is recorded."""
        self._rank, world = self.identity()
        self.leads = False
        told = {"pid": self._pid, "rank": self._rank, "world": world}
        (self.order.folder / f"process-{self._pid}.json").write_text(json.dumps(told), encoding="utf-8")
        if self._rank:
            return
        try:
            os.close(os.open(self.order.folder / "leader", os.O_CREAT | os.O_EXCL))
            self.leads = True
        except FileExistsError:
            pass

    def _begin_anew(self) -> None:
        self._stage, self._in_stage, self._seen, self._is_open = 0, 0, 0, False
        self._laps, self._loads, self._ended = [], [], 0.0

    def told_by_marks(self, by: str) -> None:
        """Takes marks, and no longer calls of optimizers, as steps."""
        if not self.marked and not self._is_recording:
            self.marked, self.by = True, by
            self._begin_anew()

    @property
    def _name(self) -> str:
        return self._stages[self._stage][0]

    @property
    def _is_recording(self) -> bool:
        return self._name in ("starting", "traced", "counted")

    def _length(self) -> int:
        return self._stages[self._stage][1]

    def _try(self, work: Callable[[], object]) -> None:
        """Does what may fail for a reason of the program's: it runs on, and the reason is told."""
        try:
            work()
        except Exception as error:
            self.problem = self.problem or f"{type(error).__name__}: {error}"


STEP = "medddpm step"
"""The host's range of a traced step."""
