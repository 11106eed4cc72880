"""The record of what `accelerate` covers of a network's step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from medddpm.measure import programs
from medddpm.measure.tables import read_meta, read_table
from study.bench import coverage
from study.bench.networks import NETWORKS
from study.cli.main import main
from study.records import schemas


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_norm_apply", "own"),
        ("_conv_depthwise", "own"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "product"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x128x8", "left"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "product"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>", "left"),
        ("void at::native::(anonymous namespace)::conv_depthwise3d_cuda_kernel<float, float, 3, 3, 3>", "left"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", "left"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>", "left"),
    ],
)
def test_what_a_kernel_is_to_the_fast_path(kernel: str, kind: str) -> None:
    assert coverage.kind_of(kernel) == kind


def test_shares_of_a_step() -> None:
    launches = [("_norm_apply", 2e6), ("_norm_apply", 1e6), ("nvjet_a", 4e6), ("softmax_warp_forward", 3e6)]
    rows = coverage.rows_of("monai-unet", 96, 2, launches)
    assert [(row["kind"], row["ms"], row["launches"]) for row in rows] == [
        ("product", 4.0, 1),
        ("own", 3.0, 2),
        ("left", 3.0, 1),
    ]
    table = coverage.pd.DataFrame(rows)
    row = coverage.shares(table).loc["MONAI UNet"]
    assert (row["ms"], row["covered"], row["own"], row["product"]) == pytest.approx((10, 0.7, 0.3, 0.4))
    assert row["left"] == "softmax 30.0%"
    assert coverage.shares(table[:0]).empty


@pytest.mark.long
def test_a_record_of_two_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SwinUNETR cannot be trained on 16 voxels, and the others are kept."""
    out = tmp_path / "coverage.csv"
    words = ["--network", "monai-unet-batch,monai-segresnet,monai-swinunetr", "--size", "16", "--channels", "32"]
    assert main(["coverage", *words, "--device", "cpu", "--out", str(out)]) == 1
    table, meta = read_table(out, schemas.COVERAGE), read_meta(out)
    assert list(table["network"].unique()) == ["monai-segresnet", "monai-unet-batch"]
    assert (table["ms"].groupby(table["network"]).sum() > 0).all()
    assert set(meta["failed"]) == {"MONAI SwinUNETR"}
    assert "BatchNorm3d (norm)" in meta["accelerated"]["monai-unet-batch"]
    refused = "--size: monai-swinunetr takes no volume of side 16; give 64"
    assert f"medddpm: [3/3] MONAI SwinUNETR: {refused}" in capsys.readouterr().err
    assert len(coverage.shares(table)) == 2


def test_what_was_recorded_is_kept_until_it_is_recorded_again(tmp_path: Path, monkeypatch, capsys) -> None:
    out, recorded = tmp_path / "coverage.csv", []
    real = programs.start

    def record(command: list[str], *how: object) -> object:
        words = dict(zip(command[3::2], command[4::2], strict=True))
        network, side, width = NETWORKS[words["--network"]], int(words["--side"]), int(words["--channels"])
        recorded.append((network.name, side, width))
        rows = coverage.rows_of(network.name, side, 1, [("_norm_apply", 1e6 * len(recorded))])
        result = {"network": network.name, "width": width, "rows": rows, "accelerated": f"report {len(recorded)}"}
        path = Path(words["--folder"]) / f"{coverage.key_of(network, side, width)}.json"
        write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        return real([sys.executable, "-c", write, str(path), json.dumps(result)], *how)

    def bench(*words: str) -> list[tuple[str, float]]:
        assert main(["coverage", "--device", "cpu", "--out", str(out), *words]) == 0
        table = read_table(out, schemas.COVERAGE)
        return list(zip(table["network"], table["ms"], strict=True))

    monkeypatch.setattr(programs, "start", record)
    monkeypatch.setattr(sys, "argv", ["medddpm", "one", "call"])
    assert bench("--network", "monai-unetr") == [("monai-unetr", 1.0)]
    monkeypatch.setattr(sys, "argv", ["medddpm", "another"])
    both = [("monai-unet", 2.0), ("monai-unetr", 1.0)]
    assert bench("--network", "monai-unet,monai-unetr") == both, "in the networks' order"
    assert "[2/2] MONAI UNETR: there already\n" in capsys.readouterr().out
    meta = read_meta(out)
    assert meta["accelerated"] == {"monai-unet": "report 2", "monai-unetr": "report 1"}
    assert sorted(meta["command"].split("; ")) == ["medddpm another", "medddpm one call"]
    out.unlink()
    assert bench("--network", "monai-unet") == both
    assert bench("--network", "monai-unet", "--again") == [("monai-unet", 3.0), ("monai-unetr", 1.0)]
    assert bench("--network", "monai-unet", "--channels", "32") == [("monai-unet", 4.0)], "rows do not say the width"
    assert len(recorded) == 4


def test_a_dry_run_says_what_it_would_record_and_records_nothing(tmp_path: Path, capsys) -> None:
    words = ["--network", "monai-unet,maisi-diffusion", "--size", "16", "--device", "cpu", "--dry-run"]
    assert main(["coverage", *words, "--out", str(tmp_path / "coverage.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("python -m study.bench.coverage --network monai-unet --side 16 --channels 64")
    assert len(lines) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_record(tmp_path: Path) -> None:
    assert coverage.recorded(tmp_path, "H200").empty
