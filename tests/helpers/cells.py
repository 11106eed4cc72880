"""Runs a notebook's cells in an IPython of this process, with other parameters: quicker than a kernel of its own."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

import nbformat
from IPython.core.interactiveshell import InteractiveShell


def run_cells(path: Path, **parameters: object) -> tuple[str, BaseException | None]:
    """Runs the cells in the notebook's folder; returns their output, and the error that stopped them, if one did.

    Args:
        path: the notebook.
        parameters: assigned after its cell tagged `parameters`.
    """
    shell = InteractiveShell.instance(colors="nocolor")
    shell.reset(new_session=False)
    printed = io.StringIO()
    drawn_without_a_window = mock.patch.dict(os.environ, MPLBACKEND="agg")
    with contextlib.chdir(path.parent), drawn_without_a_window, contextlib.redirect_stdout(printed):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code":
                continue
            source = cell.source.replace("%matplotlib inline", "")
            if "parameters" in cell.metadata.get("tags", []):
                source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
            result = shell.run_cell(source)
            if error := result.error_before_exec or result.error_in_exec:
                return printed.getvalue(), error
    return printed.getvalue(), None
