"""What a GPU draws, and how fast it clocks, while a row of the bench is timed: by NVML, beside the timed process."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from medddpm.measure.machine import nvml

EVERY = 0.05  # s between two readings of the clock
LEAST = 0.5  # s: the driver's counter of energy moves some ten times a second, so that less time tells too little


@contextlib.contextmanager
def drawn(device: torch.device) -> Iterator[dict[str, float]]:
    """After it, the dict holds the mean power within, "watts", and the median clock of the SMs, "sm_mhz".

    It stays empty without a GPU, where NVML is missing or refuses, and where it took less than `LEAST`. The clock is
    read by a thread, which the host's work hardly notices.
    """
    found: dict[str, float] = {}
    if device.type != "cuda":
        yield found
        return
    with contextlib.ExitStack() as stack:
        try:
            library, handle = stack.enter_context(nvml(torch.cuda.get_device_properties(device).uuid))
            energy = library.nvmlDeviceGetTotalEnergyConsumption(handle)
        except Exception:  # no NVML, an older card or driver, no permission: each has an exception of its own
            yield found
            return
        clocks: list[int] = []
        over = threading.Event()
        reader = threading.Thread(target=_read, args=(library, handle, clocks, over), daemon=True)
        began = time.monotonic()
        reader.start()
        try:
            yield found
        finally:
            seconds = time.monotonic() - began
            over.set()
            reader.join()
        with contextlib.suppress(library.NVMLError):
            joules = (library.nvmlDeviceGetTotalEnergyConsumption(handle) - energy) / 1e3
            if seconds >= LEAST and clocks:
                found |= {"watts": joules / seconds, "sm_mhz": statistics.median(clocks)}


def _read(library: Any, handle: Any, clocks: list[int], over: threading.Event) -> None:
    with contextlib.suppress(library.NVMLError):
        while not over.wait(EVERY):
            clocks.append(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
