"""What a user sees of an error: a line that names the file, or the argument, with the fault and the remedy."""

from __future__ import annotations

import os
import re

LONGEST = 300  # characters of a problem or a remedy that are shown


class BadInput(ValueError):
    """An error that the user can correct.

    `str()` of it is one line, ``path: problem; remedy``. The command prints that line and exits with 1. What a file
    says goes into it clipped and escaped: it neither floods a terminal nor sends it control characters.

    Args:
        path: the file or folder at fault, or the option where no file is.
        problem: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, remedy: str) -> None:
        self.path = os.fspath(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{printable(self.path)}: {_clipped(problem)}; {_clipped(remedy)}")

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython and Jupyter show in place of a traceback."""
        return [str(self)]

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # A data loader's worker sends it to the parent pickled; the default would lose the arguments.
        return BadInput, (self.path, self.problem, self.remedy)


class BadArgument(BadInput):
    """A function's argument at fault: its own name is `path`. The command shows it as `option`."""

    @property
    def option(self) -> BadInput:
        """The same of the command's option of that name."""
        return BadInput(f"--{self.path.replace('_', '-')}", self.problem, self.remedy)

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return BadArgument, (self.path, self.problem, self.remedy)


def first_line(error: BaseException) -> str:
    """The first line of what an error says; of one that says nothing its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def printable(text: str) -> str:
    """`text` as a single line for a terminal: whitespace as blanks, anything else that does not print escaped."""
    line = re.sub(r"[\t\n\r\f\v]", " ", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _clipped(text: str) -> str:
    half = LONGEST // 2 - 1
    return printable(text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}")
