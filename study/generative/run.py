"""Measures the IPC of Figure 2's models under Nsight Compute: python -m study.generative.run --out DIR.

Each model takes one run of ncu for all its precisions: its distinct launches are profiled once, and the traces of the
precisions tell which of them belong to which step. One process writes the traces of all models. What the folder holds
already is left alone, so a call that was killed goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure import ncu, programs, trace
from medddpm.measure.machine import machine_meta
from medddpm.measure.ncu_csv import launches_in
from medddpm.measure.tables import check_table, write_meta
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_gzipped
from study.generative.ipc import CYCLES, INSTRUCTIONS
from study.generative.models import MODELS, Model, parse_names
from study.generative.results import NAME, collect, raw_path, tell, trace_path, write
from study.generative.worker import parse_precisions


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints what `parser` describes; returns the exit code: 1 where a model is missing at the end."""
    arguments = parser().parse_args(argv)
    try:
        models = [MODELS[name] for name in parse_names(arguments.models)]
        precisions = parse_precisions(arguments.precision)
        table = measure(models, precisions, arguments.out)
        write(table, arguments.out / NAME, ["python", "-m", "study.generative.run", *(argv or sys.argv[1:])])
    except BadInput as error:
        print(f"medddpm: {error}", file=sys.stderr)
        return 1
    shown = ["model", "precision", "parameters", "ipc_geometric", "ipc_total", "step_ms", "launches", "matched"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format))
    return int(len(table) < len(models) * len(precisions))


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.generative.run", description=__doc__)
    top.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the raw tables and {NAME}")
    top.add_argument("--models", default="all", help=f"all, or some of {', '.join(MODELS)}, separated by commas")
    top.add_argument("--precision", default="fp32,bf16", help="fp32, bf16 or both (fp32,bf16)")
    return top


def measure(models: Sequence[Model], precisions: Sequence[str], out: Path) -> pd.DataFrame:
    """Makes the traces and counters that `out` lacks, a line each; a model that fails is named, and the rest go on.

    Returns:
        schema `GENERATIVE`: a row for each measured model and precision.

    Raises:
        BadInput: nothing can be measured here (no GPU, no ncu, closed counters) or kept, or nothing was.
    """
    ncu.need_gpu("generative")
    ncu.find()
    check_table(out / NAME)
    _trace(models, precisions, out)
    for model in models:
        traced = [precision for precision in precisions if trace_path(out, model, precision).is_file()]
        raw = raw_path(out, model, precisions)
        if not traced:
            tell(model.name, "no trace, left out")
        elif not raw.is_file():
            began = time.monotonic()
            try:
                launches = _count(model, traced, raw)
                print(f"{model.name}: {launches} distinct launches, {time.monotonic() - began:.0f} s", flush=True)
            except ncu.CannotMeasure:
                raise
            except BadInput as error:
                tell(model.name, str(error))
    return collect(models, precisions, out)


def trace_command(names: Sequence[str], precisions: Sequence[str], out: Path, python: str = "python") -> list[str]:
    """The command that writes the plain traces of these models to `out`."""
    return [*_program(names, precisions, python), "--trace", str(out)]


def collection(model: Model, precisions: Sequence[str], python: str = "python") -> ncu.Collection:
    """Returns what ncu is asked for: each distinct launch of the profiled steps once, and two counters in one pass."""
    return ncu.Collection(
        model.name,
        _program([model.name], precisions, python),
        [*ncu.EVERY_PROCESS, *ncu.DISTINCT_LAUNCHES, *["--metrics", f"{CYCLES},{INSTRUCTIONS}"]],
        remedy="leave it out by --models, or try it by hand",
    )


def _program(names: Sequence[str], precisions: Sequence[str], python: str) -> list[str]:
    chosen = ["--model", ",".join(names), "--precision", ",".join(precisions)]
    return [python, "-m", "study.generative.worker", *chosen]


def _trace(models: Sequence[Model], precisions: Sequence[str], out: Path) -> None:
    """Has every missing trace made, all in one process: starting one takes longer than a step."""
    missing = [m for m in models if not all(trace_path(out, m, p).is_file() for p in precisions)]
    if not missing:
        return
    began = time.monotonic()
    done = programs.run(trace_command([m.name for m in missing], precisions, out, sys.executable))
    if done.returncode:
        print(done.stdout.strip(), file=sys.stderr, flush=True)
    print(f"traces of {len(missing)} models, {time.monotonic() - began:.0f} s", flush=True)


def _count(model: Model, precisions: Sequence[str], raw: Path) -> int:
    """Has ncu profile the model and writes its raw page and what machine made it; returns its number of launches."""
    asked = collection(model, precisions, sys.executable)
    # Where one precision fails, the report still holds the other's launches.
    text = asked.text(partial=True)
    write_meta(machine_meta(asked.program), raw)
    write_gzipped(trace.demangled(text).encode(), raw)
    return launches_in(text)


if __name__ == "__main__":
    end(main())
