"""The one exception a user sees: a line that names the file, the fault and the remedy."""

from __future__ import annotations

import os


class BadInput(ValueError):
    """An error that the user can correct.

    `str()` of it is one line, ``path: problem; remedy``. The command prints that line and exits with 1.

    Args:
        path: the file or folder at fault, or the option where no file is.
        problem: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, remedy: str) -> None:
        self.path = os.fspath(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(" ".join(f"{self.path}: {problem}; {remedy}".split()))

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # A data loader's worker sends it to the parent pickled; the default would lose the arguments.
        return BadInput, (self.path, self.problem, self.remedy)
