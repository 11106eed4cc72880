"""Times under other tools are predicted from a trace by the frozen factors of three networks, where they fit."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from helpers.profiles import ADD, CONV, Launch, write_profile
from helpers.repository import ROOT

from medddpm.measure.report import gains
from medddpm.measure.report.folder import Profile, read_profile
from medddpm.measure.report.page.report import write_report

RECORDS = ROOT / "figures" / "records" / "H200" / "networks"
PROGRAM = {"name": "train.py", "step_ms": [10.0, 11.0, 12.0]}
STEP = [Launch(CONV, 6000.0), Launch(ADD, 2000.0, "backward")]
TABLE = pd.DataFrame(
    [
        ("faster", "convolution", 0.5, 0.4, 1.0),
        ("faster", "pointwise", 0.25, 0.25, 0.25),
        ("faster", gains.IDLE, 0.0, 0.0, 1.0),
    ],
    columns=list(gains.COLUMNS),
)


def profiled(folder: Path, launches: Any = STEP, **program: Any) -> Profile:
    return read_profile(write_profile(folder, launches, program={**PROGRAM, **program}))


def traced() -> dict[str, dict[str, Profile]]:
    names = ("nnunet", "segresnet", "swin")
    return {name: {tool.name: read_profile(tool) for tool in sorted((RECORDS / name).iterdir())} for name in names}


def test_the_frozen_factors_are_those_of_the_records() -> None:
    made = gains.factors(traced())
    pd.testing.assert_frame_equal(made, gains.frozen(), check_exact=False, atol=1e-3, rtol=0)


def test_a_step_is_the_sum_of_its_kinds_by_their_factors(tmp_path: Path) -> None:
    (gain,) = gains.predicted(profiled(tmp_path), TABLE)
    assert (gain.tool, gain.ms) == ("faster", pytest.approx(0.5 * 6 + 0.25 * 2))  # and 3 ms idle, which go
    assert (gain.least, gain.most) == (pytest.approx(2.9), pytest.approx(6 + 0.5 + 3))
    assert gain.faster == pytest.approx(11 / 3.5)


def test_the_three_networks_are_predicted_as_the_page_says() -> None:
    off = []
    for profiles in traced().values():
        for gain in gains.predicted(profiles[gains.UNTOUCHED]):
            if gain.tool in profiles:
                off.append(abs(gain.ms / statistics.median(profiles[gain.tool].program.step_ms) - 1))
    assert f"{statistics.median(off):.0%} in the median and by {max(off):.0%} at most" in gains.OFF


@pytest.mark.parametrize(
    ("launches", "program", "why"),
    [
        (STEP, {"step_ms": []}, "was not recorded"),
        (STEP, {"varies": True}, "the same kernels each time"),
        (STEP, {"gpus": 2}, "one GPU"),
        ([Launch(CONV, 6000.0)], {}, "no backward pass"),
        ([*STEP, Launch("void at::native::add<c10::BFloat16>", 1000.0)], {}, "has a tool already"),
        ([*STEP, Launch("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchw", 1000.0)], {}, "switch TF32 on"),
    ],
)
def test_what_the_factors_do_not_fit_is_not_predicted(launches: Any, program: Any, why: str, tmp_path: Path) -> None:
    assert gains.refused(profiled(tmp_path / "fits")) == ""
    assert why in gains.refused(profiled(tmp_path / "other", launches, **program))


def test_another_profile_of_the_same_step_is_its_measurement(tmp_path: Path) -> None:
    plain, fast = (read_profile(RECORDS / "nnunet" / tool) for tool in ("pytorch", "accelerate"))
    other = read_profile(RECORDS / "segresnet" / "accelerate")
    assert gains.measured(plain, [fast, other]) == {"accelerate": pytest.approx(20.84, abs=0.01)}
    assert gains.measured(profiled(tmp_path / "own"), [fast]) == {}
    page = write_report([plain, fast], tmp_path / "report.html").read_text()
    (row,) = BeautifulSoup(page, "html.parser").find_all("td", string="accelerate")
    assert [cell.get_text() for cell in row.parent.find_all("td")][4:] == ["20.8", "1.17"]
    assert "has a tool already" in page
