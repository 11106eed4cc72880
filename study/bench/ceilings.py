"""Measures a card's ceilings in a process of its own: a large copy, and square products in three precisions."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from medddpm.measure.ready import rounds
from medddpm.measure.timing import timed, warm_up
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import pick_device
from medddpm.switches import BASE, OPT1, Switches

KEY = "ceilings"
ROWS, BYTES = 8192, 2**32  # of a matrix; of a copy, far larger than any cache
TOY_ROWS, TOY_BYTES = 256, 2**20
PRODUCTS: dict[str, tuple[torch.dtype, Switches]] = {
    "fp32": (torch.float32, BASE),
    "tf32": (torch.float32, OPT1),
    "bf16": (torch.bfloat16, OPT1),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the ceilings and writes them to FOLDER/ceilings.json; returns the exit code."""
    top = argparse.ArgumentParser(prog="python -m study.bench.ceilings", description=__doc__)
    top.add_argument("--folder", type=Path, required=True)
    top.add_argument("--samples", type=int, default=20, help="(20)")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu; on a CPU the sizes are small")
    arguments = top.parse_args(argv)
    device = pick_device(arguments.device)
    for _ in rounds():
        write_json(arguments.folder / f"{KEY}.json", {"ceilings": measure(device, arguments.samples)})
    return 0


def measure(device: torch.device, samples: int) -> list[dict[str, object]]:
    """Measures rows of schema `CEILINGS`, but with every sample's time in `ms`."""
    toy = device.type != "cuda"
    generator = torch.Generator(device).manual_seed(0)
    rows = [_copy(TOY_BYTES if toy else BYTES, samples, generator)]
    for name in PRODUCTS:
        rows.append(_product(name, TOY_ROWS if toy else ROWS, samples, generator))
    return rows


def _copy(count: int, samples: int, generator: torch.Generator) -> dict[str, object]:
    device = generator.device
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, generator=generator, device=device)
    target = torch.empty_like(source)

    def copy() -> Tensor:
        return target.copy_(source)

    warm_up(copy, device)
    times, _ = timed(copy, samples, device)
    rate = 2 * count / statistics.median(times) / 1e6  # bytes a millisecond to GB/s
    return {"ceiling": "copy", "value": rate, "unit": "GB/s", "ms": times, "size": count}


def _product(name: str, side: int, samples: int, generator: torch.Generator) -> dict[str, object]:
    """Multiplies random matrices: with zeros a GPU draws less power and clocks higher than in real work."""
    dtype, switches = PRODUCTS[name]
    device = generator.device
    a, b = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)

    def multiply() -> Tensor:
        return torch.mm(a, b, out=product)

    with switches:
        warm_up(multiply, device)
        times, _ = timed(multiply, samples, device)
    rate = 2 * side**3 / statistics.median(times) / 1e9  # FLOPs a millisecond to TFLOP/s
    return {"ceiling": name, "value": rate, "unit": "TFLOP/s", "ms": times, "size": side}


if __name__ == "__main__":
    end(main())
