"""The rules that say what bounds a step: each with a profile that triggers it; what is said where nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import page_text
from helpers.profiles import SUM, Launch, write_profile
from helpers.repository import ROOT

from medddpm.measure.report import bounds
from medddpm.measure.report.bounds import FEW, HOST, LATENCY, LOADER, MEMORY, RULES, TALK, TENSOR, UNITS, UNKNOWN
from medddpm.measure.report.folder import read_profile

LONG = Launch(us=1000.0)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def bounded(folder: Path, launches: Sequence[Launch], **how: Any) -> tuple[bounds.Bounds, list[str]]:
    profile = read_profile(write_profile(folder, launches, **how))
    found = bounds.of_step(profile)
    assert sum(found.shares.values()) == pytest.approx(1)
    return found, bounds.sentences(found, profile.known())


# A launch that each rule fits, and at which value it stops to
LAUNCHES = {
    TENSOR: (Launch(tensor=60.0, dram=99.0, sm=99.0), Launch(tensor=59.9)),
    MEMORY: (Launch(dram=60.0, sm=99.0), Launch(dram=59.9)),
    UNITS: (Launch(sm=60.0), Launch(sm=59.9)),
    FEW: (Launch(grid="(11, 3, 3)", us=5.0), Launch(grid="(25, 4, 1)", us=5.0)),
    LATENCY: (Launch(counted=True), Launch(us=5.0, counted=False)),
    TALK: (Launch(NCCL, tensor=99.0), Launch("all_reduce")),
    UNKNOWN: (Launch(us=5.0, counted=False), Launch(us=4.9, counted=False)),
}


@pytest.mark.parametrize("bound", LAUNCHES)
def test_a_launch_has_the_bound_of_the_first_rule_that_fits(bound: str, tmp_path: Path) -> None:
    fitting, other = LAUNCHES[bound]
    found, said = bounded(tmp_path / "fitting", [fitting])
    assert found.bound == bound
    assert found.shares[bound] == 1
    assert bound in said[0] or bound[0].upper() + bound[1:] in said[0]
    assert bounded(tmp_path / "other", [other])[0].bound != bound


def test_short_launches_without_counters_are_latency(tmp_path: Path) -> None:
    found, said = bounded(tmp_path, [Launch(us=4.0)] * 9, counted=False)
    assert (found.bound, found.small) == (LATENCY, 1)
    assert said[0] == "Latency bounds this step: 100% of the GPU's time in this step."


def test_the_latencys_time_is_divided(tmp_path: Path) -> None:
    launches = [Launch(us=4.0), Launch("few", 12.0, warps=15.9), Launch("many", 24.0, warps=16.0)]
    found, said = bounded(tmp_path, launches)
    assert (found.small, found.few_warps) == (pytest.approx(0.1), pytest.approx(0.3))
    assert "10% is in launches shorter than 5 µs and 30% in others with fewer than 16 warps" in " ".join(said)


def test_an_idle_gpu_waits_for_the_host(tmp_path: Path) -> None:
    """The median step of 4 ms has 1 ms of launches, and nobody loads."""
    found, said = bounded(tmp_path, [LONG], program={"step_ms": [4.0, 3.9, 9.0]})
    assert found.shares[HOST] == pytest.approx(0.75)
    assert found.shares[LATENCY] == pytest.approx(0.25)
    assert said[0] == "The host bounds this step: 75% of the step's time."
    assert (found.wall_ms, found.busy_ms, found.slowed) == (4.0, 1.0, False)


def test_an_idle_gpu_waits_for_the_loader_as_long_as_the_host_does(tmp_path: Path) -> None:
    found, said = bounded(tmp_path / "a", [LONG], program={"step_ms": [4.0], "loading_ms": [2.0, None]})
    assert found.shares[LOADER] == pytest.approx(0.5)
    assert found.shares[HOST] == pytest.approx(0.25)
    assert said[0] == "The loader bounds this step: 50% of the step's time."
    hidden, _ = bounded(tmp_path / "b", [LONG], program={"step_ms": [1.0], "loading_ms": [0.9]})
    assert hidden.shares[LOADER] == 0, "the GPU was busy all the time"


def test_launches_that_overlap_are_busy_once(tmp_path: Path) -> None:
    """1 ms from 0, one within it, one from 3 ms on: 2 of 4 ms."""
    launches = [LONG, Launch(SUM, 500.0), LONG]
    found, said = bounded(tmp_path, launches, starts=[0.0, 200.0, 3000.0])
    assert (found.busy_ms, found.wall_ms, found.slowed) == (2.0, 4.0, True)
    assert found.shares[HOST] == pytest.approx(0.5)
    assert "the host's share is at most this" in said[-1]


def test_a_step_is_no_shorter_than_its_launches(tmp_path: Path) -> None:
    found, _ = bounded(tmp_path, [LONG], program={"step_ms": [0.5]})
    assert found.shares[HOST] == 0


def test_what_nobody_can_tell_is_said(tmp_path: Path) -> None:
    _, said = bounded(tmp_path, [LONG], counted=False)
    assert said[0].startswith("What bounds this step cannot be told: launches without counters have 100%")
    assert any("nor when each launch began" in line for line in said)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said[-1]


def test_no_single_thing(tmp_path: Path) -> None:
    launches = [Launch("a", tensor=70.0), Launch("b", dram=70.0), Launch("c", sm=70.0)]
    _, said = bounded(tmp_path, launches)
    assert said[0].startswith("No single thing bounds this step: the largest share of the GPU's time")
    assert said[1].startswith("Then: ")
    assert said[1].count("33%") == 2


def test_the_books_settings() -> None:
    """FAST keeps the Tensor Cores busy, OPT12 waits, and BASE computes in FP32 on other units."""
    shares = {
        name: bounds.of_step(read_profile(ROOT / "figures" / "records" / "H100", name)).shares
        for name in ("base", "opt12", "fast")
    }
    assert max(shares["fast"], key=shares["fast"].get) == TENSOR
    assert shares["opt12"][MEMORY] > 0.4
    assert shares["base"][UNITS] > 0.3
    assert shares["base"][TENSOR] == 0


def test_the_page_has_the_rules_of_the_code() -> None:
    text = page_text("site/profile_yours.md")
    for rule in RULES:
        assert f"| {rule.bound} | {rule.when} |" in text
