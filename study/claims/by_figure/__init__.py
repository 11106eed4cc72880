"""The paper's claims, one function each: `p017` judges P017, in the file of its figure, table or section.

A docstring repeats the paper's row. The functions of measured numbers and kernels' names take a `Case`, those of Table
1 a `PropertyCase`, and those of Section 3 our own settings, window and versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from study.claims.by_figure import (
    abstract,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    fig10,
    fig11,
    fig12,
    fig13,
    section3,
    table1,
    table2,
)
from study.claims.case import Case
from study.claims.verdicts import Finding


def functions_of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """Returns the functions of claims that some modules define, by the claim's id."""
    return {
        name.upper(): function
        for module in modules
        for name, function in vars(module).items()
        if re.fullmatch(r"p\d{3}", name) and function.__module__ == module.__name__
    }


PROFILED: Mapping[str, Callable[[Case], Finding]] = functions_of(
    abstract, table2, fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig12, fig13
)
ALL: Mapping[str, Callable[..., Finding | None]] = {**functions_of(section3, table1), **PROFILED}
