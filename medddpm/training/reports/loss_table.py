"""The table of a run's losses, losses.csv, which grows while the run trains."""

from __future__ import annotations

import re
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import check_kind, named_failures, read_whole, replacing

NAME = "losses.csv"
HEADER = "step,part,loss"
LARGEST = 2**26  # bytes: three million rows
_ROW = re.compile(r"(\d{1,18}),(training|held-out|lost),[\w.+-]+")


class LossTable:
    """A run's ``losses.csv``, with the columns step, part and loss. The parts are:

    - training: the mean loss of the steps since the part's previous row;
    - held-out: the loss of the held-out volumes (`medddpm.training.holdout.held_out_loss`);
    - lost: the median loss at which `medddpm.training.reports.watch.Watch` saw that the training is lost.

    A row is appended as soon as it is known, so that a killed run loses the last one at most.

    Args:
        out: the run's folder.
        step: the run goes on from there. Rows of later steps, which it makes again, and torn ones are removed.

    Attributes:
        step: of the newest row of the part "training"; 0 without one.

    Raises:
        BadInput: the file is another table, or cannot be read or written.
    """

    def __init__(self, out: Path, step: int) -> None:
        self._path, self.step = out / NAME, 0
        check_kind(self._path)
        if not self._path.exists():
            return
        with named_failures(self._path):
            text = read_whole(self._path, LARGEST, "remove it").decode(errors="replace")
        header, *lines = text.split("\n")
        if header != HEADER and text:
            raise BadInput(self._path, f"it does not begin with {HEADER}", "remove it")
        rows = [row for line in lines if (row := _ROW.fullmatch(line)) and int(row[1]) <= step]
        self.step = max((int(row[1]) for row in rows if row[2] == "training"), default=0)
        whole = "".join(f"{line}\n" for line in [HEADER, *(row[0] for row in rows)])
        if whole != text:
            with replacing(self._path) as temporary:
                temporary.write_text(whole, "utf-8")

    def add(self, step: int, part: str, loss: float) -> None:
        """Appends a row.

        Raises:
            BadInput: the disk is full, or the file cannot be written.
        """
        with named_failures(self._path), open(self._path, "a", encoding="utf-8") as stream:
            stream.write(("" if stream.tell() else f"{HEADER}\n") + f"{step},{part},{loss:.6g}\n")
        if part == "training":
            self.step = step
