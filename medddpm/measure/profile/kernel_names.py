"""Kernel names and launch shapes in one spelling: CUPTI (torch.profiler) and ncu write the same ones differently.

CUPTI: ``void at::native::foo<4, at::native::add<float> >(int, std::array<char*, 3ul>)``; ncu:
``void at::native::foo<(int)4, at::native::add<float>>(int, T2)``; either may leave out `void` or the arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pandas as pd


@functools.cache
def same_name(kernel: str) -> str:
    """Strips a name of what may differ: argument lists, casts, blanks, `void`, `const`, ``(anonymous namespace)``."""
    name = re.sub(r"\(instance (\d+)\)", r"#\1", kernel)  # ncu's [lambda(int) (instance 1)], CUPTI's {lambda(int)#1}
    name = name.replace("[lambda", "{lambda").replace("]", "}") if "[lambda" in name else name
    name = name.replace("<unnamed>", "").replace("`anonymous namespace'", "")
    while (shorter := re.sub(r"\([^()]*\)", "", name)) != name:
        name = shorter
    name = re.sub(r"\b(?:void|const)\b", " ", name)
    name = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", name))
    name = re.sub(r"\b(\d+)(?:u?l?l|u)\b", r"\1", name)  # 3ul
    name = re.sub(r"\s+", "", name)
    return re.sub(r"^::|(?<=[<,])::", "", re.sub(r"(?:::)+", "::", name))


@functools.cache
def function_name(kernel: str) -> str:
    """Returns the bare function: no namespace, no template arguments."""
    return same_name(kernel).partition("<")[0].rpartition("::")[2]


def dimensions(text: str) -> str:
    """Writes ``(64, 1, 1)``, ``64x1x1``, ``[64,1,1]`` or ``64`` as ``(64, 1, 1)``; empty stays empty."""
    sizes = re.findall(r"\d+", text)
    return f"({', '.join([*sizes, '1', '1'][:3])})" if sizes else ""


def launch_keys(table: pd.DataFrame, reduced: Callable[[str], str] = same_name) -> pd.Series[str]:
    """Returns a text for each row that is equal for equal launches, whichever tool recorded them.

    Args:
        table: columns kernel, grid and block; fills and copies have no shape.
        reduced: `same_name`, or `function_name` where names may differ in their template arguments.
    """
    # As objects: of an empty table pandas would make numbers.
    names = table["kernel"].map({name: reduced(name) for name in table["kernel"].unique()}).astype(object)
    for column in ("grid", "block"):
        shapes = table[column].fillna("")
        names = names + "|" + shapes.map({text: dimensions(text) for text in shapes.unique()}).astype(object)
    return names
