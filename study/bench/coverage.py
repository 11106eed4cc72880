"""Measures the share of a network's training step that `accelerate` covers, from every launch of one eager step.

A launch is covered if it is one of this package's kernels, or a product that runs as the fast path wants it: a
convolution over channels-last memory, or a matrix product. Every other launch of the step is left to PyTorch.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from medddpm.errors import BadInput, first_line
from medddpm.fast.patch import accelerate
from medddpm.fast.placing import Acceleration
from medddpm.fast.root import Root
from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import trace
from medddpm.measure.profile.families import family_of
from medddpm.measure.schemas import TRACE
from medddpm.measure.store import Store, Table, rows_folder
from medddpm.measure.tables import both_paths, read_table, table_of
from medddpm.measure.tools import searching
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import pick_device
from study.bench.fits import check_fits
from study.bench.networks import NETWORKS, Network, Problem, build
from study.records import schemas

NAME = "coverage.csv"
KINDS = ("own", "product", "left")
WARMUP = 3  # steps before the one that is recorded
_CONTIGUOUS = re.compile(r"nchw|ncdhw|(?i:depthwise3d)|vol2col|col2vol|im2col")
"""Convolutions that need contiguous memory, by their kernels' names, as do some of PyTorch's."""


def kind_of(kernel: str) -> str:
    """Classifies a kernel as "own" (of this package), "product" (covered) or "left" (to PyTorch)."""
    family = family_of(kernel)
    if family.name.startswith("fused "):
        return "own"
    if family.group not in ("convolution", "matmul") or family.name == "cudnn helper" or _CONTIGUOUS.search(kernel):
        return "left"
    return "product"


def measure(
    names: Sequence[str],
    out: Path,
    *,
    command: Sequence[str],
    device: str = "auto",
    side: int | None = None,
    width: int = 64,
    again: bool = False,
    dry_run: bool = False,
) -> int:
    """Records the coverage of each network that is missing, and writes the table (schema `COVERAGE`) after it.

    Args:
        names: out of `bench.networks.NETWORKS`.
        out: the table, NAME.csv; NAME.meta.json, with the reports of `accelerate`, and the folder NAME.rows are
            written beside it.
        command: the command line, for the record.
        device: "auto", "cuda" or "cpu". On a CPU the operators of PyTorch stand for kernels: a rehearsal.
        side: of the volumes; by default each network's own.
        width: the base width; 64 is each network's own. The table has the results of one.
        again: whether existing results are recorded anew.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of networks that failed; the others are measured all the same.

    Raises:
        BadInput: the table cannot be written, another process measures there, or nothing was measured.
    """
    folder = rows_folder(out)
    jobs = []
    for network in map(NETWORKS.__getitem__, names):
        size = side or network.side
        words = {"network": network.name, "side": size, "channels": width, "device": device, "folder": folder}
        line = (sys.executable, "-m", "study.bench.coverage", *programs.options(words))
        jobs.append(Job(key_of(network, size, width), network.title, line, Need.ALONE, describe=_describe))
    if dry_run:
        return harness.show(jobs)
    table = Table(out, schemas.COVERAGE, functools.partial(_table, width=width))
    return harness.run(jobs, Store(folder, machine_meta(command, device), [table]), again=again, device=device)


def key_of(network: Network, side: int, width: int) -> str:
    """Returns the key of a network's result."""
    return f"{network.name}_{network.size(side)}_{width}"


def main(argv: Sequence[str] | None = None) -> int:
    """Records one network and writes FOLDER/KEY.json; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.bench.coverage", description=__doc__)
    top.add_argument("--network", required=True, choices=list(NETWORKS))
    top.add_argument("--side", type=int, required=True, help="of the volume, voxels")
    top.add_argument("--channels", type=int, default=64, help="base width (64)")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    top.add_argument("--folder", type=Path, required=True, help="of the result")
    arguments = top.parse_args(argv)
    network, size, width = NETWORKS[arguments.network], arguments.side, arguments.channels
    try:
        check_fits([(network.name, size, width)])
        done, launches = _recorded(network, size, width, pick_device(arguments.device))
    except (BadInput, RuntimeError, ValueError, TypeError) as error:  # out of memory too
        print(first_line(error), file=sys.stderr)
        return 1
    rows = rows_of(network.name, size, network.batch, launches)
    result = {"network": network.name, "width": width, "rows": rows, "accelerated": str(done)}
    write_json(arguments.folder / f"{key_of(network, size, width)}.json", result)
    return 0


def _describe(result: Mapping[str, Any]) -> str:
    total = sum(row["ms"] for row in result["rows"])
    covered = sum(row["ms"] for row in result["rows"] if row["kind"] != "left")
    return f"{total:.1f} ms in kernels, {covered / total if total else 0:.0%} covered"


def _table(results: Sequence[Mapping[str, Any]], width: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Makes the table of a base width's results (schema `COVERAGE`), in the networks' order, and their reports."""
    chosen = sorted(
        (result for result in results if result["width"] == width),
        key=lambda result: list(NETWORKS).index(result["network"]),
    )
    reports = {result["network"]: result["accelerated"] for result in chosen}
    rows = [row for result in chosen for row in result["rows"]]
    return table_of(rows, schemas.COVERAGE), {"accelerated": reports}


def rows_of(name: str, side: int, batch: int, launches: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Makes the rows of schema `COVERAGE` of one network, the longest first.

    Args:
        name: the network's.
        side, batch: of its volumes.
        launches: kernel and time in ns of each.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for kernel, duration in launches:
        times.setdefault((kind_of(kernel), family_of(kernel).name), []).append(duration)
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
    return [
        {"network": name, "side": side, "batch": batch, "kind": kind, "family": family,
         "ms": round(sum(durations) / 1e6, 5), "launches": len(durations)}
        for (kind, family), durations in ordered
    ]  # fmt: skip


def _recorded(
    network: Network, side: int, width: int, device: torch.device
) -> tuple[Acceleration, list[tuple[str, float]]]:
    """Accelerates the network and records one training step of it: kernels and their times in ns."""
    model = build(network, side, width).to(device)
    accelerate(model, graph=False, report=None)
    root = cast(Root, model.__dict__["forward"])
    done = cast(Acceleration, model.__dict__["acceleration"])
    if device.type == "cpu":
        root.reduced_on = ("cpu",)
    problem = Problem(network, side, network.batch, device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        problem.loss(model, *problem.inputs)[0].backward()

    with searching():
        for _ in range(WARMUP if device.type == "cuda" else 1):
            step()
        return done, _launches(step, device)


def _launches(step: Callable[[], object], device: torch.device) -> list[tuple[str, float]]:
    if device.type == "cuda":
        with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
            path = Path(folder) / "trace.csv.gz"
            trace.record(step, device, path, before=step)
            table = read_table(path.with_suffix(""), TRACE)
        return list(zip(table["kernel"], table["duration_ns"], strict=True))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    return [(event.name, 1e3 * event.self_cpu_time_total) for event in profiler.events()]


def recorded(root: Path, gpu: str) -> pd.DataFrame:
    """Reads a machine's record (schema `COVERAGE`) in the repository at `root`; no rows if it has none.

    Raises:
        BadInput: its table is broken.
    """
    path = root / "figures" / "records" / gpu / NAME
    if not any(file.is_file() for file in both_paths(path)):
        return pd.DataFrame(columns=list(schemas.COVERAGE.columns))
    return read_table(path, schemas.COVERAGE)


def shares(table: pd.DataFrame, most: int = 3) -> pd.DataFrame:
    """Sorts the networks by the covered share of their kernels' time.

    Args:
        table: schema `COVERAGE`.
        most: the number of families that are named of the kernels left to PyTorch.

    Returns:
        index network, its title; ms of all kernels, covered, own and product (shares of it), and left, in words.
    """
    rows = []
    for name, network_rows in table.groupby("network", sort=False):
        total = float(network_rows["ms"].sum())
        by_kind = network_rows.groupby("kind")["ms"].sum().reindex(KINDS, fill_value=0.0) / total
        longest = network_rows[network_rows["kind"] == "left"].nlargest(most, "ms")
        words = ", ".join(
            f"{family} {ms / total:.1%}" for family, ms in zip(longest["family"], longest["ms"], strict=True)
        )
        rows.append(
            {"network": NETWORKS[str(name)].title, "ms": total, "covered": 1 - by_kind["left"], "own": by_kind["own"],
             "product": by_kind["product"], "left": words}
        )  # fmt: skip
    columns = ["network", "ms", "covered", "own", "product", "left"]
    return pd.DataFrame(rows, columns=columns).set_index("network").sort_values("covered", ascending=False)


if __name__ == "__main__":
    end(main())
