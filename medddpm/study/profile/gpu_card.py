"""This machine's card as its driver describes it, for Table 1 (ICPE '26, arXiv:2606.19365, Section 2.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.records.schemas import CARD

# Table 1's rows in the paper's order, by the names of its claims' metrics, with the unit they are given in.
PROPERTIES = {
    "architecture": "",
    "CUDA cores": "",
    "memory size": "GB",
    "memory type": "",
    "memory bandwidth": "GB/s",
    "peak FP32": "TFLOP/s",
    "Tensor Cores": "",
    "NVLink bandwidth": "GB/s",
    "PCIe version": "",
    "multi-instance GPU": "",
    "Transformer Engine": "",
    "L1 cache per SM": "KB",
    "L2 cache": "MB",
    "supported precision": "",
}
DRIVER, DERIVED, SAME_ARCHITECTURE = "driver", "derived", "same architecture"


def read_card(paper: pd.DataFrame) -> pd.DataFrame:
    """What the driver of GPU 0 says, through NVML (nvidia-ml-py) and PyTorch.

    The driver names neither the memory's type nor what each kind of unit can compute; what is a property of the
    architecture is taken from the paper's column of the same architecture, and said to be.

    Args:
        paper: schema `schemas.PAPER`, whose Table 1 is looked up.

    Returns:
        schema `CARD`, a row a property that is known.

    Raises:
        BadInput: there is no NVIDIA GPU here.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:  # no library, no driver, no GPU: NVML has an exception for each
        problem = f"NVML finds no NVIDIA GPU here ({type(error).__name__})"
        raise BadInput("card", problem, "read the card on a machine with one; the records need none") from None
    try:
        rows = _from_driver(pynvml, handle)
    finally:
        pynvml.nvmlShutdown()
    known = {name for name, *_ in rows}
    kin = same_architecture(paper, {n: v for n, v, *_ in rows}.get("architecture", ""))
    rows += [
        (name, value, PROPERTIES[name], f"{SAME_ARCHITECTURE} ({gpu} in the paper)")
        for name, (gpu, value) in kin.items()
        if name not in known
    ]
    table = pd.DataFrame(rows, columns=list(CARD.columns))
    return table.sort_values("property", key=lambda names: names.map(list(PROPERTIES).index), ignore_index=True)


def same_architecture(paper: pd.DataFrame, architecture: str) -> dict[str, tuple[str, str]]:
    """Of the paper's card of that architecture, what holds for every card of it: (card, value) by property."""
    table = paper[paper["figure"] == "Table 1"]
    cards = table[(table["metric"] == "architecture") & (table["value"] == architecture)]["gpu"]
    rows = table[table["gpu"].isin(cards) & table["metric"].isin(_OF_THE_ARCHITECTURE)]
    return {str(row.metric): (str(row.gpu), str(row.value)) for row in rows.itertuples()}


def table_1(paper: pd.DataFrame, cards: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Table 1: a row a property, a column a card, the measured ones behind the paper's.

    Args:
        paper: schema `PAPER`.
        cards: schema `CARD` by the card's name.
    """
    stated = paper[(paper["figure"] == "Table 1") & (paper["subject"] == "GPU")]
    columns = {f"{gpu} (paper)": rows.set_index("metric")["value"] for gpu, rows in stated.groupby("gpu", sort=False)}
    columns |= {f"{gpu} (driver)": card.set_index("property")["value"] for gpu, card in cards.items()}
    table = pd.DataFrame(columns).reindex(list(PROPERTIES)).fillna("not reported")
    return table.set_axis([f"{name}, {unit}" if unit else name for name, unit in PROPERTIES.items()])


_OF_THE_ARCHITECTURE = ("Tensor Cores", "Transformer Engine", "L1 cache per SM", "supported precision")


def _from_driver(nvml: Any, handle: Any) -> list[tuple[str, str, str, str]]:
    """Property, value, unit and origin of all that the driver tells; what it refuses is left out."""
    import torch

    rows: list[tuple[str, str, str, str]] = []

    def tell(name: str, value: Callable[[], Any], origin: str = DRIVER) -> None:
        # AssertionError, RuntimeError: a PyTorch built without CUDA, or that sees no GPU
        with contextlib.suppress(nvml.NVMLError, ValueError, AssertionError, RuntimeError):
            rows.append((name, str(value()), PROPERTIES[name], origin))

    tell("architecture", lambda: _architecture(nvml, handle))
    tell("CUDA cores", lambda: nvml.nvmlDeviceGetNumGpuCores(handle))
    tell("memory size", lambda: round(nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30))
    # Two transfers a clock; the bus is in bits.
    tell(
        "memory bandwidth",
        lambda: round(
            2e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
            * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8 / 1e9
        ),
        f"{DERIVED}: memory clock × bus width",
    )  # fmt: skip
    tell(
        "peak FP32",
        lambda: round(
            2e6 * nvml.nvmlDeviceGetNumGpuCores(handle)
            * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) / 1e12, 1,
        ),
        f"{DERIVED}: 2 × CUDA cores × SM clock",
    )  # fmt: skip
    tell("NVLink bandwidth", lambda: _nvlink(nvml, handle))
    tell("PCIe version", lambda: f"Gen{nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(handle)}")
    rows.append(("multi-instance GPU", "yes" if _has_mig(nvml, handle) else "no", "", DRIVER))
    tell("L2 cache", lambda: round(torch.cuda.get_device_properties(0).L2_cache_size / 2**20))
    return rows


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
        ValueError: no link is active, as in a machine that was given one card of several; or no speed is told.
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
        raise ValueError("the links' speed is not told")
    return round(2 * links * speed.value.uiVal / 1e3)


def _has_mig(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False
    return True
