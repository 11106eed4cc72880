"""The record of `make test-gpu` on each card: the GPU tests that passed, failed or were skipped.

pytest runs the tests and leaves an XML file; `python -m study.records.gpu_tests FILE` makes the card's record of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import gpu_folder_name, machine_meta
from medddpm.measure.tables import gpu_folders, read_meta, read_table, write_table
from study.records.schemas import GPU_TESTS

OUTCOMES = GPU_TESTS.columns["outcome"].allowed


def file_name(gpus: int = 1) -> str:
    """Returns the record's name in a card's folder; a run on several GPUs has more tests, and a name of its own."""
    return "gpu_tests.csv" if gpus < 2 else f"gpu_tests_{gpus}_gpus.csv"


def of_junit(path: Path) -> tuple[pd.DataFrame, float]:
    """Reads the file that `pytest --junitxml` wrote, of the family xunit1, which names each test's file.

    A test whose teardown also fails is listed twice; a file that cannot be imported counts as one test.

    Returns:
        a row for each file, outcome and reason, the files by name (`GPU_TESTS`), and the seconds of the whole run.

    Raises:
        BadInput: there is no such file, or it is cut short.
    """
    try:
        suite = ElementTree.parse(path).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        suite = None
    if suite is None:
        raise BadInput(path, "is not what pytest --junitxml writes", "run make test-gpu again")
    ended: dict[str, tuple[str, str, str | None, float]] = {}
    for case in suite.iter("testcase"):
        file = case.attrib["file"]
        name = f"{file}::{case.attrib['name']}" if case.attrib["classname"] else file
        outcome, reason = "passed", None
        if case.find("failure") is not None or case.find("error") is not None:
            outcome, reason = "failed", name if case.attrib["classname"] else f"{file}, which cannot be imported"
        elif (skipped := case.find("skipped")) is not None:
            outcome, reason = "skipped", skipped.get("message") or "no reason given"
        before = ended[name][3] if name in ended else 0.0
        ended[name] = file.removeprefix("tests/"), outcome, reason, before + float(case.attrib["time"])
    # Processes that share the tests end them in any order.
    rows = sorted(ended.values(), key=lambda row: row[0])
    table = pd.DataFrame(rows, columns=["file", "outcome", "reason", "seconds"])
    groups = table.assign(tests=1).groupby(["file", "outcome", "reason"], sort=False, dropna=False)
    return groups[["tests", "seconds"]].sum().reset_index().round({"seconds": 2}), float(suite.attrib["time"])


def record(path: Path, root: Path) -> Path:
    """Writes the record of this machine's card from pytest's XML at `path`, and returns where it is.

    Raises:
        BadInput: this machine has no GPU, or as `of_junit`.
    """
    import torch

    if not torch.cuda.is_available():
        raise BadInput("make test-gpu", "PyTorch finds no GPU here", "run it where there is one; nothing is recorded")
    table, seconds = of_junit(path)
    gpus = torch.cuda.device_count()
    folder = root / "figures" / "records" / gpu_folder_name(torch.cuda.get_device_name())
    meta = machine_meta(["make", "test-gpu"]) | {"gpus": gpus, "seconds": round(seconds, 1)}
    return write_table(table, folder / file_name(gpus), GPU_TESTS, meta)


def by_file(root: Path) -> pd.DataFrame:
    """Counts the tests by outcome, a row a card and test file, in the order they ran; no rows without a record.

    Args:
        root: the repository's root.

    Returns:
        Columns "passed", "failed" and "skipped" (int64), indexed by "card", the records folder's name ("H100", or
        "2 × H100" for a run on two), and "file".

    Raises:
        BadInput: a record does not fit its schema.
    """
    tables = {card: table for card, (table, _) in _recorded(root).items()}
    if not tables:
        index = pd.MultiIndex.from_arrays([[], []], names=["card", "file"])
        return pd.DataFrame(0, index=index, columns=list(OUTCOMES), dtype="int64")
    table = pd.concat(tables, names=["card", None]).reset_index("card")
    counts = table.pivot_table(
        index=["card", "file"], columns="outcome", values="tests", aggfunc="sum", fill_value=0, sort=False
    )
    return counts.reindex(columns=list(OUTCOMES), fill_value=0).astype("int64").rename_axis(columns=None)


def account(root: Path) -> list[str]:
    """Returns a row a card of the results of `make test-gpu`: counts, what failed and was skipped, day and versions.

    Args:
        root: the repository's root.

    Returns:
        rows of a Markdown table with six columns; none if no card has a record.

    Raises:
        BadInput: a record does not fit its schema, or its description is missing.
    """
    lines = []
    for card, (table, meta) in _recorded(root).items():
        counts = table.groupby("outcome")["tests"].sum()
        results = "|".join(str(counts.get(outcome, 0)) for outcome in OUTCOMES)
        why = [f"failed: `{name}`" for name in table.loc[table["outcome"] == "failed", "reason"]]
        skipped = table[table["outcome"] == "skipped"].groupby("reason", sort=False)["tests"].sum()
        why += [f"skipped {count}: {reason}" for reason, count in skipped.items()]
        lines.append(f"|{card}|{results}|{'<br>'.join(why) or '–'}|{_where(meta)}|")
    return lines


def _recorded(root: Path) -> dict[str, tuple[pd.DataFrame, dict[str, Any]]]:
    """Reads table and description of each run by its card, runs on one GPU first."""
    runs = {}
    for folder in gpu_folders(root):
        for path in sorted(folder.glob(f"{Path(file_name()).stem}*.csv"), key=lambda path: (len(path.name), path.name)):
            meta = read_meta(path)
            count = f"{meta['gpus']} × " if meta.get("gpus", 1) > 1 else ""
            runs[f"{count}{folder.name}"] = (read_table(path, GPU_TESTS), meta)
    return runs


def _where(meta: dict[str, Any]) -> str:
    """Returns the day, the commit, the card and the versions, as far as the record has them."""
    versions = {"PyTorch": "torch", "CUDA": "cuda", "cuDNN": "cudnn", "driver": "driver", "Triton": "triton"}
    known = [f"{name} {meta[field]}" for name, field in (versions | {"Python": "python"}).items() if meta.get(field)]
    short = str(meta.get("commit") or "")[:10]  # the whole one would not fit a narrow page
    commit = [f"commit {short}" + " and changes" * bool(meta.get("dirty"))] if short else []
    return ", ".join([str(meta["date"])[:10], *commit, meta["gpu"], *known, f"{meta['seconds']:.0f} s"])


def main() -> int:
    """Runs the command; returns 1 if nothing could be recorded."""
    parser = argparse.ArgumentParser(prog="python -m study.records.gpu_tests", description=__doc__)
    parser.add_argument("file", type=Path, help="what pytest --junitxml wrote")
    try:
        print(f"recorded in {record(parser.parse_args().file, Path(__file__).parents[2])}")
    except BadInput as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
