"""Makes planned trainings, one a card, as far as time allows; a training that has a result is not repeated."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medddpm.measure import harness
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store
from medddpm.measure.tables import check_table, table_file
from medddpm.runtime.files import check_output
from medddpm.runtime.processes import visible_gpus
from medddpm.training.network import check_network
from study.brains.arms import Training
from study.brains.packing import pack
from study.brains.plans import expected, progress
from study.brains.training_results import TABLE, collect, key_of, lacking, read_results, summary, take
from study.records.packing import check_name

DATA = "data"  # the folder of the heads, in the store's


def make(
    trainings: Sequence[Training],
    out: Path,
    *,
    command: Sequence[str],
    results: Sequence[Path] = (),
    packed: Path | None = None,
    minutes: float = math.inf,
    gpus: int | None = None,
    device: str = "auto",
    dry_run: bool = False,
) -> int:
    """Makes the trainings that have no result, as far as time allows; writes table and tars after each.

    Args:
        trainings: in their order.
        out: the store's folder, which gets a folder for each training and the table.
        command: the command line, for the record.
        results: of earlier calls, as `take` reads them; their trainings are not repeated.
        packed: NAME.tar, of `pack`.
        minutes: that this call has; no training begins that would end later, but a shorter one behind it does.
        gpus: the most to use.
        device: "auto", "cuda" or "cpu".
        dry_run: prints the commands and runs nothing.

    Returns:
        the number of trainings that failed.

    Raises:
        BadInput: a training cannot be made here, results cannot be read, or another call works in the folder.
    """
    began = time.monotonic()
    if dry_run:
        return harness.show([_job(training, out, device) for training in trainings])
    for config, layout, size in {(each.config("BASE", 1), each.layout, each.size) for each in trainings}:
        check_network(config, layout, size)
    cards = visible_gpus(device, gpus)
    check_table(out / TABLE)
    if packed is not None:
        check_name(packed)
        check_output(packed, results, force=True)
    store = Store(out, machine_meta(command, device), write=lambda store: _collect(store, packed))
    with store.alone():
        for source in results:
            print(f"{source}: {take(source, out)} results taken", flush=True)
        waiting = lacking(trainings, out)
        print(f"trainings: {len(trainings)}, {len(waiting)} without a result, {len(cards)} at a time", flush=True)
        left = 60 * minutes - (time.monotonic() - began)
        jobs = [_job(training, out, device) for training in waiting]
        # What is waiting was chosen above: a result of another training of that name must not count.
        failed = harness.run(jobs, store, again=True, device=device, cards=cards, seconds=left)
        table = collect(store)
    if len(table):
        print(f"{table_file(out / TABLE)}: {len(table)} rows")
    print(summary(table))
    print(progress(trainings, lacking(trainings, out)))
    return failed


def _job(training: Training, out: Path, device: str) -> Job:
    words = ["--training", json.dumps(training.described()), "--data", str(out / DATA), "--device", device]
    return Job(
        key=key_of(training),
        title=training.key,
        command=(sys.executable, "-m", "study.brains.trainer", str(out / training.key), *words),
        need=Need.QUEUE,
        expected=expected(training),
        describe=_described,
    )


def _described(result: Mapping[str, Any]) -> str:
    error = next(e["value"] for e in reversed(result["errors"]) if (e["weights"], e["ratio"]) == ("averaged", 1.0))
    cut_short = ", cut short before its samples" if result.get("partial") else ""
    return f"{result['steps']} steps in {result['seconds']:.0f} s, error of x_0 at ratio 1 {error:.4g}{cut_short}"


def _collect(store: Store, packed: Path | None) -> None:
    collect(store)
    if packed is not None and (results := read_results(store.folder)):
        pack(results, store.folder, packed)
