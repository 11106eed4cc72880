"""The bench's tables, sentences and colours, from a record made up here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medddpm.errors import BadInput
from medddpm.measure.tables import write_table
from medddpm.measure.tools import ORDINARY
from study.bench import repeats, sentences, tables
from study.bench.networks import NETWORKS
from study.bench.results import report_key
from study.bench.settings import BENCH_SETTINGS, LADDER, SAMPLED
from study.figures.bench import colour_of, label_of
from study.figures.style import SETTING_COLOURS
from study.records import schemas

LIMITS = {"copy": 4000.0, "fp32": 50.0, "tf32": 400.0, "bf16": 800.0}
STEP_TFLOP, FORWARD_TFLOP = 16.0, 5.0


def row(network: str, setting: str, measure: str, ms: float, **known: object) -> dict[str, object]:
    spec = NETWORKS[network]
    work = STEP_TFLOP if measure == "step" else FORWARD_TFLOP
    return {
        "network": network, "setting": setting, "measure": measure, "sampler": None, "steps": 1, "batch": spec.batch,
        "size": spec.size(spec.side), "median_ms": ms, "p10_ms": 0.95 * ms, "p90_ms": 1.1 * ms, "samples": 20,
        "peak_gib": None, "tflops": 1e3 * work / ms, "rel_error_output": None, "rel_error_grad": None,
        "sm_mhz": None, "watts": None, "host_ms": None,
        "date": "2026-12-01T10:00:00+00:00", "gpu": "NVIDIA H200", "driver": None, "cuda": "13.0", "cudnn": "91900",
        "torch": "2.11.0", "triton": None, "commit": "abc", "host": "f00", "card": "cad",
    } | known  # fmt: skip


def bench_table(left_out: tuple[str, ...] = ()) -> pd.DataFrame:
    """A record in which each setting halves the time of the one before, no faster than 32 times BASE."""
    rows = []
    for place, name in enumerate(BENCH_SETTINGS):
        ms = max(1280.0 / 2**place, 40.0)
        known = {"peak_gib": max(20.0 - place, 2.0), "rel_error_output": 1e-3 * place, "rel_error_grad": 2e-3 * place}
        if name == "BASE":
            known = {"peak_gib": 20.0}
        rows.append(row("med-ddpm", name, "step", ms, **known))
        rows.append(row("med-ddpm", name, "forward", ms / 4))
        if name in SAMPLED:
            rows.append(row("med-ddpm", name, "sample", 62 * ms, sampler="ddpm", steps=250, samples=3))
    rows.append(row("med-ddpm", "FAST", "sample", 300.0, sampler="ddim", steps=10, samples=3))
    rows.append(row("med-ddpm", "FAST", "sample", 8000.0, sampler="ddpm", steps=250, samples=3, batch=4))
    rows.append(row("med-ddpm", "FAST", "step", 1.0, batch=4))  # of another batch: no figure takes it for its own
    for network in list(NETWORKS)[1:-1]:
        for place, name in enumerate(ORDINARY):
            rows.append(row(network, name, "step", 100.0 - 10 * (place % 3), peak_gib=9.0))
        rows.append(row(network, "FAST", "step", 64.0, peak_gib=6.0, rel_error_output=1e-2))
    rows.append(row("med-ddpm-brats", "BASE", "step", 4000.0, peak_gib=70.0))
    rows.append(row("med-ddpm-brats", "FAST", "step", 125.0, peak_gib=28.0))
    table = pd.DataFrame([r for r in rows if r["setting"] not in left_out and r["network"] not in left_out])
    numbers = ["host_ms", "peak_gib", "rel_error_output", "rel_error_grad", "sm_mhz", "watts"]
    return table.astype(dict.fromkeys(numbers, "float64"))


def written(root: Path, table: pd.DataFrame, gpu: str = "H200") -> Path:
    folder = root / "figures" / "records" / gpu
    write_table(table, folder / "bench.csv", schemas.BENCH, {"gpu": gpu})
    limits = pd.DataFrame(
        {
            "ceiling": list(LIMITS),
            "value": list(LIMITS.values()),
            "unit": ["GB/s", *["TFLOP/s"] * 3],
            "median_ms": 1.0,
            "p10_ms": 1.0,
            "p90_ms": 1.0,
            "samples": 20,
            "size": 8192,
        }
    )
    write_table(limits, folder / "ceilings.csv", schemas.CEILINGS, {"gpu": gpu})
    return root


# tables


def test_the_record_is_read_back_by_machine(tmp_path: Path) -> None:
    root = written(tmp_path, bench_table())
    ((card, recorded),) = tables.recorded(root).items()
    assert card == "H200"
    same = bench_table()[list(schemas.BENCH.columns)].astype({"sampler": object})
    same["sampler"] = same["sampler"].where(same["sampler"].notna(), None)
    pd.testing.assert_frame_equal(recorded, same, check_dtype=False)
    assert tables.ceilings(root, "H200") == LIMITS
    with pytest.raises(BadInput, match=r"no machine's folder has a bench\.csv"):
        tables.recorded(tmp_path / "elsewhere")


def test_the_ladder_has_every_setting_in_order_with_its_gain() -> None:
    table = tables.by_setting(bench_table())
    assert list(table.index) == list(BENCH_SETTINGS)
    assert table.loc["BASE", ["step_ms", "step_gain", "forward_gain"]].tolist() == [1280, 1, 1]
    assert table.loc["OPT1", "step_gain"] == 2
    assert table.loc["FAST", ["step_ms", "step_gain", "forward_ms", "sample_s"]].tolist() == [40, 32, 10, 2.48]
    assert table["sample_s"].dropna().index.tolist() == list(SAMPLED)
    assert list(tables.ladder(table).index) == [setting.name for setting in LADDER]
    assert tables.by_setting(bench_table(("OPT12",))).index.tolist() == [
        name for name in BENCH_SETTINGS if name != "OPT12"
    ]


def test_our_networks_have_their_step_under_base_and_fast() -> None:
    table = tables.ours(bench_table())
    assert list(table.index) == ["med-ddpm", "med-ddpm-brats"]
    brats = table.loc["med-ddpm-brats", ["base_ms", "fast_ms", "gain", "peak_base_gib", "peak_fast_gib", "memory"]]
    assert brats.tolist() == [4000, 125, 32, 70, 28, 0.4]
    alone = tables.ours(bench_table(("FAST", "med-ddpm-brats")))
    assert list(alone.index) == ["med-ddpm"]
    assert alone["base_ms"].tolist() == [1280]
    assert alone[["fast_ms", "gain", "memory"]].isna().all(axis=None), "what is not measured is blank"


def test_the_fast_paths_reports_are_read_by_network(tmp_path: Path) -> None:
    root = written(tmp_path, bench_table())
    path = root / "figures" / "records" / "H200" / "bench.meta.json"
    keys = {
        report_key(network, setting): f"{network} {setting}" for network in NETWORKS for setting in ("FAST", "+ norm")
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"accelerated": keys}))
    assert tables.reports(root, "H200") == {network: f"{network} FAST" for network in NETWORKS}
    assert tables.reports(root, "H200", "FAST eager") == {}


def test_others_are_held_against_their_best_setting() -> None:
    settings = {"setting": {"FAST": "accelerate", "autocast": "graphed_step"}}
    table = tables.others(bench_table().replace(settings))
    assert list(table.index) == list(NETWORKS)[1:-1]
    assert set(table["best"]) == {"compile"}, "of the quickest the first"
    assert table.loc["monai-unet", ["best_ms", "accelerate_ms", "ratio"]].tolist() == [80, 64, 1.25]
    one = table.loc["monai-unet"]
    assert one["step_ratio"] == one["best_ms"] / one["step_ms"] < one["ratio"], "with graphed_step, its own ratio"
    without = tables.others(bench_table(("compile",)))
    assert set(without["best"]) == {"cudnn.benchmark"}, "each ordinary tool counts"
    measured = networks_table()
    captured = row("monai-unet-batch", "compile graph", "step", 3.5)
    beside = tables.others(pd.concat([measured, pd.DataFrame([captured])], ignore_index=True)).loc["monai-unet-batch"]
    assert (beside["best_ms"], beside["ratio"]) == (4.0, 0.8), "accelerate stands in an ordinary loop"
    assert beside["step_ratio"] == 3.5 / 3.2, "graphed_step does not"


def only(*settings: str) -> pd.DataFrame:
    """The record of our network under these settings alone."""
    table = bench_table()
    return table[table["setting"].isin(settings)].reset_index(drop=True)


def test_accelerate_is_held_against_ordinary_tools_then_pytorch_then_the_papers_fp32() -> None:
    table = bench_table()
    step = (table["network"] == "med-ddpm") & (table["measure"] == "step")
    for name, ms in (
        ("PyTorch", 240.0),
        ("reduce-overhead", 80.0),
        ("graphed_step", 39.0),
        ("FAST eager", 60.0),
        ("FAST", 38.0),
    ):
        table.loc[step & (table["setting"] == name), "median_ms"] = ms
    for name in set(ORDINARY) - {"PyTorch", "reduce-overhead"}:
        table.loc[step & (table["setting"] == name), "median_ms"] = 100.0
    rivals = tables.against(table)
    assert rivals["setting"].to_dict() == {"best ordinary": "reduce-overhead", "PyTorch": "PyTorch", "BASE": "BASE"}
    assert rivals["ratio"].tolist() == [2, 6, 32]
    assert sentences.headline(table, "H100") == (
        "On H100s a training step of Med-DDPM (one micro-step of one 128³ volume) takes 40.0 ms with "
        "`accelerate(model)` in an ordinary loop. That is 2.00 times as fast as the best ordinary tool (BF16 autocast "
        "with `torch.compile` in its mode `reduce-overhead`: 80.0 ms), 6.00 times as fast as PyTorch out of the box "
        "(240 ms) and 32.0 times as fast as the paper's FP32 under cuDNN 9.19 (1280 ms). With `graphed_step` it takes "
        "39.0 ms. FAST, the package's own training, takes 38.0 ms."
    )


def test_the_sentence_says_what_was_not_measured() -> None:
    """A record from before the opponents were added, and less than that."""
    of_four = sentences.headline(only("BASE", "compile", "autocast", "FAST", "FAST eager"), "H200")
    assert "40.0 ms under FAST in one CUDA graph. That is " in of_four
    assert "the best ordinary tool measured there (BF16 autocast with `torch.compile`: " in of_four
    assert of_four.endswith(
        "the paper's FP32 under cuDNN 9.19 (1280 ms). Not measured on the H200: 12 of the 14 ordinary tools, PyTorch "
        "out of the box among them."
    )
    assert np.isnan(tables.against(only("BASE", "FAST"))["ratio"]["best ordinary"])
    halved = [row("monai-unet", name, "forward", ms) for name, ms in (("BF16 weights", 3.0), ("autocast", 4.0))]
    rivals = tables.against(pd.DataFrame(halved), "monai-unet", "forward")
    assert rivals["setting"]["best ordinary"] == "BF16 weights"
    alone = sentences.headline(only("FAST"), "H200")
    assert alone.endswith(
        "FAST in one CUDA graph. Not measured on the H200: any ordinary tool, PyTorch out of the box, the paper's FP32."
    )
    assert sentences.headline(only("BASE"), "H200").endswith("was not measured on the fast path.")


@pytest.mark.parametrize(
    ("setting", "said", "short"),
    [
        ("PyTorch", "PyTorch out of the box", "PyTorch"),
        ("cudnn.benchmark", "TF32 with `cudnn.benchmark`", "TF32"),
        ("autocast channels-last", "BF16 autocast, in channels-last", "autocast, channels-last"),
        ("autocast benchmark", "BF16 autocast with `cudnn.benchmark`", "autocast"),
        ("compile benchmark", "BF16 autocast with `torch.compile` and `cudnn.benchmark`", "`torch.compile`"),
        (
            "max-autotune channels-last",
            "BF16 autocast with `torch.compile` in its mode `max-autotune`, in channels-last",
            "`max-autotune`, channels-last",
        ),
    ],
)
def test_an_ordinary_tool_is_called_as_its_user_would(setting: str, said: str, short: str) -> None:
    assert sentences.tool(BENCH_SETTINGS[setting]) == said
    assert sentences.tool(BENCH_SETTINGS[setting], short=True) == short


def networks_table() -> pd.DataFrame:
    """Three networks: one gains, one's loop waits for the host and lacks a tool, one was not measured as called."""
    reader = {"peak_gib": 6.0, "rel_error_output": 0.012, "rel_error_grad": 0.3}
    tool = {"peak_gib": 8.0, "rel_error_output": 0.01, "rel_error_grad": 0.3}
    rows = [
        row("monai-unet-batch", "accelerate", "step", 5.0, **reader),
        row("monai-unet-batch", "graphed_step", "step", 3.2, **reader | {"peak_gib": 9.0}),
        row("monai-unet-batch", "autocast benchmark", "step", 4.0, **tool),
        row("nnunet-plain-deep", "accelerate", "step", 20.0, **reader | {"rel_error_output": 0.02}),
        row("nnunet-plain-deep", "graphed_step", "step", 19.0, **reader),
        row("nnunet-plain-deep", "autocast benchmark", "step", 50.0, **tool | {"rel_error_output": 0.02}),
        row("nnunet-plain-deep", "reduce-overhead channels-last", "step", 40.0, **tool),
        row("nnunet-plain-deep", "PyTorch", "step", 90.0, **tool),  # no tool that the others lack
        row("monai-vnet", "graphed_step", "step", 1.0, **reader),
        row("monai-vnet", "autocast benchmark", "step", 2.0, **tool),
    ]
    return pd.DataFrame(rows)


def test_the_networks_sentences_say_what_is_gained_lost_and_missing() -> None:
    table = networks_table()
    assert sentences.network_gains(table, "H100") == (
        "For 2 networks on the H100 `accelerate` is 0.80 to 2.00 times as fast as the best ordinary tool, 1.40 times "
        "in the median; `graphed_step` is 1.25 to 2.11 times, 1.68 in the median."
    )
    assert sentences.network_limits(table).splitlines() == [
        "- `accelerate` is no faster than the best tool for `UNet` with batch norm (0.800): in an ordinary loop the "
        "GPU waits for the host.",
        "- `reduce-overhead` was not timed for `UNet` with batch norm.",
        "- A step's memory is 0.75 to 0.75 times the best tool's, with `graphed_step` 0.75 to 1.12 times.",
        "- Outputs differ from float32's by 1.2 to 2%, gradients by 30.0 to 30%: at most 2.00 times as much as the "
        "best tool's.",
    ]
    said = sentences.network_gaps(table)
    assert (
        said
        == "Only autocast was timed for `UNet` with batch norm. Errors are at most 1.20 times those of BF16 autocast."
    )
    loops = table.assign(median_ms=table["median_ms"].where(table["median_ms"] != 4.0, 5.5))
    assert sentences.network_limits(loops).startswith("- In an ordinary loop around `UNet` with batch norm the GPU")
    fast = table[table["network"] == "nnunet-plain-deep"]
    assert sentences.network_limits(fast).startswith("- A step's memory is "), "nothing is lost or missing"
    assert sentences.network_gaps(fast).startswith("Errors are at most"), "nothing is missing"


def test_the_networks_sentences_say_which_tools_and_layouts_were_not_timed() -> None:
    table = networks_table()

    def gaps(*rows: dict[str, object]) -> str:
        return sentences.network_gaps(pd.concat([table, pd.DataFrame(rows)], ignore_index=True))

    vnet = row("monai-vnet", "accelerate", "step", 2.0, peak_gib=6.0, rel_error_output=0.01, rel_error_grad=0.3)
    compiled = [row(network, "compile", "step", 60.0) for network in ("nnunet-plain-deep", "monai-unet-batch")]
    lacks = "Only `torch.compile` and autocast were timed for `UNet` with batch norm, only autocast for `VNet`. Errors"
    assert gaps(vnet, *compiled).startswith(lacks)
    replayed = row("monai-unet-batch", "reduce-overhead", "step", 4.0, peak_gib=8.0)
    assert gaps(vnet, replayed).startswith(
        "Only autocast was timed for `VNet`. `reduce-overhead` was timed in only one layout. Errors"
    )
    both = [replayed, row("nnunet-plain-deep", "reduce-overhead", "step", 41.0, peak_gib=8.0)]
    assert gaps(*both).startswith("`reduce-overhead` was timed in only one layout for `UNet` with batch norm. Errors")
    taken = {"peak_gib": 6.0, "rel_error_output": 0.01, "rel_error_grad": 0.3}
    most = [row("monai-vnet", name, "step", 2.0, **taken) for name in ("accelerate", "reduce-overhead")]
    only = "`reduce-overhead` was timed in both layouts only for `PlainConvUNet` with deep supervision. Errors"
    assert gaps(*both, *most).startswith(only)
    names = ("accelerate", "graphed_step", "reduce-overhead")
    sparse = [row("monai-attention-unet", name, "step", 2.0, **taken) for name in names]
    said = "Only `reduce-overhead` (contiguous) was timed for `AttentionUnet`. "
    assert gaps(*both, *most, *sparse).startswith(said + only)


def test_the_networks_errors_are_those_of_the_networks_that_have_both() -> None:
    table = networks_table()
    lacking = table[(table["network"] != "monai-unet-batch") | (table["setting"] != "autocast benchmark")]
    lacking = pd.concat([lacking, pd.DataFrame([row("monai-unet-batch", "compile", "step", 4.0, peak_gib=8.0)])])
    said = sentences.network_gaps(lacking.reset_index(drop=True))
    assert said.endswith("Errors are at most 1.00 times those of BF16 autocast, where measured.")
    errors = {"rel_error_output": 0.01, "rel_error_grad": 0.3}
    rows = [
        row("monai-vnet", "accelerate", "step", 2.0, peak_gib=6.0, **errors),
        row("monai-attention-unet", "accelerate", "step", 5.0, **errors),
        row("monai-attention-unet", "graphed_step", "step", 5.0, **errors),
        row("monai-attention-unet", "compile benchmark", "step", 5.0, rel_error_output=0.004, rel_error_grad=0.3),
        row("nnunet-plain-deep", "compile", "step", 60.0, rel_error_output=0.001, rel_error_grad=0.3),
    ]
    compiled = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    assert "at most 2.50 times as much as the best tool's" in sentences.network_limits(compiled)
    assert sentences.network_gaps(compiled).endswith(
        "Errors are at most 1.20 times those of BF16 autocast, where measured."
    ), "torch.compile's errors are not autocast's"


def test_each_kernel_belongs_to_a_part_of_a_step() -> None:
    """The products of a convolution by their kernels' names, its helpers together, any other kernel by its family."""
    parts = {
        ("cutlass_tensorop_fprop_bf16", "other convolution"): "convolution, forward",
        ("sm90_xmma_dgrad_implicit", "xmma_dgrad"): "convolution, input gradient",
        ("sm90_xmma_wgrad_implicit", "xmma_wgrad"): "convolution, weight gradient",
        ("cudnn::computeOffsets", "cudnn helper"): "convolution, other",
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "attention"): "attention",
        ("triton_poi_fused_add", "triton pointwise"): "triton pointwise",
    }
    assert {names: tables.part_of(*names) for names in parts} == parts


def test_a_setting_is_drawn_in_its_own_colour_or_that_of_its_kind() -> None:
    colours = [colour_of(name) for name in ("BASE", "accelerate", "autocast", "compile", "+ norm")]
    assert colours[:2] == [SETTING_COLOURS["BASE"], SETTING_COLOURS["FAST"]]
    assert len(set(colours)) == len(colours)
    assert [label_of(name) for name in ("OPT1", "+ norm")] == ["OPT1: TF32", "+ fused norm and activation"]


def test_rows_say_how_long_apart_they_were_measured() -> None:
    measured = networks_table()
    times = {"accelerate": "2026-11-27T12:20:00+00:00", "autocast benchmark": "2026-11-27T12:02:00+00:00"}
    hours = tables.others(measured.assign(date=measured["setting"].map(times)))["apart_h"]
    assert hours["monai-unet-batch"] == pytest.approx(0.3)
    assert hours.drop("monai-unet-batch").isna().all(), "no date, or no accelerate"
    assert [sentences.apart(hour) for hour in (0.3, 1.99, 36.3, float("nan"))] == ["18 min", "119 min", "36 h", "–"]


def test_every_run_of_the_smallest_step_is_read_the_records_last(tmp_path: Path) -> None:
    root = written(tmp_path, networks_table())
    other = [
        row("monai-unet-batch", "accelerate", "step", 4.0, host_ms=3.5),
        row("monai-unet-batch", "max-autotune", "step", 3.0),
        row("monai-unet-batch", "accelerate", "step", 3.0),
        row("monai-unet-batch", "graphed_step", "step", 2.0),
        row("monai-unet-batch", "compile graph", "step", 2.5),
    ]
    path = root / "figures" / "records" / "H200" / repeats.OTHER_HOSTS
    write_table(pd.DataFrame(other), path, schemas.BENCH, {"date": "2026-11-27", "command": "medddpm bench"})
    runs = repeats.every_run(root, "H200")
    assert runs["accelerate_ms"].tolist() == [4.0, 3.0, 5.0]
    assert runs["searched"].tolist() == [True, False, False]
    assert repeats.searched_runs(root, "H200")["accelerate_ms"].tolist() == [4.0]
    assert runs["best"].tolist() == ["max-autotune", "", "autocast benchmark"]
    assert runs["launch_ms"].iloc[0] == 3.5
    assert runs["step_ratio"].dropna().tolist() == [1.25, 1.25]


def several_runs() -> pd.DataFrame:
    """Runs of `UNet` with batch norm, as `repeats.searched_runs` returns them."""
    ratios = {"ratio": [0.8, 1.1, 1.2], "step_ratio": [1.3, np.nan, 1.5]}
    times = {"best_ms": [4.0, 5.0, 7.0], "accelerate_ms": [5.0, 4.5, 6.0], "step_ms": 3.0, "apart_h": 0.1}
    best = ["autocast benchmark", "reduce-overhead", "autocast benchmark"]
    return pd.DataFrame({"date": "2026-11-27", "launch_ms": 4.0, "best": best, **times, **ratios})


def test_a_network_of_several_runs_has_their_medians_and_their_spread() -> None:
    table, runs = networks_table(), several_runs()
    one, several = (tables.others(table, some).loc["monai-unet-batch"] for some in (None, runs))
    assert (one["runs"], one["ratio"], several["runs"], several["ratio"]) == (1, 0.8, 3, 1.1)
    assert several[["best", "best_ms", "accelerate_ms"]].tolist() == ["autocast benchmark", 5.0, 5.0]
    ends = ["ratio_least", "ratio_most", "step_ratio_least", "step_ratio_most"]
    assert several[ends].tolist() == [0.8, 1.2, 1.3, 1.5]
    assert one[ends].isna().all()
    assert several[["p10_ms", "p90_ms"]].tolist() == pytest.approx([4.75, 5.5]), "of the table's own run"
    others = [tables.others(table, some).drop(index="monai-unet-batch") for some in (None, runs)]
    pd.testing.assert_frame_equal(*others)
    assert sentences.network_gains(table, "H100", runs).endswith(
        "2.11 times, 1.75 in the median. `UNet` with batch norm counts by the median of 3 runs, 1.10 (0.80 to 1.20); "
        "with `graphed_step` 1.40 (1.30 to 1.50)."
    )
    assert sentences.network_limits(table, runs).startswith(
        "- `accelerate` is no faster than the best tool for `UNet` with batch norm (0.80 to 1.20 in 3 runs): in an"
    ), "one run of several is enough"


def test_a_cell_is_a_name_or_a_number_or_says_that_there_is_none() -> None:
    assert [sentences.cell(value) for value in ("reduce-overhead", 2.0, 1234.5, float("nan"))] == [
        "reduce-overhead", "2.00", "1234", "–",
    ]  # fmt: skip
