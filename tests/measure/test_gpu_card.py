"""Table 1: a card as a stand-in for its driver tells it, beside the paper's three."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure import schemas
from medddpm.measure.gpu_card import DRIVER, properties, read_card, same_architecture, table_1
from medddpm.measure.tables import read_table, write_table
from study.claims.paper import paper_claims


class NVMLError(Exception):
    """As pynvml's own, of which there is one a return code."""


class Driver(types.ModuleType):
    """What `read_card` asks of pynvml, for a card like the paper's H100; a test replaces single answers."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_FEATURE_ENABLED = 0, 1
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_NVLINK_MAX_LINKS, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 18, 90

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.is_open = False
        # instance attributes, as a module's are: the architecture's name is looked up among them
        self.NVML_DEVICE_ARCH_AMPERE, self.NVML_DEVICE_ARCH_HOPPER, self.NVML_DEVICE_ARCH_UNKNOWN = 7, 9, 0xFFFFFFFF

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        assert self.is_open
        self.is_open = False

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        assert self.is_open
        return f"card {index}"

    def nvmlDeviceGetArchitecture(self, handle: str) -> int:
        assert handle == "card 0"
        return 9

    def nvmlDeviceGetNumGpuCores(self, handle: str) -> int:
        return 14592

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(total=79.6 * 2**30)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return {self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 1593}[clock]

    def nvmlDeviceGetMemoryBusWidth(self, handle: str) -> int:
        return 5120

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        return int(link < 12)

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        assert fields == [90]
        return [types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=25_000))]

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, handle: str) -> int:
        return 5

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [0, 0]  # off, but it has it


def refuse(*_: object) -> Any:
    raise NVMLError("Not Supported")


@pytest.fixture
def paper() -> pd.DataFrame:
    return paper_claims(ROOT)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, paper: pd.DataFrame) -> Callable[..., pd.DataFrame]:
    """Reads the card of a `Driver` whose answers named are replaced; the table has been written and read again."""

    def answered(**answers: Callable[..., Any]) -> pd.DataFrame:
        driver = Driver()
        vars(driver).update(answers)
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(L2_cache_size=50 * 2**20)
        )
        table = read_card(paper)
        assert not driver.is_open, "NVML is left open"
        return table.set_index("property")

    return answered


def test_a_card_as_its_driver_tells_it(read: Callable[..., pd.DataFrame], paper: pd.DataFrame) -> None:
    card = read()
    assert list(card.index) == [name for name in properties(paper) if name != "memory type"], "the paper's order"
    told = card[~card["origin"].str.startswith("same")]
    assert told["value"].to_dict() == {
        "architecture": "Hopper",
        "CUDA cores": "14592",
        "memory size": "80",
        "memory bandwidth": "2039",  # 1593 MHz × 2 × 640 bytes
        "peak FP32": "51.2",  # 2 × 14592 × 1755 MHz
        "NVLink bandwidth": "600",  # 12 links × 25 GB/s × 2
        "PCIe version": "Gen5",
        "multi-instance GPU": "yes",
        "L2 cache": "50",
    }
    assert card.loc["memory bandwidth"].to_dict() == {
        "value": "2039", "unit": "GB/s", "origin": "derived: memory clock × bus width",
    }  # fmt: skip
    assert card.loc["CUDA cores", "origin"] == DRIVER
    assert (card["unit"] == pd.Series(properties(paper))[card.index]).all()


def test_what_the_architecture_decides_comes_from_the_papers_card(read: Callable[..., pd.DataFrame]) -> None:
    names = ["Tensor Cores", "Transformer Engine", "L1 cache per SM", "supported precision"]
    hopper = read().loc[names]
    assert hopper["value"].tolist() == ["Gen4 + FP8", "yes", "256", "FP16/32/64, TF32, INT8, INT4, FP8"]
    assert set(hopper["origin"]) == {"same architecture (H100 in the paper)"}
    ampere = read(nvmlDeviceGetArchitecture=lambda _: 7).loc[names]
    assert ampere["value"].tolist() == ["Gen3", "no", "192", "FP16/32/64, TF32, INT8, INT4"]
    assert set(ampere["origin"]) == {"same architecture (A100 in the paper)"}


@pytest.mark.parametrize("number", [0xFFFFFFFF, 77])
def test_of_an_unknown_architecture_nothing_is_supposed(read: Callable[..., pd.DataFrame], number: int) -> None:
    card = read(nvmlDeviceGetArchitecture=lambda _: number)
    assert set(card["origin"]) == {DRIVER, "derived: memory clock × bus width", "derived: 2 × CUDA cores × SM clock"}
    assert "architecture" not in card.index
    assert card.loc["CUDA cores", "value"] == "14592"


def test_what_the_driver_refuses_is_left_out(read: Callable[..., pd.DataFrame]) -> None:
    card = read(nvmlDeviceGetNvLinkState=refuse, nvmlDeviceGetMigMode=refuse)
    assert "NVLink bandwidth" not in card.index
    assert card.loc["multi-instance GPU", "value"] == "no"
    assert card.loc["PCIe version", "value"] == "Gen5"
    assert "NVLink bandwidth" not in read(nvmlDeviceGetNvLinkState=lambda *_: 0).index, "no link is active"
    silent = types.SimpleNamespace(nvmlReturn=3, value=types.SimpleNamespace(uiVal=0))
    assert "NVLink bandwidth" not in read(nvmlDeviceGetFieldValues=lambda *_: [silent]).index, "no speed"
    without = read(nvmlDeviceGetNumGpuCores=refuse)
    assert {"CUDA cores", "peak FP32"}.isdisjoint(without.index)
    assert len(without) == len(read()) - 2


def test_links_are_counted_up_to_the_last_that_the_card_has(read: Callable[..., pd.DataFrame]) -> None:
    def two(_: str, link: int) -> int:
        return 1 if link < 2 else refuse()

    assert read(nvmlDeviceGetNvLinkState=two).loc["NVLink bandwidth", "value"] == "100"


@pytest.mark.parametrize("error", [AssertionError("Torch not compiled with CUDA enabled"), RuntimeError("no GPUs")])
def test_a_pytorch_that_sees_no_gpu(
    error: Exception, read: Callable[..., pd.DataFrame], paper: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read()

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    card = read_card(paper)
    assert sorted(set(whole.index) - set(card["property"])) == ["L2 cache"]


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_no_gpu_is_said_in_a_line(paper: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    driver = Driver()
    setattr(driver, fails, refuse)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with pytest.raises(BadInput, match=r"card: NVML finds no NVIDIA GPU here \(NVMLError\)") as raised:
        read_card(paper)
    assert "\n" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_no_library_is_said_in_a_line(paper: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BadInput, match=r"finds no NVIDIA GPU here \(ModuleNotFoundError\)"):
        read_card(paper)


def test_a_card_fits_its_schema(read: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    card = read().reset_index()
    path = write_table(card, tmp_path / "card.csv", schemas.CARD, {})
    assert read_table(path, schemas.CARD)["value"].tolist() == card["value"].tolist()


def test_table_1_has_the_papers_cards_and_then_ours(paper: pd.DataFrame) -> None:
    ours = pd.DataFrame({"property": ["CUDA cores", "architecture"], "value": ["16896", "Hopper"]})
    table = table_1(paper, {"H200": ours})
    assert list(table.columns) == ["H100 (paper)", "A100 (paper)", "V100 (paper)", "H200 (here)"]
    assert list(table.index[:6]) == [
        "architecture", "CUDA cores", "memory size, GB", "memory type", "memory bandwidth, GB/s", "peak FP32, TFLOP/s",
    ]  # fmt: skip
    assert len(table) == len(properties(paper)) == 14
    assert table.loc["architecture"].tolist() == ["Hopper", "Ampere", "Volta", "Hopper"]
    assert table.loc["CUDA cores"].tolist() == ["14592", "6912", "5120", "16896"]
    assert table.loc["L2 cache, MB"].tolist() == ["50", "40", "6", "not reported"]
    papers = table.drop(columns="H200 (here)")
    assert (papers != "not reported").all(axis=None), "the paper states all of its Table 1"


def test_the_record_of_this_study_agrees_with_the_papers_architecture(paper: pd.DataFrame) -> None:
    card = read_table(ROOT / "figures" / "records" / "H200" / "card.csv", schemas.CARD).set_index("property")
    kin = same_architecture(paper, card.loc["architecture", "value"])
    assert {name: card.loc[name, "value"] for name in kin} == {name: value for name, (_, value) in kin.items()}
    assert {gpu for gpu, _ in kin.values()} == {"H100"}
    assert same_architecture(paper, "") == {}
