"""This machine's GPU as its driver describes it, for Table 1 (ICPE '26, arXiv:2606.19365, Section 2.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from medddpm.measure.machine import nvml
from medddpm.measure.schemas import CARD

DRIVER, DERIVED, SAME_ARCHITECTURE = "driver", "derived", "same architecture"


def properties(paper: pd.DataFrame) -> dict[str, str]:
    """Table 1's rows in the paper's order, with the unit each is given in; "" where it has none.

    Args:
        paper: schema `PAPER`.
    """
    rows = _table_1(paper).drop_duplicates("metric")
    return dict(zip(rows["metric"], rows["unit"].fillna(""), strict=True))


def read_card(paper: pd.DataFrame) -> pd.DataFrame:
    """Returns what the driver of GPU 0 says, through NVML and PyTorch.

    The driver names neither the memory's type nor what each kind of unit can compute. What is a property of the
    architecture is taken from the paper's column of the same architecture, and its origin says so.

    Args:
        paper: schema `PAPER`, whose Table 1 is looked up.

    Returns:
        schema `CARD`, a row for each known property.

    Raises:
        BadInput: there is no NVIDIA GPU here.
    """
    units = properties(paper)
    with nvml() as (library, handle):
        found = dict(_from_driver(library, handle))
    kin = same_architecture(paper, str(found.get("architecture", ("", ""))[0]))
    found |= {
        name: (value, f"{SAME_ARCHITECTURE} ({gpu} in the paper)")
        for name, (gpu, value) in kin.items()
        if name not in found
    }
    rows = [(name, *found[name], unit) for name, unit in units.items() if name in found]
    return pd.DataFrame(rows, columns=["property", "value", "origin", "unit"])[list(CARD.columns)]


def same_architecture(paper: pd.DataFrame, architecture: str) -> dict[str, tuple[str, str]]:
    """What holds for every card of an architecture, taken from the paper's card of it: (card, value) by property."""
    table = _table_1(paper)
    cards = table[(table["metric"] == "architecture") & (table["value"] == architecture)]["gpu"]
    rows = table[table["gpu"].isin(cards) & table["metric"].isin(_OF_THE_ARCHITECTURE)]
    return {str(row.metric): (str(row.gpu), str(row.value)) for row in rows.itertuples()}


def table_1(paper: pd.DataFrame, cards: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Table 1: a row for each property, a column for each card, the measured ones after the paper's.

    Args:
        paper: schema `PAPER`.
        cards: by name, each of schema `CARD`.
    """
    stated, units = _table_1(paper), properties(paper)
    columns = {f"{gpu} (paper)": rows.set_index("metric")["value"] for gpu, rows in stated.groupby("gpu", sort=False)}
    columns |= {f"{gpu} (here)": card.set_index("property")["value"] for gpu, card in cards.items()}
    table = pd.DataFrame(columns).reindex(list(units)).fillna("not reported")
    return table.set_axis([f"{name}, {unit}" if unit else name for name, unit in units.items()])


_OF_THE_ARCHITECTURE = ("Tensor Cores", "Transformer Engine", "L1 cache per SM", "supported precision")


def _table_1(paper: pd.DataFrame) -> pd.DataFrame:
    return paper[(paper["figure"] == "Table 1") & (paper["subject"] == "GPU")]


def _from_driver(nvml: Any, gpu: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Property, and (value, origin), of all that the driver tells; what it refuses is left out.

    Args:
        nvml: the library.
        gpu: its handle of the card.
    """
    import torch

    def peak_tflops() -> float:
        clock_mhz = nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)
        return round(2e6 * nvml.nvmlDeviceGetNumGpuCores(gpu) * clock_mhz / 1e12, 1)

    def bandwidth_gbps() -> int:
        clock_mhz = nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM)
        return round(2e6 * clock_mhz * nvml.nvmlDeviceGetMemoryBusWidth(gpu) / 8 / 1e9)  # two transfers a clock

    asked: list[tuple[str, Callable[[], Any], str]] = [
        ("architecture", lambda: _architecture(nvml, gpu), DRIVER),
        ("CUDA cores", lambda: nvml.nvmlDeviceGetNumGpuCores(gpu), DRIVER),
        ("memory size", lambda: round(nvml.nvmlDeviceGetMemoryInfo(gpu).total / 2**30), DRIVER),
        ("memory bandwidth", bandwidth_gbps, f"{DERIVED}: memory clock × bus width"),
        ("peak FP32", peak_tflops, f"{DERIVED}: 2 × CUDA cores × SM clock"),
        ("NVLink bandwidth", lambda: _nvlink(nvml, gpu), DRIVER),
        ("PCIe version", lambda: f"Gen{nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu)}", DRIVER),
        ("multi-instance GPU", lambda: "yes" if _has_mig(nvml, gpu) else "no", DRIVER),
        ("L2 cache", lambda: round(torch.cuda.get_device_properties(0).L2_cache_size / 2**20), DRIVER),
    ]
    for name, value, origin in asked:
        # AssertionError, RuntimeError: a PyTorch built without CUDA, or that sees no GPU
        with contextlib.suppress(nvml.NVMLError, ValueError, AssertionError, RuntimeError):
            yield name, (str(value()), origin)


def _architecture(nvml: Any, handle: Any) -> str:
    """The architecture's name, as "Hopper".

    Raises:
        ValueError: the library does not know it.
    """
    number = nvml.nvmlDeviceGetArchitecture(handle)
    names = {
        value: name.removeprefix("NVML_DEVICE_ARCH_").capitalize()
        for name, value in vars(nvml).items()
        if name.startswith("NVML_DEVICE_ARCH_") and not name.endswith("_UNKNOWN")
    }
    if number not in names:
        raise ValueError(f"architecture {number}")
    return names[number]


def _nvlink(nvml: Any, handle: Any) -> int:
    """Bandwidth of all active links, both directions, GB/s.

    Raises:
        ValueError: no link is active, as in a machine that has one card of several; or the driver gives no speed.
    """
    links = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            links += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            break
    if not links:
        raise ValueError("no active link")
    (speed,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    if speed.nvmlReturn != nvml.NVML_SUCCESS:
        raise ValueError("no speed of the links")
    return round(2 * links * speed.value.uiVal / 1e3)


def _has_mig(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False
    return True
