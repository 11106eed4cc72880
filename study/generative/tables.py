"""Reads the records of Figure 2."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medddpm.measure.tables import of_every_machine
from study.generative.results import NAME
from study.records import schemas


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Returns every machine's record (schema `GENERATIVE`) in the repository at `root`, by its folder's name.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    return of_every_machine(root, NAME, schemas.GENERATIVE, notebook="04")
