"""The record of what `accelerate` covers of a network's step."""

from __future__ import annotations

from pathlib import Path

import pytest

from medddpm.cli.main import main
from medddpm.study.bench import coverage
from medddpm.study.records import schemas
from medddpm.study.records.tables import read_meta, read_table


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


def test_a_record_of_two_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SwinUNETR cannot be trained on 16 voxels, and the others are kept."""
    out = tmp_path / "coverage.csv"
    words = ["--network", "monai-unet-batch,maisi-diffusion,monai-swinunetr", "--size", "16", "--channels", "32"]
    assert main(["bench", "--coverage", *words, "--device", "cpu", "--out", str(out)]) == 1
    table, meta = read_table(out, schemas.COVERAGE), read_meta(out)
    assert list(table["network"].unique()) == ["monai-unet-batch", "maisi-diffusion"]
    assert (table["ms"].groupby(table["network"]).sum() > 0).all()
    assert set(meta["failed"]) == {"monai-swinunetr"}
    assert "BatchNorm3d (norm)" in meta["accelerated"]["monai-unet-batch"]
    assert "medddpm: monai-swinunetr: spatial dimensions" in capsys.readouterr().err
    assert len(coverage.shares(table)) == 2


def test_a_dry_run_says_what_it_would_record_and_records_nothing(tmp_path: Path, capsys) -> None:
    words = ["--network", "monai-unet,maisi-diffusion", "--size", "16", "--device", "cpu", "--dry-run"]
    assert main(["bench", "--coverage", *words, "--out", str(tmp_path / "coverage.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "MONAI UNet: one accelerated step, 16x16x16, batch 2, width 64"
    assert len(lines) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_record(tmp_path: Path) -> None:
    assert coverage.recorded(tmp_path, "H200").empty
