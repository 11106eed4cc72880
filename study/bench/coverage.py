"""Which share of a network's training step `accelerate` covers: every launch of one eager step, by what launched it.

A launch is covered if it is one of this package's kernels, or a product that runs as the fast path wants it: a
convolution over channels-last memory, or a matrix product. What else the step launches is left to PyTorch.
"""

from __future__ import annotations

import re
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
from medddpm.measure import trace
from medddpm.measure.families import family_of
from medddpm.measure.former_store import TableStore
from medddpm.measure.machine import machine_meta
from medddpm.measure.schemas import TRACE
from medddpm.measure.tables import both_paths, found_at, read_table, table_of
from medddpm.measure.tools import searching
from medddpm.runtime.processes import pick_device
from study.bench.fits import check_fits
from study.bench.networks import NETWORKS, Network, Problem, build
from study.records import schemas

NAME = "coverage.csv"
KINDS = ("own", "product", "left")
WARMUP = 3  # steps before the one that is recorded
_CONTIGUOUS = re.compile(r"nchw|ncdhw|(?i:depthwise3d)|vol2col|col2vol|im2col")
"""Convolutions that want contiguous memory, by their kernels' names; some of PyTorch's own know no other."""


def kind_of(kernel: str) -> str:
    """Returns what a kernel is to the fast path: "own", "product" or "left"."""
    family = family_of(kernel)
    if family.name.startswith("fused "):
        return "own"
    if family.group not in ("convolution", "matmul") or family.name == "cudnn helper" or _CONTIGUOUS.search(kernel):
        return "left"
    return "product"


class Results(TableStore):
    """The results beside a table: a file for each network. The table has those of one base width."""

    schema = schemas.COVERAGE

    def __init__(self, out: Path, meta: Mapping[str, Any], width: int) -> None:
        super().__init__(out, meta)
        self.width = width

    def of(self, network: Network, side: int) -> Path:
        """The file of a network."""
        return self.row(f"{network.name}_{network.size(side)}_{self.width}")

    def collect(self) -> pd.DataFrame:
        """Writes the table of this run's results (schema `COVERAGE`), in the networks' order; returns it."""
        kept = [found for path in sorted(self.folder.glob(f"*_{self.width}.json")) if (found := self.read(path))]
        kept.sort(key=lambda found: list(NETWORKS).index(found["network"]))
        table = table_of([row for found in kept for row in found["rows"]], schemas.COVERAGE)
        if len(table):
            reports = {found["network"]: found["accelerated"] for found in kept}
            self.put(table, schemas.COVERAGE, {**self.description(kept), "accelerated": reports})
        return table


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
) -> dict[str, str]:
    """Records the coverage of each network that is missing, and writes the table (schema `COVERAGE`) after it.

    Args:
        names: out of `bench.networks.NETWORKS`.
        out: the table, NAME.csv; NAME.meta.json, with the reports of `accelerate`, and the folder NAME.rows are
            written beside it.
        command: the command line, for the record.
        device: "auto", "cuda" or "cpu". On a CPU the operators of PyTorch stand for kernels: a rehearsal.
        side: of the volumes; by default each network's own.
        width: the base width; 64 is each network's own.
        again: whether existing results are recorded anew.
        dry_run: whether to print what would be recorded, and run nothing.

    Returns:
        why networks failed, by name; the others are measured all the same.

    Raises:
        BadInput: the table cannot be written, or another process measures there.
    """
    if dry_run:
        for network in map(NETWORKS.__getitem__, names):
            grid = network.size(side or network.side)
            print(f"{network.title}: one accelerated step, {grid}, batch {network.batch}, width {width}")
        return {}
    store = Results(out, machine_meta(command, device), width)
    store.check()
    where = pick_device(device)
    with store.alone():
        for place, name in enumerate(names, 1):
            network = NETWORKS[name]
            size, label = side or network.side, f"[{place}/{len(names)}] {network.title}"
            path = store.of(network, size)
            if store.read(path) is not None and not again:
                print(f"{label}: there already", flush=True)
                continue
            path.unlink(missing_ok=True)
            print(f"{label} … ", end="", flush=True)
            try:
                check_fits([(name, size, width)])
                done, launches = _recorded(network, size, width, where)
            except (BadInput, RuntimeError, ValueError, TypeError) as error:  # out of memory too: the next may fit
                print("failed", flush=True)
                store.fail(name, first_line(error))
            else:
                found = rows_of(name, size, network.batch, launches)
                total = sum(row["ms"] for row in found)
                covered = sum(row["ms"] for row in found if row["kind"] != "left")
                print(f"{total:.1f} ms in kernels, {covered / total if total else 0:.0%} covered", flush=True)
                kept = {"network": name, "rows": found, "accelerated": str(done), "command": store.meta["command"]}
                store.write(path, kept)
            if where.type == "cuda":
                torch.cuda.empty_cache()
            store.collect()
        table = store.collect()
    if len(table):
        print(f"{found_at(out)}: {len(table)} rows", flush=True)
    return store.failed


def rows_of(name: str, side: int, batch: int, launches: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Rows of schema `COVERAGE` of one network, the longest first.

    Args:
        name: the network's.
        side, batch: what it was given.
        launches: kernel and time in ns of each.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for kernel, duration in launches:
        times.setdefault((kind_of(kernel), family_of(kernel).name), []).append(duration)
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
    return [
        {"network": name, "side": side, "batch": batch, "kind": kind, "family": family,
         "ms": round(sum(each) / 1e6, 5), "launches": len(each)}
        for (kind, family), each in ordered
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
    """A machine's record (schema `COVERAGE`) in the repository at `root`; no rows if it has none.

    Raises:
        BadInput: its table is broken.
    """
    path = root / "figures" / "records" / gpu / NAME
    if not any(found.is_file() for found in both_paths(path)):
        return pd.DataFrame(columns=list(schemas.COVERAGE.columns))
    return read_table(path, schemas.COVERAGE)


def shares(table: pd.DataFrame, most: int = 3) -> pd.DataFrame:
    """Each network by the share of its kernels' time that is covered.

    Args:
        table: schema `COVERAGE`.
        most: how many families of what is left are named.

    Returns:
        index network, its title; ms of all kernels, covered, own and product (shares of it), and left, in words.
    """
    rows = []
    for name, found in table.groupby("network", sort=False):
        total = float(found["ms"].sum())
        by_kind = found.groupby("kind")["ms"].sum().reindex(KINDS, fill_value=0.0) / total
        rest = found[found["kind"] == "left"].nlargest(most, "ms")
        words = ", ".join(f"{family} {ms / total:.1%}" for family, ms in zip(rest["family"], rest["ms"], strict=True))
        rows.append(
            {"network": NETWORKS[str(name)].title, "ms": total, "covered": 1 - by_kind["left"], "own": by_kind["own"],
             "product": by_kind["product"], "left": words}
        )  # fmt: skip
    columns = ["network", "ms", "covered", "own", "product", "left"]
    return pd.DataFrame(rows, columns=columns).set_index("network").sort_values("covered", ascending=False)
