"""Measures the IPC of Figure 2's models under Nsight Compute: python -m study.generative.run --out DIR.

Each model is a job for the harness. Files that the folder holds already are left alone, so a call that was killed goes
on where it was.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import ncu
from medddpm.measure.profile.ncu_csv import CLOSED
from medddpm.measure.store import Store, Table
from medddpm.measure.tables import read_table
from medddpm.runtime.exits import INTERRUPTED, end
from study.generative.models import MODELS, Model, parse_names
from study.generative.results import NAME, key_of, raw_path, rows_of, trace_path
from study.generative.worker import parse_precisions
from study.records import schemas


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints what `parser` describes; returns the exit code: 1 if a model is missing at the end."""
    arguments = parser().parse_args(argv)
    try:
        models = [MODELS[name] for name in parse_names(arguments.models)]
        precisions = parse_precisions(arguments.precision)
        command = ["python", "-m", "study.generative.run", *(argv or sys.argv[1:])]
        table = measure(models, precisions, arguments.out, command)
    except BadInput as error:
        print(f"medddpm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("medddpm: interrupted; the same command goes on where it was", file=sys.stderr)
        return INTERRUPTED
    shown = ["model", "precision", "parameters", "ipc_geometric", "ipc_total", "step_ms", "launches", "matched"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format))
    return int(len(table) < len(models) * len(precisions))


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.generative.run", description=__doc__)
    top.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the raw tables and {NAME}")
    top.add_argument("--models", default="all", help=f"all, or some of {', '.join(MODELS)}, separated by commas")
    top.add_argument("--precision", default="fp32,bf16", help="fp32, bf16 or both (fp32,bf16)")
    return top


def measure(
    models: Sequence[Model], precisions: Sequence[str], out: Path, command: Sequence[str] | None = None
) -> pd.DataFrame:
    """Makes the traces and counters that `out` lacks, a line each; stderr names a model that fails, the others go on.

    Returns:
        schema `GENERATIVE`: a row for each measured model and precision.

    Raises:
        BadInput: nothing can be measured here (no GPU, no ncu, closed counters) or written, or nothing was measured.
    """
    ncu.need_gpu("generative")
    ncu.find()
    keys = [key_of(model, precisions) for model in models]
    table = Table(out / NAME, schemas.GENERATIVE, functools.partial(rows_of, keys=keys))
    store = Store(out, machine_meta(command), [table])
    store.check()
    with store.alone():
        for key, model in zip(keys, models, strict=True):
            files = [raw_path(out, model, precisions), *(trace_path(out, model, precision) for precision in precisions)]
            if not all(path.is_file() for path in files):
                store.remove(key)
        harness.run([_job(model, precisions, out) for model in models], store)
    for key, model in zip(keys, models, strict=True):
        for precision, problem in (store.read(key) or {}).get("failures", {}).items():
            print(f"medddpm: {model.name} {precision}: {problem}", file=sys.stderr, flush=True)
    return read_table(out / NAME, schemas.GENERATIVE)


def _job(model: Model, precisions: Sequence[str], out: Path) -> Job:
    words = {"model": model.name, "precision": ",".join(precisions), "folder": out}
    return Job(
        key=key_of(model, precisions),
        title=model.name,
        command=(sys.executable, "-m", "study.generative.one_model", *programs.options(words)),
        need=Need.ALONE,
        describe=_describe,
        problem=_problem,
    )


def _describe(result: dict[str, Any]) -> str:
    return ", ".join(f"{row['precision']} {row['ipc_geometric']:.3f} inst/cycle" for row in result["rows"])


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """Explains why a model's program failed; raises if the counters are closed, as for every other model."""
    if CLOSED in done.stdout:
        raise ncu.CountersClosed
    return programs.problem(done)


if __name__ == "__main__":
    end(main())
