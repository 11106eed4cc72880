"""Measures a GPU's power and clock while work is timed, by NVML beside the timed process."""

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
LEAST = 0.5  # s: the driver's counter of energy moves some ten times a second, so a shorter time is too coarse


@contextlib.contextmanager
def measured_power(device: torch.device) -> Iterator[dict[str, float]]:
    """On leaving, fills the dict with the mean power, "watts", and the median clock of the SMs, "sm_mhz".

    It stays empty without a GPU, if NVML is missing or refuses, and after less than `LEAST` seconds. A thread reads the
    clock, which costs the host's work next to nothing.
    """
    power: dict[str, float] = {}
    if device.type != "cuda":
        yield power
        return
    with contextlib.ExitStack() as stack:
        try:
            library, handle = stack.enter_context(nvml(torch.cuda.get_device_properties(device).uuid))
            energy = library.nvmlDeviceGetTotalEnergyConsumption(handle)
        except Exception:  # no NVML, an older card or driver, no permission: each has an exception of its own
            yield power
            return
        clocks: list[int] = []
        over = threading.Event()
        reader = threading.Thread(target=_read, args=(library, handle, clocks, over), daemon=True)
        began = time.monotonic()
        reader.start()
        try:
            yield power
        finally:
            seconds = time.monotonic() - began
            over.set()
            reader.join()
        with contextlib.suppress(library.NVMLError):
            joules = (library.nvmlDeviceGetTotalEnergyConsumption(handle) - energy) / 1e3
            if seconds >= LEAST and clocks:
                power |= {"watts": joules / seconds, "sm_mhz": statistics.median(clocks)}


def _read(library: Any, handle: Any, clocks: list[int], over: threading.Event) -> None:
    with contextlib.suppress(library.NVMLError):
        while not over.wait(EVERY):
            clocks.append(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM))
