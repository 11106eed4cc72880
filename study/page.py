"""Opens a notebook: checks its parameters, and chooses the folders that it writes to."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure.machine import gpu_folder_name
from medddpm.measure.tables import gpu_folders
from medddpm.runtime.files import named_failures, read_json
from study.book import find_root


@dataclass(frozen=True)
class Page:
    """The folders and the card of an opened notebook.

    Args:
        root: the book's repository, whose records are read.
        figures: the folder for figures: the repository's figures/, unless `why` says otherwise.
        runs: the folder for runs: the repository's runs/, or one beside a copy that lies elsewhere.
        gpu: the card that is shown: the parameter `gpu`, or this machine's card if it measures.
        why: the difference from the book's own run; empty if there is none.
        measured: whether this run measures anew the subject of the sentences.
    """

    root: Path
    figures: Path
    runs: Path
    gpu: str
    why: str
    measured: bool = False

    @contextlib.contextmanager
    def check(self, sentence: str) -> Iterator[None]:
        """Checks a sentence of the text by the assertions in the block.

        In the book's own run a failed assertion stops the notebook with the sentence as its error. In a reader's run
        the sentence need not hold, and the records may lack its rows: the sentence is printed, in one line, and the
        notebook goes on.
        """
        try:
            yield
        except (AssertionError, LookupError) as error:
            if not self.why and not self.measured:
                raise AssertionError(f"{sentence} {error}".rstrip()) from error
            print(f"not so here ({self.why or f'the {self.gpu}'}): {sentence}")


def open_page(name: str, measure: bool = False, needs_gpu: bool = True, **parameters: object) -> Page:
    """Checks a notebook's parameters and chooses its folders; a notebook calls it first.

    The committed figures are drawn with the parameters that the notebook declares in its metadata, from notebooks/. Any
    other run leaves them alone: with other parameters, or under another name, figures go to runs/figures/; a copy
    elsewhere writes to figures/ and runs/ beside itself. There `Page.check` stops nothing.

    Args:
        name: the notebook's file without its suffix.
        measure: whether it measures anew and writes records.
        needs_gpu: whether measuring takes a GPU.
        parameters: the values of the notebook's other parameters that a figure depends on.

    Raises:
        BadInput: a parameter has another type than the declared one, is too small or names a card without records, or
            `measure` cannot be answered here.
    """
    root, here = find_root(), Path.cwd().resolve()
    declared = _declared(root, name)
    for parameter, value in (("measure", measure), *parameters.items()):
        _check_value(parameter, value, declared.get(parameter, False))
    card = str(parameters.get("gpu", ""))
    if "gpu" in parameters and not measure:
        one_of([folder.name for folder in gpu_folders(root)], "gpu", card)
    if measure and needs_gpu:
        card = _card_here()
        parameters = {k: card if k == "gpu" else v for k, v in parameters.items()}
    changed = ", ".join(f"{k} = {v!r}" for k, v in parameters.items() if v != declared[k])
    copied = here != root / "notebooks"
    renamed = Path(os.environ.get("JPY_SESSION_NAME", "")).name  # JupyterLab's name of the open notebook
    why = changed
    if copied:
        why = f"a copy of {name} outside the book's notebooks/"
    elif renamed.endswith(".ipynb") and renamed != f"{name}.ipynb":
        why = f"a copy of {name} named {renamed}"
    if measure and (why != changed or [k for k in parameters if k != "gpu" and parameters[k] != declared[k]]):
        how = "python -m study book --measure"
        remedy = f"set measure = False, or run notebooks/{name}.ipynb with its own parameters: {how}"
        raise BadInput("measure = True", f"would make the book's records from another run ({why})", remedy)
    home = here if copied else root
    figures = home / "figures" if copied or not why else root / "runs" / "figures"
    page = Page(root, figures, home / "runs", card, why, measure)
    if why:
        with named_failures(figures):
            figures.mkdir(parents=True, exist_ok=True)
        print(f"{why}: figures go to {os.path.relpath(figures, here)}, and the book's stay as they are")
    return page


def one_of(values: Iterable[str], parameter: str, value: str, things: str = "records") -> str:
    """Returns the value of a notebook's parameter if there are records of it.

    Args:
        values: the values with records.
        parameter: its name.
        value: the parameter's value.
        things: the error's word for records.

    Raises:
        BadInput: `value` is not among `values`; the message names the parameter and them.
    """
    present = list(values)
    if value not in present:
        there = ", ".join(present) or "none"
        problem = f"no {things} of {value}" if value else "is empty"
        raise BadInput(f"{parameter} = {value!r}", problem, f"there are: {there}")
    return value


def none_failed(failed: int) -> None:
    """Ends a notebook whose measurement is incomplete.

    Args:
        failed: the number of failed runs; each was named when it failed.

    Raises:
        BadInput: a run failed.
    """
    if failed:
        raise BadInput(
            "measure = True", f"{failed} of the runs failed, as told above", "run it again: it goes on there"
        )


def _declared(root: Path, name: str) -> dict[str, Any]:
    path = root / "notebooks" / f"{name}.ipynb"
    declared = read_json(path, "restore it (git checkout)")["metadata"].get("medddpm", {})
    return dict(declared.get("parameters", {}))


def _check_value(parameter: str, value: object, declared: object) -> None:
    if type(value) is not type(declared):
        expected = type(declared).__name__
        raise BadInput(f"{parameter} = {value!r}", f"is not of type {expected}", f"give such a value, as {declared!r}")
    if type(declared) is int and isinstance(value, int) and value < min(declared, 1):
        raise BadInput(f"{parameter} = {value!r}", "is too small", f"give {min(declared, 1)} or more")
    if isinstance(value, float) and not 0 < value < math.inf:
        raise BadInput(f"{parameter} = {value!r}", "is no number above 0", f"give one, as {declared!r}")


def _card_here() -> str:
    """Returns the records folder of this machine's GPU."""
    import torch

    if not torch.cuda.is_available():
        remedy = "set it to False: figures are then drawn from figures/records"
        raise BadInput("measure = True", "measures on an NVIDIA GPU, and PyTorch finds none here", remedy)
    return gpu_folder_name(torch.cuda.get_device_name())
