"""Measures the IPC of Figure 2's models under Nsight Compute: python -m medddpm.study.generative.run --out DIR.

A model takes one run of ncu for all its precisions: its distinct launches are profiled once, and the precisions' traces
tell which of them belong to which step. The traces of all models take one process. What the folder holds already is
left alone, so a run that was killed goes on where it was.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.generative.ipc import CYCLES, INSTRUCTIONS, step_ipc
from medddpm.study.generative.models import MODELS, Model, parse_names
from medddpm.study.generative.worker import parse_precisions
from medddpm.study.profile import trace
from medddpm.study.profile.ncu_csv import launches_in
from medddpm.study.profile.run import CountersClosed, find_ncu
from medddpm.study.records import schemas
from medddpm.study.records.machine import machine_meta
from medddpm.study.records.tables import of_every_machine, write_gzipped, write_table

NAME = "generative.csv"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints what `parser` describes; returns the exit code: 1 where a model is missing at the end."""
    arguments = parser().parse_args(argv)
    try:
        models = [MODELS[name] for name in parse_names(arguments.models)]
        precisions = parse_precisions(arguments.precision)
        table = measure(models, precisions, arguments.out)
        write(table, arguments.out / NAME, ["python", "-m", "medddpm.study.generative.run", *(argv or sys.argv[1:])])
    except BadInput as error:
        print(f"medddpm: {error}", file=sys.stderr)
        return 1
    shown = ["model", "precision", "parameters", "ipc_geometric", "ipc_total", "step_ms", "launches", "matched"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format))
    return int(len(table) < len(models) * len(precisions))


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    top = argparse.ArgumentParser(prog="python -m medddpm.study.generative.run", description=__doc__)
    top.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"of the raw tables and {NAME}")
    top.add_argument("--models", default="all", help=f"all, or some of {', '.join(MODELS)}, divided by commas")
    top.add_argument("--precision", default="fp32,bf16", help="fp32, bf16 or both (fp32,bf16)")
    return top


def measure(models: Sequence[Model], precisions: Sequence[str], out: Path) -> pd.DataFrame:
    """Makes what `out` lacks of traces and counters, a line each; a model that fails is named, and the rest go on.

    Returns:
        schema `GENERATIVE`: a row a model and precision that were measured.

    Raises:
        BadInput: nothing can be measured here (no ncu, closed counters), or nothing was.
    """
    ncu = find_ncu()
    _trace(models, precisions, out)
    for model in models:
        traced = [precision for precision in precisions if _trace_path(out, model, precision).is_file()]
        raw = _raw_path(out, model, precisions)
        if not traced:
            _tell(model.name, "no trace, left out")
        elif not raw.is_file():
            began = time.monotonic()
            try:
                launches = _count(model, traced, raw, ncu)
                print(f"{model.name}: {launches} distinct launches, {time.monotonic() - began:.0f} s", flush=True)
            except CountersClosed:
                raise
            except BadInput as error:
                _tell(model.name, str(error))
    return collect(models, precisions, out)


def collect(models: Sequence[Model], precisions: Sequence[str], out: Path) -> pd.DataFrame:
    """The table of what `out` holds; needs no GPU.

    Raises:
        BadInput: it holds nothing of these.
    """
    rows = []
    for model in models:
        raw = _raw_path(out, model, precisions)
        present = [p for p in precisions if raw.is_file() and _trace_path(out, model, p).is_file()]
        parameters = sum(p.numel() for p in model.build("meta").parameters()) if present else 0
        for precision in present:
            try:
                found = step_ipc(raw, _trace_path(out, model, precision))
            except BadInput as error:
                _tell(model.name, str(error))
                continue
            rows.append(
                {
                    "model": model.name,
                    "title": model.title,
                    "kind": model.kind,
                    "precision": precision,
                    "parameters": parameters,
                    "resolution": model.resolution,
                    "ipc_geometric": round(found.ipc_geometric, 6),
                    "ipc_total": round(found.ipc_total, 6),
                    "step_ms": round(found.step_ms, 3),
                    "launches": found.launches,
                    "matched": round(found.matched, 6),
                    "training_gpu_hours": model.cost.gpu_hours,
                    "training_hardware": model.cost.hardware or None,
                    "source": model.cost.source,
                    "configuration": model.source,
                }
            )
    if not rows:
        raise BadInput(out, "nothing was measured", "read the lines above; try one model by --models")
    table = pd.DataFrame(rows, columns=list(schemas.GENERATIVE.columns))
    return table.astype({"training_gpu_hours": "float64"})


def write(table: pd.DataFrame, path: Path, command: Sequence[str]) -> Path:
    """Writes the table with what measured it beside it; to be called on the machine that did.

    Args:
        table: schema `GENERATIVE`.
        path: the record, NAME.csv.
        command: the command line that measured it.
    """
    used = {"diffusers": importlib.metadata.version("diffusers"), "metrics": [CYCLES, INSTRUCTIONS]}
    return write_table(table, path, schemas.GENERATIVE, machine_meta(command) | used)


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Every machine's record (schema `GENERATIVE`) in the repository at `root`, by its folder's name.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    return of_every_machine(root, NAME, schemas.GENERATIVE, notebook="04")


def trace_command(names: Sequence[str], precisions: Sequence[str], out: Path, python: str = "python") -> list[str]:
    """The command that writes the plain traces of these models to `out`."""
    return [*_program(names, precisions, python), "--trace", str(out)]


def collect_command(
    model: Model, precisions: Sequence[str], report: Path, ncu: str = "ncu", python: str = "python"
) -> list[str]:
    """The command that profiles the marked steps into `report`, each distinct launch once; two counters, one pass."""
    return [
        ncu, *["--clock-control", "none"], *["--target-processes", "all"], *["--import-source", "no"],
        *["--replay-mode", "kernel"], *["--profile-from-start", "off"],
        *["--filter-mode", "per-launch-config"], *["--launch-count", "1"],
        *["--metrics", f"{CYCLES},{INSTRUCTIONS}"], *["-o", str(report).removesuffix(".ncu-rep")],
        *_program([model.name], precisions, python),
    ]  # fmt: skip


def export_command(report: Path, ncu: str = "ncu") -> list[str]:
    """The command that prints `report` as CSV."""
    page = ["--page", "raw", "--csv", "--print-kernel-base", "mangled", "--print-units", "base"]
    return [ncu, "--import", str(report), *page]


def _program(names: Sequence[str], precisions: Sequence[str], python: str) -> list[str]:
    chosen = ["--model", ",".join(names), "--precision", ",".join(precisions)]
    return [python, "-m", "medddpm.study.generative.worker", *chosen]


def _trace(models: Sequence[Model], precisions: Sequence[str], out: Path) -> None:
    """Has every trace made that is not there yet; one process, since starting takes longer than a step."""
    missing = [m for m in models if not all(_trace_path(out, m, p).is_file() for p in precisions)]
    if not missing:
        return
    began = time.monotonic()
    said = _run(trace_command([m.name for m in missing], precisions, out, sys.executable))
    if said.returncode:
        print(said.stdout.strip(), file=sys.stderr, flush=True)
    print(f"traces of {len(missing)} models, {time.monotonic() - began:.0f} s", flush=True)


def _count(model: Model, precisions: Sequence[str], raw: Path, ncu: str) -> int:
    """Has ncu profile the model and writes its raw page; returns its number of launches."""
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        report = Path(folder) / "report.ncu-rep"
        said = _run(collect_command(model, precisions, report, ncu, sys.executable))
        if "ERR_NVGPUCTRPERM" in said.stdout:
            raise CountersClosed
        # Where one precision fails, the report still holds the other's launches.
        if not report.is_file():
            raise _failure(model, said)
        shown = _run(export_command(report, ncu))
    launches = launches_in(shown.stdout)
    if shown.returncode or not launches:
        raise _failure(model, shown)
    write_gzipped(trace.demangled(shown.stdout).encode(), raw)
    return launches


def _failure(model: Model, said: subprocess.CompletedProcess[str]) -> BadInput:
    lines = [line for line in said.stdout.splitlines() if line.strip()]
    words = next((line for line in lines if line.startswith("==ERROR==")), (lines or ["it said nothing"])[-1])
    return BadInput(model.name, f"ended with {said.returncode}: {words}", "leave it out by --models, or try it by hand")


def _trace_path(out: Path, model: Model, precision: str) -> Path:
    return out / f"{model.name}_{precision}.csv.gz"


def _raw_path(out: Path, model: Model, precisions: Sequence[str]) -> Path:
    return out / f"{model.name}_{'-'.join(precisions)}_raw.csv.gz"


def _tell(name: str, problem: str) -> None:
    print(f"medddpm: {problem if problem.startswith(name) else f'{name}: {problem}'}", file=sys.stderr, flush=True)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; what it says on both streams is in `stdout`."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    )


if __name__ == "__main__":
    sys.exit(main())
