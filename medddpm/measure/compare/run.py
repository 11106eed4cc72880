"""The jobs of `medddpm compare`: float32 first, from which errors are measured, then a program for each tool."""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import medddpm
from medddpm.errors import BadInput
from medddpm.fast.kernels import dispatch
from medddpm.measure import harness, programs
from medddpm.measure.compare import results
from medddpm.measure.compare.lines import lines
from medddpm.measure.compare.worker import MARK, REFERENCE
from medddpm.measure.harness import GIB, Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.schemas import COMPARED
from medddpm.measure.step_file import StepFile
from medddpm.measure.store import Store, Table, check_beside, rows_folder
from medddpm.measure.tables import read_table
from medddpm.measure.tools import COMPARED as EVERY
from medddpm.measure.tools import INFERENCE, Tool
from medddpm.runtime.files import replacing
from medddpm.runtime.processes import pick_device

TABLE, PICTURE, LINES = "compare.csv", "compare.png", "lines.py"  # in the reader's folder
PREPARED = 2.0  # GiB that a program holds before it goes, beside network and batch: CUDA's context, libraries
WORDS = {"step": "training step", "forward": "forward pass"}


@dataclass(frozen=True)
class Options:
    """The options of measuring.

    Args:
        measure: "step", or "forward" for a forward pass in evaluation mode, without gradients.
        tools: names out of `medddpm.measure.tools.COMPARED`; None for all that the measure has.
        samples: how often a row is timed, at least.
        rounds: how often each row is measured, in turn with the others; its samples are those of all rounds.
        seconds: the time after which a row is given up.
        device: "auto", "cuda" or "cpu".
        again: whether existing rows are measured anew.
    """

    measure: str = "step"
    tools: Sequence[str] | None = None
    samples: int = 20
    rounds: int = 1
    seconds: int = 1800
    device: str = "auto"
    again: bool = False


def tools_of(measure: str) -> list[Tool]:
    """Returns the tools that a measure can have: BF16 weights survive no update, and `graphed_step` is a step."""
    other = [tool for tool in EVERY if tool.reader == "graphed_step"] if measure == "forward" else INFERENCE
    return [tool for tool in EVERY if tool not in other]


def compare(file: StepFile, out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False) -> int:
    """Measures the step under each tool whose row is missing, and prints the table and the lines of the best row.

    Args:
        file: the reader's.
        out: the folder of the table, `TABLE`, its description and rows, `PICTURE` and `LINES`.
        options: of measuring.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of tools that failed; a tool that makes no sense on this device is no failure.

    Raises:
        BadInput: the file is at fault, the folder has the rows of another step, or nothing was measured.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(out, "a file stands there", "give --out a folder")
    folder = rows_folder(out / TABLE)
    asked = [tool for tool in tools_of(options.measure) if options.tools is None or tool.slug in options.tools]
    reference = _job(file, REFERENCE, options, folder, {})
    if dry_run:
        return harness.show([reference, *(_job(file, tool.slug, options, folder, {}) for tool in asked)])
    device = pick_device(options.device)
    meta = machine_meta(command, device.type)
    machine = meta["processor"] if meta["gpu"] == "cpu" else meta["gpu"]
    under = f"{len(asked)} tools" if len(asked) > 1 else asked[0].slug
    print(f"{file}: a {WORDS[options.measure]} under {under}, {machine}", flush=True)
    store = Store(folder, {**meta, "commit": meta["commit"] or f"medddpm {medddpm.__version__}"})
    with store.alone():
        _check_same(store, file, options.measure, out, options.again)
        if not options.again and (fewer := _with_fewer(store, asked, options.samples)):
            stay = f"rows with fewer than {options.samples} samples stay: {', '.join(fewer)}"
            print(f"{out}: {stay}; --again measures all anew", flush=True)
        if "unjudged" not in (store.read(REFERENCE) or {}):
            check_beside(store, REFERENCE)
        if harness.run([reference], store, again=options.again, device=options.device):
            return 1
        known = store.read(REFERENCE) or {}
        idle = {tool.slug: why for tool in asked if (why := why_not(tool, device.type, known))}
        missing = functools.partial(_missing, store, idle)
        rows = functools.partial(results.rows_of, file=file.path.name, measure=options.measure, missing=missing)
        store.tables = [Table(out / TABLE, COMPARED, rows)]
        jobs = [_job(file, tool.slug, options, folder, known) for tool in asked if tool.slug not in idle]
        failed = harness.run(jobs, store, again=options.again, device=options.device)
    title = f"{WORDS[options.measure]} of {known['network']} ({file.path.name}), {machine}, PyTorch {meta['torch']}"
    tell(out, title, known, options.measure, device.type)
    return failed


def tell(out: Path, title: str, known: Mapping[str, Any], measure: str, device: str) -> None:
    """Prints the table in `out` and the lines of its best row, and writes these and the picture beside it.

    Args:
        out: the folder.
        title: of the table.
        known: the reference's result.
        measure: "step" or "forward".
        device: "cuda" or "cpu".
    """
    table = read_table(out / TABLE, COMPARED)
    print(f"\n{title[0].upper()}{title[1:]}:\n\n{results.printed(table)}\n")
    if table["median_ms"].isna().all():
        return
    print(results.judged(table))
    if results.draw(table, title, out / PICTURE):
        print(f"{out / PICTURE}: the picture")
    else:
        print("There is no picture: matplotlib is missing; pip install 'medddpm[measure]'")
    if (chosen := results.best(table)) is None:
        return
    tool = next(tool for tool in EVERY if tool.slug == chosen)
    text = lines(tool, measure, device, unpacked=known["unpacked"], returns_more=known["returns_more"])
    with replacing(out / LINES) as temporary:
        temporary.write_text(text, encoding="utf-8")
    yours = "model, loss_fn and loader" if measure == "step" else "model and inputs"
    several = table["median_ms"].count() > 1
    stay = "PyTorch as it comes is the fastest of what was measured: your program may stay as it is.\n"
    first = stay if several and chosen == results.PLAIN else ""
    print(f"\n{first}Lines for your program with {chosen} ({yours} are yours; also in {out / LINES}):\n\n{text}")


def why_not(tool: Tool, device: str, known: Mapping[str, Any]) -> str:
    """Says why a tool does nothing for this step on this device; empty if it may do something."""
    if device == "cpu":
        if tool.reader:
            return "its kernels and CUDA graphs need an NVIDIA GPU; on a CPU it computes by PyTorch's own functions"
        if tool.replays:
            return "its CUDA graphs and its search are for NVIDIA GPUs"
        if not (tool.autocast or tool.halved or tool.untouched or tool.switches.channels_last):
            return "it is a setting of NVIDIA GPUs"
        if tool.compiled and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++", "c++"))):
            return "torch.compile needs a C++ compiler here; install g++"
    elif tool.compiled and not dispatch.TRITON:
        return "torch.compile needs Triton on a GPU; pip install triton"
    if tool.switches.channels_last and not tool.reader and not known["volumes"]:
        return "it lays out 5-D weights, and this network has none"
    return ""


def _missing(store: Store, idle: Mapping[str, str]) -> dict[str, str]:
    """Returns why tools were not measured: those that do nothing here, and this call's failures."""
    return {**idle, **{title.partition(",")[0]: why for title, why in store.failed.items()}}


def _with_fewer(store: Store, asked: Sequence[Tool], samples: int) -> list[str]:
    """Returns the tools with a finished row of fewer samples than are asked for now."""
    fewer = {result["key"] for result in store.results() if len(result.get("ms", range(samples))) < samples}
    return [tool.slug for tool in asked if tool.slug in fewer]


def _check_same(store: Store, file: StepFile, measure: str, out: Path, again: bool) -> None:
    """Checks that what is there was measured of this step; with `again`, removes what was not.

    Raises:
        BadInput: it was not.
    """
    identity = {**file.identity(), "measure": measure}
    there = store.results()
    others = [result["of"] for result in there if result.get("of", identity) != identity]
    changed = file.changed(sorted({pair for result in there for pair in result.get("imports", {}).items()}))
    if not others and not changed:
        return
    if not again:
        problem = f"it has rows from before {next(iter(changed), '')} was changed, which {file.path.name} imports"
        if others:
            what = "measure" if {**others[0], "measure": ""} == {**identity, "measure": ""} else "content or function"
            problem = f"it has rows of {others[0]['file']} with another {what}"
        raise BadInput(out, problem, "give another --out, or --again to replace them")
    for path in store.folder.glob("*.json"):
        path.unlink()


def _job(file: StepFile, name: str, options: Options, folder: Path, known: Mapping[str, Any]) -> Job:
    words: dict[str, object] = {
        "file": file.path, "function": file.function, "tool": name, "measure": options.measure,
        "samples": options.samples, "device": options.device, "folder": folder.absolute(),
    }  # fmt: skip
    is_reference = name == REFERENCE
    return Job(
        key=name,
        title="float32, the reference of errors" if is_reference else name,
        command=(sys.executable, "-m", "medddpm.measure.compare.worker", *programs.options(words)),
        need=Need.READY,
        limit=options.seconds,
        gib=PREPARED + 2 * known.get("held_bytes", 0) / GIB,
        rounds=1 if is_reference else options.rounds,
        describe=(lambda result: result.get("unjudged", "done")) if is_reference else _time,
        problem=_problem,
    )


def _time(result: Mapping[str, Any]) -> str:
    return f"{statistics.median(result['ms']):.4g} ms"


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the worker's last word, or else why it ended."""
    marked = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode and marked:
        return marked[-1].removeprefix(MARK)
    return programs.problem(done, "build a smaller batch")
