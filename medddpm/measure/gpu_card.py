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
    """Returns the unit of each row of Table 1 by its name, in the paper's order; "" if it has none.

    Args:
        paper: schema `PAPER`.
    """
    rows = _table_1(paper).drop_duplicates("metric")
    return dict(zip(rows["metric"], rows["unit"].fillna(""), strict=True))


def read_card(paper: pd.DataFrame) -> pd.DataFrame:
    """Reads the properties of GPU 0 from its driver, through NVML and PyTorch.

    The driver gives neither the memory's type nor the abilities of each kind of unit. Properties of the architecture
    come from the paper's column of the same architecture, and their origin says so.

    Args:
        paper: schema `PAPER`, with Table 1.

    Returns:
        schema `CARD`, a row for each known property.

    Raises:
        BadInput: there is no NVIDIA GPU here.
    """
    units = properties(paper)
    with nvml() as (library, handle):
        values = dict(_from_driver(library, handle))
    kin = same_architecture(paper, str(values.get("architecture", ("", ""))[0]))
    values |= {
        name: (value, f"{SAME_ARCHITECTURE} ({gpu} in the paper)")
        for name, (gpu, value) in kin.items()
        if name not in values
    }
    rows = [(name, *values[name], unit) for name, unit in units.items() if name in values]
    return pd.DataFrame(rows, columns=["property", "value", "origin", "unit"])[list(CARD.columns)]


def same_architecture(paper: pd.DataFrame, architecture: str) -> dict[str, tuple[str, str]]:
    """Returns (card, value) by property of an architecture, taken from the paper's card of that architecture."""
    table = _table_1(paper)
    cards = table[(table["metric"] == "architecture") & (table["value"] == architecture)]["gpu"]
    rows = table[table["gpu"].isin(cards) & table["metric"].isin(_OF_THE_ARCHITECTURE)]
    return {str(row.metric): (str(row.gpu), str(row.value)) for row in rows.itertuples()}


def table_1(paper: pd.DataFrame, cards: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Returns Table 1: a row for each property, a column for each card, the measured ones after the paper's.

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
    """Yields each property that the driver gives, with (value, origin).

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

    queries: list[tuple[str, Callable[[], Any], str]] = [
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
    for name, value, origin in queries:
        # AssertionError, RuntimeError: a PyTorch built without CUDA, or that sees no GPU
        with contextlib.suppress(nvml.NVMLError, ValueError, AssertionError, RuntimeError):
            yield name, (str(value()), origin)


def _architecture(nvml: Any, handle: Any) -> str:
    """Returns the architecture's name, as "Hopper".

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
    """Returns the bandwidth of all active links, both directions, GB/s.

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
