"""Turns NVIDIA's report of a profile, RUN.ncu-rep, into the CSV pages that `medddpm.measure.profile.parse` reads.

ncu itself exports the pages where it is installed. Elsewhere NVIDIA's Python module does, the distribution ncu-report
(its interface: docs.nvidia.com/nsight-compute/PythonReportInterface). The module's library is native code: it reads the
report in a process of its own.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.profile.counters import INSTRUCTIONS, METRICS
from medddpm.measure.profile.ncu import Collection
from medddpm.measure.profile.ncu_csv import launches_in
from medddpm.runtime.exits import end

MODULE = "ncu_report"
SUFFIXES = (".ncu-rep", ".ncu-repz")
SIDES = ("x", "y", "z")
RULES = ("ID", "Kernel Name", "Section Name", "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type",
         "Estimated Speedup", "Grid Size", "Block Size", "Context", "Stream")  # fmt: skip


@contextlib.contextmanager
def pages(report: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yields the files of a report's raw page and, if its rules estimate speedups, of its details page.

    They are there inside of the context, in which an error about them becomes one about the report.

    Args:
        report: RUN.ncu-rep.

    Raises:
        BadInput: it cannot be read, or nothing here can read it.
    """
    if not report.is_file():
        raise BadInput(report, "there is no such file", "give ncu's report, or its raw page as CSV")
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        raw, details = (Path(folder, f"{report.stem}_{page}.csv") for page in ("raw", "details"))
        try:
            if why := _by_ncu(report, raw, details):
                _by_module(report, raw, details, why)
            yield raw, details if details.is_file() else None
        except BadInput as error:
            if str(error.path).startswith(folder):
                raise BadInput(report, error.problem, error.remedy) from None
            raise


def _by_ncu(report: Path, raw: Path, details: Path) -> str:
    """Exports the pages by ncu; returns why that does not work, or nothing."""
    ncu = programs.find("ncu")
    if ncu is None:
        return "neither ncu nor ncu-report is installed here to read it"
    exports = [
        programs.run(Collection(report.name, [], [], page=page, shown=shown).export_command(report, ncu))
        for page, shown in (("raw", ["--print-metric-instances", "details"]), ("details", []))
    ]
    if exports[0].returncode or not launches_in(exports[0].stdout):
        return f"ncu cannot read it ({programs.last_words(exports[0].stdout) or 'it says nothing'})"
    raw.write_text(_demangled(exports[0].stdout), encoding="utf-8")
    if "Estimated Speedup" in exports[1].stdout:
        details.write_text(_demangled(exports[1].stdout), encoding="utf-8")
    return ""


def _by_module(report: Path, raw: Path, details: Path, why: str) -> None:
    """Writes the pages by NVIDIA's module.

    Raises:
        BadInput: the module is not installed, and ncu does not work for the reason `why`; or it cannot read the report.
    """
    if importlib.util.find_spec(MODULE) is None:
        raw_page, details_page = (f"ncu --import {report.name} --page {page} --csv" for page in ("raw", "details"))
        raw_page += " --print-metric-instances details"
        remedy = f"pip install 'medddpm[ncu]', or where ncu is: {raw_page} > raw.csv; {details_page} > details.csv"
        raise BadInput(report, why, remedy)
    command = [sys.executable, "-m", "medddpm.measure.profile.ncu_rep", str(report), str(raw), str(details)]
    if problem := programs.problem(programs.run(command), "profile fewer launches"):
        raise BadInput(report, f"ncu-report cannot read it ({problem})", "profile again, or update medddpm[ncu]")


def write(report: Any, raw: Path, details: Path, names: Any) -> None:
    """Writes the pages of a report that NVIDIA's module has loaded; without estimates of its rules only the raw page.

    Args:
        report: an `ncu_report.IContext`.
        raw, details: the files.
        names: the class `ncu_report.IAction`, whose constants choose how kernels are named.

    Raises:
        BadInput: the report holds no launch.
    """
    ranges = [report.range_by_idx(place) for place in range(report.num_ranges())]
    launches = [part.action_by_idx(place) for part in ranges for place in range(part.num_actions())]
    if not launches:
        raise BadInput(raw, "the report holds no launch, or is cut short", "profile again")
    there = set().union(*(action.metric_names() for action in launches))
    metrics = [name for metric in METRICS.values() for name in metric.names if name in there]
    metrics += [name for name in INSTRUCTIONS if name in there]
    header = ["ID", "Kernel Name", "Grid Size", "Block Size", *metrics]
    units = dict.fromkeys(metrics, "")
    rows = []
    for number, action in enumerate(launches):
        names_here = set(action.metric_names())
        values = {name: action.metric_by_name(name) for name in metrics if name in names_here}
        units |= {name: metric.unit() for name, metric in values.items()}
        cells = [_cell(values.get(name), with_instances=name in INSTRUCTIONS) for name in metrics]
        rows.append([str(number), _kernel(action, names), _shape(action, "grid"), _shape(action, "block"), *cells])
    _write([header, ["", "", "", "", *(units[name] for name in metrics)], *rows], raw)
    estimates = [row for number, action in enumerate(launches) for row in _rules(number, action, names)]
    if any(row[-5] for row in estimates):
        _write([list(RULES), *estimates], details)


def _rules(number: int, action: Any, names: Any) -> Iterator[list[str]]:
    """Yields rows of the details page: one that names the launch, and one for each rule that estimates a speedup."""
    shape = [_shape(action, "grid"), _shape(action, "block"), "", ""]
    yield [str(number), _kernel(action, names), "", "", "", "", "", "", *shape]
    for rule in action.rule_results():
        if rule.has_speedup_estimation():
            estimate = rule.speedup_estimation()
            kind = str(getattr(estimate["type"], "name", estimate["type"])).lower()
            row = [str(number), _kernel(action, names), "", rule.name(), "OPT", "", kind, repr(estimate["speedup"])]
            yield [*row, *shape]


def _cell(metric: Any, with_instances: bool) -> str:
    """Returns a metric's value as ncu writes it, "205 (Control: 93; Integer: 70)" with instances."""
    if metric is None or metric.value() is None:
        return "n/a"
    if not with_instances or not metric.num_instances():
        return str(metric.value())
    labels = metric.correlation_ids()
    parts = (f"{labels.value(at)}: {int(metric.value(at))}" for at in range(metric.num_instances()))
    return f"{int(metric.value())} ({'; '.join(parts)})"


def _kernel(action: Any, names: Any) -> str:
    return _demangled(str(action.name(names.NameBase_MANGLED)))


def _shape(action: Any, what: str) -> str:
    sides = [action.metric_by_name(f"launch__{what}_dim_{side}") for side in SIDES]
    if any(side is None for side in sides):
        return ""
    return f"({', '.join(str(int(side.value())) for side in sides)})"


def _demangled(text: str) -> str:
    from medddpm.measure.profile.trace import demangled  # and with it torch

    return demangled(text)


def _write(rows: Sequence[Sequence[str]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def main(words: Sequence[str]) -> int:
    """Writes the pages REPORT RAW DETAILS; returns the exit code."""
    module = importlib.import_module(MODULE)
    report, raw, details = map(Path, words)
    try:
        write(module.load_report(str(report)), raw, details, module.IAction)
    except (BadInput, RuntimeError, ValueError) as error:
        print(error.problem if isinstance(error, BadInput) else error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
