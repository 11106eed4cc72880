"""The program that `parity` starts for each run: it trains and evaluates one model, in a process of its own.

The run's folder holds spec.json (the run's fields), train/ (a run of `medddpm train`), watch.json and watch.npz (losses
and samples along the way) and, at the end, slices.npz and result.json. Killed at any time, the same command goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medddpm.checkpoints.files import load_checkpoint
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime.exits import end
from medddpm.runtime.files import read_json, replacing, write_json
from medddpm.runtime.processes import pick_device
from study.parity.evaluate import evaluate_run, snapshot
from study.parity.plans import SPEC, TrainingRun
from study.parity.results import read_slices
from study.parity.subjects import volumes_of
from study.parity.training import Reached, Slices, trained

WINDOWS = 200  # of a loss curve: a figure is not wide enough to show more
STOPPED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and evaluates the run of a folder; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.parity.worker", description=__doc__)
    top.add_argument("folder", type=Path, help="with spec.json, of a run")
    top.add_argument("--data", type=Path, required=True, help="folder of the subjects")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    arguments = top.parse_args(argv)
    try:
        return work(arguments.folder, pick_device(arguments.device), arguments.data)
    except BadInput as error:
        print(error, file=sys.stderr)
    except torch.OutOfMemoryError:
        print("out of memory: use a smaller --size or --channels", file=sys.stderr)
    return 1


def work(folder: Path, device: torch.device, data: Path) -> int:
    """Trains and evaluates the run of a folder; returns the exit code."""
    run = TrainingRun.of(read_json(folder / SPEC, "start it with `python -m study parity`"))
    volumes, held_out = volumes_of(run, data)
    if run.checkpoint is not None:
        diffusion, reached = load_checkpoint(run.checkpoint, device=device), Reached()
        watched: Slices = {}
    else:
        print("training", flush=True)
        diffusion, reached, watched = _trained(run, volumes, held_out, folder, device)
        if reached.stopped:
            return STOPPED
    print(f"evaluating, at step {reached.step}", flush=True)
    diffusion.eval()
    began = time.monotonic()
    rows, slices = evaluate_run(run, diffusion, held_out)
    if reached.timed:
        value = 1e3 * reached.seconds / reached.timed
        where = {"metric": "ms_a_step", "channel": "all", "tissue": "all"}
        rows.append({"sampler": None, "sampler_steps": None, **where, "value": value, "n": reached.timed})
    _save(folder / "slices.npz", slices | watched)
    result = {
        "spec": asdict(run),
        "step": reached.step,
        "training_s": round(reached.seconds, 2),
        "evaluation_s": round(time.monotonic() - began, 2),
        "quality": rows,
        "loss": curve(reached, run.steps),
    }
    write_json(folder / "result.json", result)
    return 0


def curve(reached: Reached, planned_steps: int) -> list[dict[str, Any]]:
    """Returns training losses by windows of steps, and held-out losses: part, step (a window's last), steps, loss."""
    width = max(1, planned_steps // WINDOWS)
    losses = np.asarray(reached.losses, np.float64)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(losses), width):
        part = losses[start : start + width]
        rows.append({"part": "training", "step": start + len(part), "steps": len(part), "loss": float(part.mean())})
    for step, loss in sorted(reached.held_out.items()):
        rows.append({"part": "held-out", "step": step, "steps": 1, "loss": loss})
    return rows


def _trained(
    run: TrainingRun, volumes: Volumes, held_out: Volumes, folder: Path, device: torch.device
) -> tuple[GaussianDiffusion, Reached, Slices]:
    watched: Slices = {}
    path = folder / "watch.npz"
    if run.snapshots and path.is_file():
        watched = read_slices(path, "remove it, and run the same again")

    def keep(diffusion: GaussianDiffusion, step: int) -> None:
        watched.update(snapshot(run, diffusion, held_out, step))
        _save(path, watched)

    diffusion, reached = trained(run, volumes, held_out, folder, device, keep if run.snapshots else None)
    return diffusion, reached, watched


def _save(path: Path, arrays: Slices) -> None:
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    end(main())
