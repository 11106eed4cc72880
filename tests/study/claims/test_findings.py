from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.schemas import KERNELS
from medddpm.measure.tables import read_table, write_table
from study.claims import findings, takeaways, verdicts
from study.claims.by_figure import PROFILED
from study.claims.case import Case
from study.claims.kernels import DOMINANT, GEMMS, KN3, POINTWISE, KernelsOfRun, Runs
from study.claims.numbers import (
    Number,
    cycles,
    family_shares,
    increase,
    instruction_share,
    largest,
    points,
    rank,
    ratio,
    summary,
    time_share,
)
from study.claims.paper import PAPER_SETTINGS, Claim, claims_of, paper_claims
from study.claims.reasons import as_text
from study.records.schemas import CLAIMS, CONCLUSIONS

RECORDS = ROOT / "figures" / "records"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f32f32_tilesize128x64"
NAMES = {
    "sm80_xmma_fprop_implicit": CONVOLUTION,
    "xmma_wgrad": "sm80_xmma_wgrad_implicit_gemm_f32f32",
    "gemm": "gemm_f32",
    "RowwiseMomentsCUDAKernel": "RowwiseMomentsCUDAKernel<float>",
    "vectorized_elementwise_kernel": "vectorized_elementwise_kernel<4>",
    "copy": "elementwise_kernel<direct_copy_kernel_cuda>",
    "nhwcToNchwKernel": "nhwcToNchwKernel<float>",
    "reduce_kernel": "reduce_kernel<512>",
}


def launch(config: str, family: str, **values: object) -> dict[str, object]:
    """One row of a table: everything it does not name is 1, its instructions are all integer."""
    row: dict[str, object] = {name: 1.0 for name, column in KERNELS.columns.items() if column.dtype == "float64"}
    row |= dict.fromkeys(CLASSES, 0.0) | {"inst_int": 1.0}
    row |= {
        "config": config,
        "view": "window",
        "launch_index": 0,
        "count": 1,
        "grid": "(1, 1, 1)",
        "block": "(1, 1, 1)",
    }
    return row | {"family": family, "kernel": NAMES[family]} | values


def table(*rows: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame(rows)[list(KERNELS.columns)]


def run(*rows: dict[str, object]) -> KernelsOfRun:
    return KernelsOfRun(table(*rows))


CLAIMS_OF_PAPER = {claim.id: claim for claim in claims_of(paper_claims(ROOT))}


def ask(identity: str, gpu: str = "H100", value: str = "1") -> Claim:
    """A claim as if the paper stated another value of another card."""
    return replace(CLAIMS_OF_PAPER[identity], gpu=gpu, value=value, qualifier="=")


def judge(claim: Claim, runs: Runs, view: str) -> verdicts.Finding:
    return PROFILED[claim.id](Case(claim, runs, view))


def number(identity: str, run: KernelsOfRun, view: str = "window") -> str | None:
    return judge(ask(identity), {("H100", view): [run]}, view).our_value


BUSY = run(
    launch("BASE", "sm80_xmma_fprop_implicit", duration_ns=60.0, cycles_active=900.0, instructions=450.0, inst_fp=30.0,
           inst_int=10.0, inst_uniform=5.0, inst_move=5.0, tensor_pct=0.5, priority=1.0),
    launch("BASE", "gemm", duration_ns=10.0, tensor_pct=40.0, priority=8.0),
    launch("BASE", "RowwiseMomentsCUDAKernel", duration_ns=20.0, priority=7.0),
    launch("BASE", "vectorized_elementwise_kernel", duration_ns=6.0, tensor_pct=3.0, priority=3.0),
    launch("BASE", "copy", duration_ns=3.0, priority=0.5),
    launch("BASE", "nhwcToNchwKernel", duration_ns=1.0, priority=0.25),
)  # fmt: skip


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ("P085", 60.0),  # share of kernel time: sm80_xmma_fprop_implicit_gemm
        ("P092", 70.0),  # conv/GEMM
        ("P095", 10.0),  # Tensor Core work: not the pointwise one, busy as its pipe is
        ("P093", 20.0),  # row-wise moments
        ("P094", 6.0),  # elementwise
        ("P103", 9.0),  # elementwise_kernel
        ("P108", 10.0),  # elementwise + layout
        ("P096", 30.0),  # normalization + pointwise + layout
        ("P084", 0.0),  # implicit_convolveNd_sgemm
        ("P071", 0.5),  # its IPC
        ("P087", 60.0),  # its FP share of instructions
        ("P078", 10.0),  # its UD share of the IPC stack
        ("P115", 100 * 30 / 51),  # FP share of instructions of the dominant kernels
        ("P118", (0.5 + 40 + 1 + 3 + 1 + 1) / 6),  # Tensor Core utilization
    ],
)
def test_numbers_of_one_setting(identity: str, expected: float) -> None:
    """The same launches under every setting."""
    every = KernelsOfRun(pd.concat([BUSY.table.assign(config=setting) for setting in PAPER_SETTINGS]))
    assert number(identity, every) == as_text([expected])


def test_cycles_that_the_paper_sums_over_something_unsaid_are_not_decided() -> None:
    """The dominant GEMM has 900 cycles in one launch."""
    claim = ask("P077", value="900")
    finding = judge(claim, {("H100", "window"): [BUSY], ("H200", "window"): [BUSY]}, "window")
    assert verdicts.status_of(claim, finding) == "not_measurable"
    assert finding.reason.startswith("Undecidable: the paper does not say over which launches and SMs it sums")
    assert "all SMs and 1 launches our cycles are 900, on average 900 a launch." in finding.reason


def test_the_hundredfold_is_the_a100s_as_its_sentence_ends() -> None:
    claim = CLAIMS_OF_PAPER["P001"]
    alone = judge(claim, {("H100", "window"): [TWO]}, "window")
    assert verdicts.status_of(claim, alone) == "not_measurable"
    assert "We have no A100." in alone.reason
    decided = judge(claim, {("H100", "window"): [BUSY], ("A100", "window"): [TWO]}, "window")
    assert decided.card == "A100"
    assert f"The H100 gives {decided.our_value}. " in alone.reason


def test_a_step_s_scores_are_read_where_they_were_profiled_apart() -> None:
    families = {"xmma_wgrad": 9.0, "reduce_kernel": 1.0, "RowwiseMomentsCUDAKernel": 3.0}
    scored = run(*(launch("BASE", family, priority=score) for family, score in families.items()))
    bare = run(*(launch("BASE", family, priority=float("nan")) for family in families))
    runs = {("H100", "step"): [bare], ("H100", "step-by-function"): [scored]}
    assert judge(ask("P080", gpu="all"), runs, "step").our_value == "2"
    finding = judge(ask("P080", gpu="all"), {("H100", "step"): [bare]}, "step")
    assert finding.our_value is None
    assert finding.reason.startswith("No step of the H100 has ncu's estimated speedups.")


def test_close_scores_share_a_rank() -> None:
    """By priority: the tensor-core GEMM, 1 + 8 of two groups; normalization, 7; elementwise, 3."""

    def ranks(norm: float) -> list[str | None]:
        rows = BUSY.table.assign(priority=BUSY.table["priority"].mask(BUSY.table["priority"] == 7, norm))
        return [number(name, KernelsOfRun(rows)) for name in ("P081", "P080", "P082")]

    assert ranks(7.0) == ["1", "2", "3"]
    assert ranks(7.3) == ["1-2", "1-2", "3"]
    assert ranks(11.0) == ["1-2", "1-2", "3"]
    assert ranks(12.0) == ["2", "1", "3"]


def test_a_tie_is_said() -> None:
    tied = run(launch("BASE", "gemm", priority=8.0), launch("BASE", "RowwiseMomentsCUDAKernel", priority=7.0))
    finding = judge(ask("P080", gpu="all"), {("H100", "window"): [tied]}, "window")
    assert finding.our_value == "1-2"
    assert "It is a tie, because scores within 20% of each other count as equal" in finding.reason
    assert "hinges on a choice: without ties (rank 2), it would differ." in finding.reason
    first = judge(ask("P081", gpu="all"), {("H100", "window"): [tied]}, "window")
    assert "hinges" not in first.reason, "it is of rank 1 without ties too"


def test_hit_rates_above_100_percent_are_clipped_and_said() -> None:
    rows = [launch("BASE", "gemm", l2_hit_pct=pct) for pct in (60.0, 250.0)]
    finding = judge(ask("P159", value="64.1"), {("H100", "window"): [run(*rows)]}, "window")
    assert finding.our_value == "80"
    assert "For 1 of 2 launches the L2 hit rate reads above 100%" in finding.reason
    within = judge(ask("P159", value="64.1"), {("H100", "window"): [run(rows[0])]}, "window")
    assert "100%" not in within.reason


TWO = run(
    launch("BASE", "gemm", cycles_active=100.0, instructions=80.0, ipc=0.8, warps_per_cycle=10.0, inst_uniform=1.0,
           inst_int=9.0, stall_long_scoreboard=10.0, stall_math_pipe=20.0, stall_branch=40.0),
    launch("OPT1", "gemm", cycles_active=25.0, instructions=40.0, ipc=1.6, warps_per_cycle=12.0, inst_uniform=3.0,
           inst_int=7.0, stall_long_scoreboard=5.0, stall_math_pipe=20.0, stall_branch=4.0),
    launch("OPT2", "copy", cycles_active=10.0, instructions=80.0, ipc=0.4, warps_per_cycle=5.0,
           stall_long_scoreboard=1.0, stall_math_pipe=1.0, stall_branch=1.0),
    launch("OPT12", "copy", cycles_active=50.0, instructions=80.0, ipc=0.4, warps_per_cycle=5.0,
           stall_long_scoreboard=1.0, stall_math_pipe=1.0, stall_branch=1.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ("P100", "0.25"),  # SM cycles under OPT1, relative to BASE
        ("P006", "4"),  # SM cycles under OPT1, reduction
        ("P001", "10"),  # under the best setting
        ("P002", "2"),  # dynamic instructions under the best setting, reduction
        ("P101", "0.5"),  # instructions under OPT1
        ("P102", "2"),  # IPC under OPT1
        ("P005", "-50"),  # IPC under OPT2, increase
        ("P181", "1.2"),  # active warps per cycle under OPT1
        ("P192", "0.1"),  # divergent branch stalls under OPT1
        ("P196", "0.025-0.1"),  # all stall classes under OPT2 and OPT12
        ("P091", "0"),  # change of the kernel mix under OPT1
        ("P203", "1"),  # L2 hit rate under OPT12, against OPT2
        ("P117", "3"),  # uniform datapath and movement of the dominant kernels under OPT1
    ],
)
def test_numbers_against_base(identity: str, expected: str) -> None:
    assert number(identity, TWO) == expected


STALLS = ("stall_long_scoreboard", "stall_math_pipe", "stall_branch")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (increase(summary("ipc_geometric", "OPT1")), [100.0]),
        (ratio(summary(STALLS, "OPT1")), [0.5, 1.0, 0.1]),
        (ratio(summary(STALLS, "OPT2", "OPT12")), [0.1, 0.05, 0.025, 0.1, 0.05, 0.025]),
        (largest(points(family_shares("OPT2"))), [100.0]),
    ],
    ids=["an increase", "three columns", "three columns of two settings", "a change of the mix"],
)
def test_several_numbers_and_forms(number: Number, expected: list[float]) -> None:
    assert number.of(TWO) == pytest.approx(expected)


def test_step_counts_and_weights_where_a_window_does_not() -> None:
    rows = (
        launch("BASE", "gemm", count=3, duration_ns=10.0, cycles_active=10.0, l1_hit_pct=80.0),
        launch("BASE", "copy", count=1, duration_ns=10.0, cycles_active=10.0, l1_hit_pct=0.0),
    )
    step = run(*({**row, "view": "step"} for row in rows))
    assert number("P157", step, "step") == "60"
    assert number("P157", run(*rows)) == "40"
    assert cycles(DOMINANT, "BASE").of(step) == [30.0]
    assert time_share(GEMMS, "BASE").of(step) == pytest.approx([75.0])


def test_what_a_run_lacks_gives_no_number() -> None:
    alone = run(launch("OPT1", "gemm", priority=math.nan, tensor_pct=math.nan))
    assert [number(identity, alone) for identity in ("P100", "P126", "P119")] == [None, None, None]
    assert number("P127", alone) == "1"
    assert rank(POINTWISE, "OPT1").of(alone) == []
    assert instruction_share("inst_fp", KN3, "OPT1").of(alone) == []


def test_mean_of_runs_and_how_far_they_lie_apart() -> None:
    runs = {("H100", "window"): [run(launch("BASE", "gemm", l2_hit_pct=pct)) for pct in (60.0, 66.0)]}
    finding = judge(ask("P159", value="64.1"), runs, "window")
    assert finding.our_value == "63"
    assert "on the H100: the mean of 2 runs, 9.5% apart." in finding.reason


@pytest.mark.parametrize(
    ("gpu", "folders", "card", "other"),
    [
        ("H100", ["H200"], None, "H200"),
        ("H100", ["H200", "H100"], "H100", "H200"),
        ("H100", ["H100"], "H100", None),
        ("all", ["V100", "H200"], "V100", "H200"),
        ("all", ["V100"], "V100", None),
        ("A100;H100", ["A100", "H200"], "A100", "H200"),
        ("V100;H100", ["V100", "A100"], "V100", None),
        ("A100", ["H200", "H100"], None, None),
        ("H100", ["cpu"], None, None),
    ],
)
def test_only_a_card_of_the_papers_settles_a_claim(
    gpu: str, folders: list[str], card: str | None, other: str | None
) -> None:
    runs = {(folder, "window"): [TWO] for folder in folders}
    finding = judge(ask("P100", gpu=gpu, value="0.25"), runs, "window")
    assert (finding.card, finding.other_card) == (card, other)
    assert finding.our_value == ("0.25" if card else None)
    assert finding.other_value == ("0.25" if other else None)
    assert (f"on the {card}" in finding.reason) == (card is not None)


def test_another_card_does_not_step_in_for_a_view_or_a_setting() -> None:
    """The H100's step and OPT1 are not measured, the H200's are."""
    base = KernelsOfRun(TWO.table[TWO.table["config"] == "BASE"])
    runs = {("H100", "window"): [base], ("H200", "window"): [TWO], ("H200", "step"): [TWO]}
    claim = ask("P100", value="0.25")
    step, window = (judge(claim, runs, view) for view in ("step", "window"))
    assert {verdicts.status_of(claim, finding) for finding in (step, window)} == {"proxy"}
    assert "The H100 has no record of a step." in step.reason
    assert "No window of the H100 has" in window.reason


def test_two_cards_together_are_not_decided_on_one() -> None:
    """P007, the greatest reduction of the A100 and the H100: 4 here."""
    claim = ask("P007", gpu="A100;H100", value="5")
    less = run(launch("BASE", "gemm", cycles_active=100.0), launch("OPT1", "gemm", cycles_active=50.0))
    alone = judge(claim, {("H100", "window"): [TWO], ("H200", "window"): [TWO]}, "window")
    assert (alone.our_value, alone.other_value) == (None, None)
    assert "We have no A100. The H100 alone gives 4." in alone.reason
    both = judge(claim, {("H100", "window"): [less], ("A100", "window"): [TWO]}, "window")
    assert both.our_value == "4"
    assert verdicts.status_of(claim, both) == "reproduced"


def test_a_range_of_two_cards_is_decided_by_both() -> None:
    """P199, 5 to 7 times the Tensor Core utilization: the H100's own numbers come to 5.4, the A100's to 6.9."""
    claim = ask("P199", gpu="A100;H100", value="5-7")
    base = launch("BASE", "gemm", tensor_pct=1.0)
    six, nine = (run(base, launch("OPT1", "gemm", tensor_pct=percent)) for percent in (6.0, 9.0))
    alone = judge(claim, {("H100", "window"): [six]}, "window")
    assert alone.our_value is None
    assert "The H100 alone gives 6." in alone.reason
    both = judge(claim, {("H100", "window"): [six], ("A100", "window"): [six]}, "window")
    assert (both.our_value, verdicts.status_of(claim, both)) == ("6", "reproduced")
    apart = judge(claim, {("H100", "window"): [six], ("A100", "window"): [nine]}, "window")
    assert verdicts.status_of(claim, apart) == "differs"


def test_a_v100_cannot_run_these_records_software() -> None:
    assert "CUDA 13 dropped Volta" in judge(ask("P150", gpu="V100"), {}, "window").reason
    counted = judge(ask("P198", gpu="V100"), {("V100", "window"): [TWO]}, "window")
    assert counted.our_value is None
    assert "a V100 has none of its three counters" in counted.reason


def test_cycles_against_the_v100_need_both_cards() -> None:
    claim = ask("P074", gpu="A100", value="3.3")
    ours = run(launch("BASE", "gemm", cycles_active=100.0))
    theirs = run(launch("BASE", "gemm", cycles_active=330.0))
    assert judge(claim, {("A100", "window"): [ours]}, "window").our_value is None
    finding = judge(claim, {("A100", "window"): [ours], ("V100", "window"): [theirs]}, "window")
    assert finding.our_value == "3.3"
    slow = judge(claim, {("A100", "window"): [ours], ("V100", "window"): [ours]}, "window")
    assert slow.our_value == "1"
    assert "Summed over all SMs and 1 launches" in slow.reason


def test_kernel_names() -> None:
    def finding_of(identity: str, value: str, view: str = "window") -> verdicts.Finding:
        return judge(ask(identity, gpu="all", value=value), runs, view)

    runs = {("H100", "window"): [TWO], ("H100", "step"): [run(launch("OPT1", "sm80_xmma_fprop_implicit"))]}
    assert finding_of("P062", "sm80_xmma_fprop_implicit").our_value == "sm80_xmma_fprop_implicit"  # a step shows it
    assert finding_of("P062", "sm80_xmma_fprop").our_value == "sm80_xmma_fprop"
    assert finding_of("P062", "sm80_other").our_value == "sm80_xmma_fprop_implicit_gemm_f32f32"
    assert finding_of("P065", "elementwise_kernel", "step").our_value == "none"
    volta = finding_of("P068", "_5x_cudnn_volta_scudnn")
    assert (volta.our_value, volta.card) == (None, None)
    assert "We have no V100." in volta.reason
    runs |= {("H100", part): runs["H100", "step"] for part in ("window-160", "window-300", "window-cpu")}
    assert finding_of("P062", "sm80_xmma_fprop").reason.endswith(
        "in a whole step, the windows that begin at launch 160 and 300 and the record window-cpu."
    )


def test_reason_names_what_other_windows_give() -> None:
    def both(base: float, opt2: float) -> list[KernelsOfRun]:
        return [run(launch("BASE", "gemm", cycles_active=base), launch("OPT2", "copy", cycles_active=opt2))]

    runs = {
        ("H100", "window"): both(100.0, 120.0),
        ("H100", "window-300"): both(1000.0, 20.0),
        ("H100", "window-cpu"): both(1.0, 1.0),
        ("H100", "step"): both(100.0, 113.0),
    }
    claim = ask("P104", value="0.01-0.02")
    window, step = (judge(claim, runs, view) for view in ("window", "step"))
    assert window.our_value == "1.2"
    assert step.our_value == "1.13"
    assert "Windows that begin at launch 300 give 0.02. A whole step gives 1.13. Under OPT2 most of" in window.reason
    agreeing = judge(ask("P104", value="1.3"), runs, "window")
    assert "whole step" not in agreeing.reason


def test_dram_of_another_card_is_told_in_bytes_a_second() -> None:
    """10% of 4800 GB/s are 14.33% of 3350."""
    slow = run(launch("BASE", "gemm", dram_pct=10.0))
    beside = judge(ask("P162", value="14"), {("H200", "window"): [slow]}, "window")
    assert (beside.our_value, beside.other_value) == (None, "14.33")
    assert "10% of its own" in beside.reason
    finding = judge(ask("P162", value="10"), {("H100", "window"): [slow]}, "window")
    assert finding.our_value == "10"


def settled(root: Path, view: str = "window") -> pd.DataFrame:
    paper = paper_claims(ROOT)
    by_id = findings.findings(paper, findings.every_run(root), view)
    return verdicts.settle(paper, by_id).set_index("id")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A repository with the H200's kernels tables of the first runs, as if an H100 had given them."""
    folder = tmp_path / "figures" / "records" / "H100"
    folder.mkdir(parents=True)
    for path in (RECORDS / "H200").glob("kernels_*_run1.*"):
        shutil.copy(path, folder)
    return tmp_path


def test_every_claim_gets_a_status_from_the_committed_records() -> None:
    paper = paper_claims(ROOT).set_index("id")
    for view in ("window", "step"):
        table = settled(ROOT, view)
        assert len(table) == 150  # 204 less 42 of Table 1, 7 settings and 5 versions
        assert (table["reason"].str.len() > 0).all()
        assert (table["our_value"].isna() == table["status"].isin(["not_measurable", "proxy"])).all()
        assert (table["other_value"].isna() == table["other_card"].isna()).all()
        others = paper.loc[table.index, "gpu"].isin(["A100", "V100"])
        assert set(table.loc[others, "status"]) == {"not_measurable"}
        here = {folder.name for folder in RECORDS.iterdir() if folder.is_dir()}
        assert set(table["card"].dropna()) <= here & {"H100", "A100", "V100"}


@pytest.mark.parametrize(("name", "view"), [("claims", "window"), ("claims_step", "step")])
def test_the_stored_verdicts_are_those_of_the_records(name: str, view: str) -> None:
    stored, judged = read_table(RECORDS / f"{name}.csv", CLAIMS).set_index("id"), settled(ROOT, view)
    stored, judged = (table.loc[judged.index].astype(object).fillna("") for table in (stored, judged))
    assert stored.to_dict("index") == judged.to_dict("index")


def test_what_the_records_reproduce(copied: Path) -> None:
    window, step = settled(copied), settled(copied, "step")
    assert set(window.loc[["P087", "P101", "P126"], "status"]) == {"reproduced"}
    assert set(step.loc[["P117", "P126"], "status"]) == {"reproduced"}
    assert set(step.loc[["P087", "P104"], "status"]) == {"differs"}, "60% is not over 70%"
    assert window.at["P104", "status"] == "differs"


def test_no_folder_leaves_nothing_measurable(tmp_path: Path) -> None:
    table = settled(tmp_path)
    assert set(table["status"]) == {"not_measurable"}
    assert len(table) == 150
    gpu = paper_claims(ROOT).set_index("id").loc[table.index, "gpu"]
    assert table[gpu != "V100"]["reason"].str.contains("add_your_card|We have no V100").all()
    assert not table[gpu == "V100"]["reason"].str.contains("add_your_card").any()
    assert set(takeaways.settle({})["status"]) == {"not_measurable"}


def test_folder_of_another_card_settles_its_claims(copied: Path) -> None:
    before = settled(copied)
    records = copied / "figures" / "records"
    shutil.copytree(records / "H100", records / "A100")
    after = settled(copied)
    assert before.at["P133", "status"] == "not_measurable"
    assert after.at["P133", "our_value"] == before.at["P119", "our_value"]
    assert after.at["P133", "status"] == "differs"
    assert after.at["P119", "reason"] == before.at["P119", "reason"]
    gpu = paper_claims(ROOT).set_index("id").loc[after.index, "gpu"]
    changed = after.index[(before["status"] == "not_measurable") & (after["status"] != "not_measurable")]
    assert set(gpu[changed]) == {"A100", "A100;H100", "all"}
    assert len(changed) > 40


def test_an_h200_stands_beside_an_h100_and_changes_no_verdict(copied: Path) -> None:
    records = copied / "figures" / "records"
    before = settled(copied)
    shutil.copytree(records / "H100", records / "H200")
    both = settled(copied)
    pd.testing.assert_frame_equal(both[["our_value", "card", "status"]], before[["our_value", "card", "status"]])
    assert both.at["P100", "other_value"] == both.at["P100", "our_value"]
    assert both.at["P162", "other_value"] != both.at["P162", "our_value"], "in bytes a second"
    shutil.rmtree(records / "H100")
    alone = settled(copied)
    assert set(alone["status"]) == {"proxy", "not_measurable"}
    assert alone.at["P100", "other_value"] == before.at["P100", "our_value"]
    assert alone.at["P100", "reason"].startswith(
        "Measured on another card, the H200, which decides nothing of the H100."
    )


def test_changed_record_changes_the_verdict(copied: Path) -> None:
    assert settled(copied).at["P100", "status"] == "reproduced"
    path = copied / "figures" / "records" / "H100" / "kernels_opt1_window_run1.csv"
    kernels = read_table(path, KERNELS)
    write_table(kernels.assign(cycles_active=2 * kernels["cycles_active"]), path, KERNELS, {})
    changed = settled(copied)
    assert changed.at["P100", "status"] == "differs"
    assert changed.at["P101", "status"] == "reproduced"


def test_a_setting_that_is_missing_cannot_be_judged(copied: Path) -> None:
    (copied / "figures" / "records" / "H100" / "kernels_opt1_window_run1.csv").unlink()
    table = settled(copied)
    assert table.at["P100", "status"] == "not_measurable"
    assert table.at["P126", "status"] == "reproduced"
    assert "No window of the H100 has" in table.at["P100", "reason"]


def test_a_setting_that_the_paper_does_not_have_changes_no_claim(copied: Path) -> None:
    """Not even one that launches what no other does (KN7), in a run that holds nothing else."""
    before = [settled(copied, view) for view in ("window", "step")]
    stood = takeaways.settle(findings.every_run(copied))
    folder = copied / "figures" / "records" / "H100"
    for view in ("window", "step"):
        table = read_table(folder / f"kernels_opt12_{view}_run1.csv", KERNELS)
        fast = table.assign(config="FAST", kernel="volta_scudnn_128x64", family="_5x_cudnn_volta_scudnn", fma_pct=99.0)
        for run_number in (1, 2):
            write_table(fast, folder / f"kernels_fast_{view}_run{run_number}.csv", KERNELS, {})
    for view, former in zip(("window", "step"), before, strict=True):
        pd.testing.assert_frame_equal(settled(copied, view), former)
    pd.testing.assert_frame_equal(takeaways.settle(findings.every_run(copied)), stood)


KN1_OF, KN4_OF, KN3_OF = "sm80_xmma_fprop_implicit", "vectorized_elementwise_kernel", "RowwiseMomentsCUDAKernel"
MIX = {
    KN1_OF: {"inst_fp": 6.0, "inst_int": 4.0, "duration_ns": 80.0},
    KN4_OF: {"inst_fp": 3.0, "inst_int": 4.0, "duration_ns": 10.0},
    KN3_OF: {"inst_ldst": 5.0, "inst_int": 3.0, "inst_control": 2.0, "duration_ns": 10.0},
}


def statuses(changes: dict[str, dict[str, float]]) -> dict[str, str]:
    rows = [launch("BASE", family, view="step", **(mix | changes.get(family, {}))) for family, mix in MIX.items()]
    table = takeaways.settle({("H100", "step"): [run(*rows)]})
    return dict(zip(table["id"], table["status"], strict=True))


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, {}),
        ({KN1_OF: {"fma_pct": 90.0}}, {"T1": "differs"}),
        ({KN1_OF: {"sm_throughput_pct": 90.0}}, {"T1": "differs"}),
        ({KN3_OF: {"duration_ns": 100.0}}, {"T1 cause": "in_part", "T2": "differs"}),
        ({KN1_OF: {"inst_fp": 3.0}}, {"T3": "in_part"}),
        ({KN4_OF: {"inst_fp": 5.0}}, {"T3": "in_part"}),
        ({KN4_OF: {"inst_fp": 3.5}}, {"T3": "in_part"}),  # a tie
        ({KN3_OF: {"inst_fp": 9.0}}, {"T3": "in_part"}),
        ({KN3_OF: {"inst_ldst": 0.5, "inst_int": 9.0}}, {"T3": "in_part"}),  # few loads and stores
        (
            {KN1_OF: {"inst_fp": 3.0}, KN4_OF: {"inst_fp": 9.0}, KN3_OF: {"inst_fp": 9.0, "inst_control": 0.0}},
            {"T3": "differs"},
        ),
    ],
)
def test_takeaways_can_be_broken(changes: dict[str, dict[str, float]], changed: dict[str, str]) -> None:
    """One card decides T1 in part only; its cause is judged apart."""
    kept = {"T1": "in_part", "T1 cause": "differs", "T2": "reproduced", "T3": "reproduced"}
    assert statuses(changes) == kept | changed


def test_a_kernel_that_dominates_and_is_not_the_named_one_reproduces_takeaway_2_in_part() -> None:
    rows = [launch("BASE", family, view="step", **mix) for family, mix in MIX.items()]
    rows.append(launch("BASE", "xmma_wgrad", view="step", duration_ns=200.0))
    table = takeaways.settle({("H100", "step"): [run(*rows)]}).set_index("id")
    assert table.at["T2", "status"] == "in_part"
    assert "Holds: a single kernel dominates. Does not hold: it is the forward convolution" in table.at["T2", "reason"]


def test_a_sentence_of_which_one_run_breaks_a_part_holds_in_part() -> None:
    def of(fp: float) -> KernelsOfRun:
        rows = [launch("BASE", family, view="step", **mix) for family, mix in MIX.items()]
        rows[1]["inst_fp"] = fp
        return run(*rows)

    table = takeaways.settle({("H100", "step"): [of(5.0), of(3.0)]}).set_index("id")
    assert table.at["T3", "status"] == "in_part"
    assert takeaways.settle({("H100", "step"): [of(3.0), of(3.0)]}).set_index("id").at["T3", "status"] == "reproduced"


def test_a_takeaway_is_judged_by_the_runs_of_base() -> None:
    base, other = (
        [launch(setting, family, view="step", **mix) for family, mix in MIX.items()] for setting in ("BASE", "OPT1")
    )
    table = takeaways.settle({("H100", "step"): [run(*base, *other), run(*base), run(*other)]})
    judged = table["reason"].str.extract(r"Judged on the H100 (by [a-z0-9]+ runs?) ")[0]
    assert set(judged) == {"by 2 runs"}
    table = takeaways.settle({("H100", "step"): [run(*other)]})
    assert set(table["status"]) == {"not_measurable"}


def test_takeaways_of_the_committed_step_fit_the_record(tmp_path: Path) -> None:
    table = takeaways.settle(findings.every_run(ROOT))
    write_table(table, tmp_path / "takeaways.csv", CONCLUSIONS, {})
    assert dict(zip(table["id"], table["status"], strict=True)) == {
        "T1": "in_part", "T1 cause": "differs", "T2": "in_part", "T3": "in_part",
    }  # fmt: skip
    assert table["our_value"].notna().all()
    stored = read_table(RECORDS / "takeaways.csv", CONCLUSIONS)
    assert stored.astype(object).fillna("").to_dict("records") == table.astype(object).fillna("").to_dict("records")


@pytest.mark.parametrize("lost", ["OPT1", "OPT2", "OPT12"])
@pytest.mark.long
def test_a_newest_run_that_lacks_a_setting_leaves_every_claim_a_verdict(lost: str) -> None:
    """As while a machine is being measured, or where one table was deleted."""
    paper = paper_claims(ROOT)
    runs = findings.every_run(ROOT)
    for key, of_part in runs.items():
        newest = of_part[-1].table
        runs[key] = [*of_part[:-1], KernelsOfRun(newest[newest["config"] != lost])]
    for view in ("window", "step"):
        settled = verdicts.settle(paper, findings.findings(paper, runs, view)).set_index("id")
        assert settled["reason"].str.len().gt(0).all()
        assert settled.loc["P100", "status"] in ("reproduced", "differs", "proxy")


@pytest.mark.parametrize("gpu", ["X900", ""])
def test_a_claim_about_a_card_that_the_paper_lacks_is_named_in_a_line(gpu: str) -> None:
    paper = paper_claims(ROOT)
    paper = paper.assign(gpu=[*paper["gpu"][:2], gpu, *paper["gpu"][3:]])
    with pytest.raises(
        BadInput, match=f"claims: P003 speaks of the card '{gpu}', which the paper did not measure; use"
    ):
        findings.findings(paper, {}, "window")
