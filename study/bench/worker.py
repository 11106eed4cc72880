"""The program that `python -m study bench` starts for a row: one network under one setting.

It writes FOLDER/KEY_MEASURE.json after each missing measure, so that a killed program loses only the measure it was
taking. Before the first round the network is built, and code for it generated; everything that runs the network, and so
chooses kernels, is in a round. The last sample's output and gradient are compared with BASE's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput, first_line
from medddpm.fast.graphs import cuda_graphs
from medddpm.measure import subject
from medddpm.measure.machine import now, package_version
from medddpm.measure.ready import round_path, rounds
from medddpm.measure.store import digest
from medddpm.measure.subject import Subject
from medddpm.measure.timing import distance, timed
from medddpm.measure.tools import Tool
from medddpm.runtime.exits import end
from medddpm.runtime.files import replacing, write_json
from medddpm.runtime.processes import peak, pick_device, reset_peak
from study.bench.networks import NETWORKS, SEED, TIMESTEPS, Problem, build
from study.bench.settings import BASE, BY_SLUG

REFERENCE = "reference"
MEASURES = ("forward", "step", "sample")  # in the order they are taken: the forward pass before the optimizer has state
PACKAGES = ("monai", "dynamic_network_architectures")  # whose networks are measured
SAMPLES_OF_A_VOLUME, SAMPLING_SECONDS = 3, 30.0  # whole volumes; no more once they took so long
FEW_STEPS = (10, 25, 50)
SHORT = ("ddim", "dpm++")  # samplers that take fewer steps


@dataclass(frozen=True)
class Case:
    """A network and its batch, whatever the setting: rows of one case can be compared.

    Args:
        network: a name out of `NETWORKS`.
        side, batch: the volumes' side in voxels, and their number.
        channels: base width; 64 as published.
    """

    network: str
    side: int
    batch: int
    channels: int = 64

    @property
    def key(self) -> str:
        """The start of the names of the case's files."""
        return f"{self.network}_{self.side}_b{self.batch}_c{self.channels}"

    @property
    def reference_key(self) -> str:
        """The key of the result that describes BASE's output and gradient."""
        return f"{self.key}.reference"

    def reference(self, folder: Path) -> Path:
        """Returns the file of BASE's output and gradient."""
        return folder / f"{self.reference_key}.pt"

    def result_key(self, setting: Tool, measure: str) -> str:
        """Returns the key of the result of one measure under a setting."""
        return f"{self.key}_{setting.slug}_{measure}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what `parser` describes; returns the exit code. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
    except torch.OutOfMemoryError:
        print("out of memory: use a smaller --size or --batch", file=sys.stderr)
    except Exception as error:  # a compiler's or a kernel's; the bench goes on to the next row
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
    else:
        return 0
    return 1


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.bench.worker", description=__doc__)
    top.add_argument("--network", required=True, choices=list(NETWORKS))
    top.add_argument("--setting", required=True, choices=list(BY_SLUG))
    top.add_argument(
        "--measure", nargs="+", choices=[REFERENCE, *MEASURES], required=True,
        help="which to take; reference: only write the output and the gradient of a step, under base",
    )  # fmt: skip
    top.add_argument("--side", type=int, required=True, help="of the volume, voxels")
    top.add_argument("--batch", type=int, required=True, help="volumes at once")
    top.add_argument("--channels", type=int, default=64, help="base width (64)")
    top.add_argument("--samples", type=int, default=20, help="of a forward pass or step, at least (20)")
    top.add_argument("--folder", type=Path, required=True, help="of the results")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Measures one row, as `parser` describes it."""
    setting, network = BY_SLUG[arguments.setting], NETWORKS[arguments.network]
    case = Case(network.name, arguments.side, arguments.batch, arguments.channels)
    device = pick_device(arguments.device)
    model = build(network, case.side, case.channels).to(device)
    with setting.on(model) as called:
        row = Row(setting, Problem(network, case.side, case.batch, device), model, called, case)
        row.prepare(arguments.measure)
        for number in rounds():
            for name in (REFERENCE, *MEASURES):
                if name in arguments.measure:
                    measure(row, name, number, arguments.samples, arguments.folder)
            row.end()


def measure(row: Row, name: str, number: int, samples: int, folder: Path) -> None:
    """Takes one measure of a row in a round, and writes its result, unless that is there."""
    known: dict[str, Any] = {"case": asdict(row.case), "setting": row.setting.name, "date": now()}
    if name == REFERENCE:
        path = folder / f"{row.case.reference_key}.json"
        if not path.is_file():
            save_reference(row, row.case.reference(folder))
            write_json(path, {**known, "sha256": digest(row.case.reference(folder))})
        return
    path = round_path(folder / f"{row.case.result_key(row.setting, name)}.json", number)
    if path.is_file():
        return
    rows = sampled(row, TIMESTEPS) if name == "sample" else [repeated(row, name, samples, folder)]
    if row.setting.switches.fast:
        known["acceleration"] = str(getattr(row.model, "acceleration", ""))
    packages = {package: package_version(package) for package in PACKAGES}
    write_json(path, {**known, "rows": rows, "packages": packages})
    row.drop()


@dataclass(frozen=True)
class Row(Subject):
    """A network of the bench under a setting.

    Args:
        case: the network and its batch.
    """

    problem: Problem
    case: Case


def repeated(row: Row, measure: str, samples: int, folder: Path) -> dict[str, Any]:
    """Measures "forward" or "step"; adds the distance from BASE if BASE's output is in `folder`."""
    result, output, _ = subject.repeated(row, measure, samples)
    reference = row.case.reference(folder)
    if row.setting == BASE or not reference.is_file():
        return result
    base = torch.load(reference, weights_only=True)
    result["rel_error_output"] = distance([output], [base["forward" if measure == "forward" else "output"]])
    if measure == "step":
        result["rel_error_grad"] = distance(row.gradient(), base["gradient"])
    subject.check_finite(result, row.setting.name)
    return result


def sampled(row: Row, timesteps: int) -> list[dict[str, Any]]:
    """Draws whole volumes: the full chain and, under FAST, the samplers with fewer steps."""
    diffusion = GaussianDiffusion(row.called, timesteps).to(row.device)
    chains = [("ddpm", timesteps)]
    if row.setting.name == "FAST":
        chains += [(sampler, steps) for sampler in SHORT for steps in FEW_STEPS if steps < timesteps]
    rows = []
    for sampler, steps in chains:

        def draw(sampler: str = sampler, steps: int = steps) -> Tensor:
            generator = torch.Generator(row.device).manual_seed(SEED)
            with row.setting.autocasting(row.device):
                return diffusion.sample(row.problem.mask, steps, sampler, generator=generator)

        cuda_graphs.forget(row.model)  # a replay allocates nothing: each chain's peak is that of its own capture
        row.drop()
        reset_peak(row.device)
        draw("ddim", 2)  # its two evaluations warm the network up, and capture what is captured once
        times: list[float] = []
        while not times or (len(times) < SAMPLES_OF_A_VOLUME and sum(times) < 1e3 * SAMPLING_SECONDS):
            times += timed(draw, 1, row.device)[0]
        rows.append(
            {"measure": "sample", "sampler": sampler, "steps": steps, "ms": times, "peak_bytes": peak(row.device)}
        )
    return rows


def save_reference(row: Row, path: Path) -> None:
    """Writes the output and the gradient of one step, and the output of a forward pass."""
    known: dict[str, Any] = {"forward": row.work("forward")().cpu()}  # before the step, whose batch norms move
    known |= {"output": row.work("step")().cpu(), "gradient": row.gradient()}
    with replacing(path) as temporary:
        torch.save(known, temporary)
    row.drop()


if __name__ == "__main__":
    end(main())
