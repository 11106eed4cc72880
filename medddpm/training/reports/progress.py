"""The progress of a training run: a bar, or a line a minute where there is no terminal, and TensorBoard's curves."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from medddpm.errors import BadInput
from medddpm.fast.reports import bars, log, report
from medddpm.training.reports.loss_table import NAME, LossTable
from medddpm.training.reports.watch import Change, Watch
from medddpm.training.run_folder import newest_up_to, remaining_weights

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


EVERY = 60.0  # seconds between lines
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"  # never seconds a step


class Report:
    """The progress bar, the TensorBoard log and the table of losses of a run.

    It says when the training is lost, and refuses a loss that is not finite. A log or table that cannot be written, for
    a full disk or a file in its place, is given up with a warning: it costs no training.

    Args:
        out: the run's folder.
        name: the bar's label.
        first: the steps made before.
        steps: the steps in all.
        volumes: in a step, of all processes.
        shown: shows steps a second, volumes a second, the time left and the loss.
        bar: shows them in a bar on a terminal; elsewhere, as in a batch system's log, they are a line a minute.
        logged: writes the log, to ``out/tensorboard``, and the table (`LossTable`).
        watch: follows the losses, and has read those of the steps before; None follows none.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        first: int,
        steps: int,
        volumes: int = 1,
        *,
        shown: bool,
        bar: bool = True,
        logged: bool,
        watch: Watch | None = None,
    ) -> None:
        self._out = out
        self._watch, self._resumed = watch, first
        self._log: SummaryWriter | None = None
        self._table: LossTable | None = None
        if logged:
            self._open(first)
            with self._tabling():
                self._table = LossTable(out, first)
        self._name, self._steps, self._volumes = name, steps, volumes
        has_bar = shown and bar and sys.stderr.isatty()
        self._bar = tqdm(
            total=steps,
            initial=first,
            desc=name,
            unit="step",
            bar_format=BAR,
            disable=not has_bar,
            **bars(),
        )
        self._lines = shown and not has_bar
        self._last_line = self._begun = (time.monotonic(), first)  # its moment and its step

    def __enter__(self) -> Report:
        # The writer's thread hands its error to the next call, and would print it as well.
        self._hook, threading.excepthook = threading.excepthook, self._unless_written
        if self._watch and self._watch.lost:  # since before the run was resumed
            self._tell(self._watch.lost)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        if self._log:
            with self._writing(self._log) as written:
                written.close()
        threading.excepthook = self._hook

    def _unless_written(self, failure: Any) -> None:
        if not isinstance(failure.exc_value, OSError):
            self._hook(failure)

    def _open(self, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and needed only here

        try:
            # The steps that a killed run logged after its last checkpoint are made again: the log drops them.
            self._log = SummaryWriter(str(self._out / "tensorboard"), purge_step=first + 1)
        except OSError as error:
            self._give_up((error.strerror or "it cannot be written").lower())
        except UnicodeEncodeError:  # TensorBoard takes no other names
            self._give_up("its name is not in UTF-8")

    def _give_up(self, problem: str) -> None:
        self._log = None
        log.warning(str(BadInput(self._out / "tensorboard", problem, "the training goes on without its log")))

    @contextlib.contextmanager
    def _writing(self, written: SummaryWriter) -> Iterator[SummaryWriter]:
        try:
            yield written
        except OSError as error:
            self._give_up((error.strerror or "it cannot be written").lower())

    def losses(self, losses: list[float], step: int) -> None:
        """Shows and logs the losses of the steps up to `step`.

        Raises:
            BadInput: a loss is not finite; says which checkpoint is kept, if one is.
        """
        rate = self._bar.format_dict["rate"] or self._rate(self._begun, step)
        self._bar.set_postfix_str(f"{rate * self._volumes:.3g}volume/s, loss={losses[-1]:.4f}", refresh=False)
        self._bar.update(len(losses))
        if self._lines and time.monotonic() - self._last_line[0] >= EVERY:
            report(self._line(step, losses[-1]))
            self._last_line = time.monotonic(), step
        if self._log:
            with self._writing(self._log) as written:
                for number, loss in enumerate(losses, start=step - len(losses) + 1):
                    written.add_scalar("loss", loss, number)
                written.add_scalar("steps_per_second", rate, step)
        if not np.isfinite(losses).all():
            raise BadInput(
                self._out,
                f"the loss is no longer a number at step {step}",
                f"lower --learning-rate, or run `medddpm check` over the data; {remaining_weights(self._out)}",
            )
        for change in self._watch.read(losses) if self._watch else ():
            self._tell(change)

    def _tell(self, change: Change) -> None:
        """Says, in a line and in the log, that the training is lost and which checkpoint is from before; or recovered.

        The training goes on: a median can err, some losses come back by themselves, and whoever does not want to wait
        has Ctrl-C.
        """
        if change.problem:
            before = newest_up_to(self._out, change.before)
            lower = "with a lower --learning-rate or another --seed"
            remedy = f"to give it up, start anew {lower}; no checkpoint is from before"
            if before:
                remedy = f"{before.name} is from before and is kept: start anew from it by --init, {lower}"
            line = str(BadInput(self._out, change.problem, f"the training goes on; {remedy}"))
            log.warning(line)
        else:
            line = f"{self._out}: at step {change.step} the loss has come down again, to {change.median:.3g}"
            report(line)
        if self._log:
            with self._writing(self._log) as written:
                written.add_text("lost", line, change.step)
        if change.problem and change.step > self._resumed:
            self._add(change.step, "lost", change.median)

    def interim(self, losses: Sequence[float], step: int, held_out: float | None = None) -> None:
        """Adds rows to the table of losses, and the held-out loss to the log.

        Args:
            losses: of all steps up to `step`.
            step: the last one made.
            held_out: the loss of the held-out volumes, if there are any.
        """
        if self._table and step > self._table.step:
            self._add(step, "training", float(np.mean(losses[self._table.step : step])))
        if held_out is not None:
            self._add(step, "held-out", held_out)
            if self._log:
                with self._writing(self._log) as written:
                    written.add_scalar("held_out_loss", held_out, step)

    def sample(self, sample: Tensor, step: int) -> None:
        """Adds the middle axial slice of a sample (C, D, W, H) in [-1, 1] to the log, its channels side by side."""
        if self._log:
            slices = sample[:, sample.shape[1] // 2].flip(1)  # in a head the last row, which is in front, goes on top
            with self._writing(self._log) as written:
                written.add_image("sample", torch.cat([*slices], 1)[None].add(1).div(2).clamp(0, 1), step)

    def _add(self, step: int, part: str, loss: float) -> None:
        with self._tabling():
            if self._table:
                self._table.add(step, part, loss)

    @contextlib.contextmanager
    def _tabling(self) -> Iterator[None]:
        try:
            yield
        except BadInput as error:
            self._table = None
            log.warning(str(BadInput(self._out / NAME, error.problem, "the training goes on without this table")))

    def needed(self, checkpoints: Sequence[int]) -> set[int]:
        """Returns which checkpoints stay whatever their number; see `Watch.needed`."""
        return self._watch.needed(checkpoints) if self._watch else set()

    def _line(self, step: int, loss: float) -> str:
        rate = self._rate(self._last_line, step)
        left = tqdm.format_interval((self._steps - step) / rate) if rate else "?"
        return (
            f"{self._name}: step {step} of {self._steps}, {rate:.3g} steps/s, {rate * self._volumes:.3g} volumes/s, "
            f"{left} left, loss {loss:.4f}"
        )

    @staticmethod
    def _rate(since: tuple[float, int], step: int) -> float:
        """Returns the steps a second since a moment and its step."""
        return (step - since[1]) / max(time.monotonic() - since[0], 1e-9)
