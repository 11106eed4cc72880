"""The process that `python -m study throughput` starts for a row: a training under one lever, by the trainer itself.

It writes FOLDER/KEY.json.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.data.layouts import BRATS
from medddpm.data.phantom import Phantom
from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.measure.machine import now, nvml
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import pick_device, wait
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.reports import waits
from medddpm.training.trainer import Trainer
from medddpm.unet import UNet3D
from study.throughput.levers import BY_KEY, Lever
from study.throughput.sources import DEFORM, source

SUBJECTS = 16
RAM_DISK = Path("/dev/shm")  # Linux's
WARMUP = 3  # steps: kernels are compiled and the graph captured; further ones empty the loader's queue
LEAST_STEPS, MOST_STEPS = 3, 500
RECORDED = 5  # steps that CUPTI records, after those that are timed


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the row that the arguments describe; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.throughput.worker", description=__doc__)
    top.add_argument("--lever", required=True, choices=list(BY_KEY))
    top.add_argument("--side", type=int, default=128, help="of a volume, voxels (128); BraTS takes 192×192×144 for 128")
    top.add_argument("--channels", type=int, default=64, help="base width (64)")
    top.add_argument("--subjects", type=int, default=SUBJECTS, help="volumes of the data set (16)")
    top.add_argument("--seconds", type=float, default=5.0, help="that are timed (5)")
    top.add_argument("--device", default="auto")
    top.add_argument("--folder", type=Path, required=True, help="of the result")
    arguments = top.parse_args(argv)
    try:
        measure(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
    except torch.OutOfMemoryError:
        print("out of memory", file=sys.stderr)
    else:
        return 0
    return 1


def measure(arguments: argparse.Namespace) -> None:
    """Measures one row, as `main`'s arguments describe it."""
    lever, device = BY_KEY[arguments.lever], pick_device(arguments.device)
    size = (arguments.side,) * 3 if not lever.brats else _brats(arguments.side)
    config = TrainConfig(
        setting=lever.setting,
        image_size=size[0],
        model_channels=arguments.channels,
        num_res_blocks=2 if lever.brats else 1,
        batch_size=lever.batch,
        accumulation=1,
        workers=lever.workers,
        recompute=lever.recompute,
        flips=lever.augments == "step",
        deform=DEFORM if lever.augments == "step" else 0.0,
    )
    memory = RAM_DISK if lever.source == "RAM disk" else None
    if memory is not None and not memory.is_dir():
        raise BadInput(memory, "there is no RAM disk here", "measure the other levers")
    with tempfile.TemporaryDirectory(prefix="medddpm-", dir=memory) as folder:
        volumes = source(lever, size, 2 if lever.brats else max(arguments.subjects, lever.batch), Path(folder))
        volumes[0]  # the first one also loads a template
        began = time.perf_counter()
        volumes[1]
        seconds = time.perf_counter() - began
        result = trained(lever, config, volumes, device, arguments.seconds)
    if lever.recompute != "none":
        result["again"] = again(config, size, lever.brats)
    result |= {"prepare_seconds": seconds, "size": "x".join(map(str, size)), "lever": lever.key}
    result |= {"side": arguments.side, "channels": arguments.channels}
    result["date"] = now()
    write_json(arguments.folder / f"{lever.key}.json", result)


def trained(
    lever: Lever, config: TrainConfig, volumes: Volumes, device: torch.device, seconds: float
) -> dict[str, Any]:
    """Trains for about `seconds`; returns times, rates, waits and memory."""
    trainer = Trainer(config, volumes, device, graph=lever.graph)
    if not lever.fused:
        default = {"lr": config.learning_rate, "capturable": trainer.optimizer.defaults["capturable"]}
        trainer.optimizer = torch.optim.Adam(trainer.unet.parameters(), **default)
    forward = trainer._forward

    def cast(image: Tensor, mask: Tensor, micro: int) -> Tensor:
        with torch.autocast(device.type, getattr(torch, lever.autocast)):  # it keeps cast weights until its end
            return forward(image, mask, micro)

    if lever.autocast:
        trainer._forward = cast  # type: ignore[method-assign]
    with SETTINGS[lever.setting].on(trainer.unet), contextlib.closing(trainer):
        if lever.loads_otherwise:
            trainer._batches = trainer.batches(lever.pinned, lever.prefetch)
        trainer.train_step()
        if lever.source == "device":
            trainer.keep_on_device()
        ahead = 0 if lever.source == "device" else lever.workers * lever.prefetch  # made before the clock starts
        for _ in range(WARMUP + ahead):
            trainer.train_step()
        wait(device)
        began = time.perf_counter()
        trainer.train_step()
        wait(device)
        a_step = time.perf_counter() - began
        steps = min(max(int(seconds / a_step), LEAST_STEPS), MOST_STEPS)
        with active_share(device) as share:
            began = time.perf_counter()
            for _ in range(steps):
                trainer.train_step()
            wait(device)
            taken = time.perf_counter() - began
        parts = recorded(trainer, min(steps, RECORDED))
        return {
            "step_ms": 1e3 * taken / steps,
            "steps": steps,
            "volumes_a_second": steps * config.batch_size / taken,
            "waits": parts,
            "sm_active_pct": share[0] if share else None,
            "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            "reserved_bytes": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
        }


def recorded(trainer: Trainer, steps: int) -> dict[str, float]:
    """Measures the waits of `steps` steps, by `medddpm.training.reports.waits`."""
    watch = waits.Waits(trainer)
    watch.start()
    for _ in range(steps):
        trainer.train_step()
    return watch.stop()


@contextlib.contextmanager
def active_share(device: torch.device) -> Iterator[list[float]]:
    """On leaving, fills the list with the mean share of active SMs, in %, by NVML's GPM (Hopper and later)."""
    share: list[float] = []
    with contextlib.ExitStack() as stack:
        try:
            library, handle = stack.enter_context(nvml(torch.cuda.get_device_properties(device).uuid))
            samples = [library.nvmlGpmSampleAlloc() for _ in range(2)]
            library.nvmlGpmSampleGet(handle, samples[0])
        except Exception:  # no GPU, no NVML, an older card or driver, no permission: each has an exception of its own
            yield share
            return
        yield share
        with contextlib.suppress(library.NVMLError):
            library.nvmlGpmSampleGet(handle, samples[1])
            query = library.c_nvmlGpmMetricsGet_t()
            query.version, query.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, 1
            query.sample1, query.sample2 = samples
            query.metrics[0].metricId = library.NVML_GPM_METRIC_SM_UTIL
            library.nvmlGpmMetricsGet(query)
            share.append(float(query.metrics[0].value))


def again(config: TrainConfig, size: tuple[int, int, int], brats: bool) -> float:
    """Returns the share of a forward pass's multiplications in convolutions that `recompute` makes a second time."""
    layout = BRATS if brats else Phantom(1, (16, 16, 16)).layout
    channels = layout.image_channels + layout.mask_channels
    with torch.device("meta"):
        net = UNet3D(size[0], channels, layout.image_channels, config.model_channels, config.num_res_blocks)
        work: dict[nn.Module, int] = {}
        for module in net.modules():
            if isinstance(module, nn.Conv3d):
                module.register_forward_hook(
                    lambda m, _, out: work.update({m: m.weight.numel() * out.shape[2:].numel()})
                )
        with torch.no_grad():
            net(torch.empty(1, channels, *size[::-1]), torch.zeros(1))
    net.recompute(config.recompute)
    chosen = [m for m in net.modules() if getattr(m, "recomputed", False)]
    second = {inner for module in chosen for inner in module.modules()}
    return sum(count for module, count in work.items() if module in second) / sum(work.values())


def _brats(side: int) -> tuple[int, int, int]:
    return (192, 192, 144) if side == 128 else (side, side, side)


if __name__ == "__main__":
    end(main())
