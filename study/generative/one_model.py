"""The program that `python -m study.generative.run` starts for a model: its steps' traces, counters and IPC.

One run of ncu serves all precisions: the distinct launches are profiled once, and each precision's trace assigns them
to its step. Traces and counters that the folder holds already are left alone. It writes FOLDER/MODEL_PRECISIONS.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import machine_meta, of_machine
from medddpm.measure.profile import ncu, trace
from medddpm.measure.tables import meta_path, read_meta, write_meta
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_gzipped, write_json
from study.generative.ipc import CYCLES, INSTRUCTIONS, step_ipc
from study.generative.models import MODELS, Model
from study.generative.results import key_of, raw_path, trace_path
from study.generative.worker import parse_precisions


def main(argv: Sequence[str] | None = None) -> int:
    """Measures one model; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.generative.one_model", description=__doc__)
    top.add_argument("--model", required=True, choices=list(MODELS))
    top.add_argument("--precision", default="fp32,bf16", help="fp32, bf16 or both (fp32,bf16)")
    top.add_argument("--folder", type=Path, required=True, help="of traces, counters and result")
    arguments = top.parse_args(argv)
    try:
        model, precisions = MODELS[arguments.model], parse_precisions(arguments.precision)
        result = measure(model, precisions, arguments.folder)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    write_json(arguments.folder / f"{key_of(model, precisions)}.json", result)
    return 0


def measure(model: Model, precisions: Sequence[str], out: Path) -> dict[str, Any]:
    """Makes the traces and counters that `out` lacks; returns rows of schema `GENERATIVE`, and the failures.

    Raises:
        BadInput: no precision could be measured.
    """
    failed: dict[str, str] = {}
    for precision in precisions:
        if not trace_path(out, model, precision).is_file():
            done = programs.run(trace_command(model.name, precision, out, sys.executable))
            if not trace_path(out, model, precision).is_file():
                failed[precision] = programs.problem(done) or "it left no trace"
    traced = [precision for precision in precisions if precision not in failed]
    if not traced:
        raise BadInput(model.name, "; ".join(dict.fromkeys(failed.values())), "leave it out by --models")
    raw = raw_path(out, model, precisions)
    if not raw.is_file():
        counters = collection(model, traced, sys.executable)
        # If one precision fails, the report still holds the other's launches.
        text = counters.text(partial=True)
        write_meta(machine_meta(counters.program), raw)
        write_gzipped(trace.demangled(text).encode(), raw)
    rows = []
    for precision in traced:
        try:
            rows.append(_row(model, precision, raw, trace_path(out, model, precision)))
        except BadInput as error:
            failed[precision] = str(error)
    if not rows:
        raise BadInput(model.name, "; ".join(dict.fromkeys(failed.values())), "leave it out by --models")
    return {"model": model.name, "rows": rows, "failures": failed, "partial": bool(failed)}


def trace_command(name: str, precision: str, out: Path, python: str = "python") -> list[str]:
    """Returns the command that writes the plain trace of a model's step to `out`."""
    return [*_program(name, [precision], python), "--trace", str(out)]


def collection(model: Model, precisions: Sequence[str], python: str = "python") -> ncu.Collection:
    """Returns ncu's collection: each distinct launch of the profiled steps once, and two counters in one pass."""
    return ncu.Collection(
        model.name,
        _program(model.name, precisions, python),
        [*ncu.EVERY_PROCESS, *ncu.DISTINCT_LAUNCHES, *["--metrics", f"{CYCLES},{INSTRUCTIONS}"]],
        remedy="leave it out by --models, or try it by hand",
    )


def _program(name: str, precisions: Sequence[str], python: str) -> list[str]:
    return [python, "-m", "study.generative.worker", "--model", name, "--precision", ",".join(precisions)]


def _row(model: Model, precision: str, raw: Path, traced: Path) -> dict[str, Any]:
    step = step_ipc(raw, traced)
    meta = read_meta(raw) if meta_path(raw).is_file() else {}
    return {
        "model": model.name,
        "title": model.title,
        "kind": model.kind,
        "precision": precision,
        "parameters": sum(p.numel() for p in model.build("meta").parameters()),
        "resolution": model.resolution,
        "ipc_geometric": round(step.ipc_geometric, 6),
        "ipc_total": round(step.ipc_total, 6),
        "step_ms": round(step.step_ms, 3),
        "launches": step.launches,
        "matched": round(step.matched, 6),
        "training_gpu_hours": model.cost.gpu_hours,
        "training_hardware": model.cost.hardware,
        "source": model.cost.source,
        "configuration": model.source,
        "date": meta.get("date"),
        **of_machine(meta),
    }


if __name__ == "__main__":
    end(main())
