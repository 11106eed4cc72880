"""What ncu counted, as points under the ceilings that each version has."""

from __future__ import annotations

import pandas as pd
import pytest

from study.convnext.tables import roofline

CASE = {"batch": 64, "size": "32x32x64", "stride": 1}
LIMITS = {"copy": 1000.0, "fp32": 10.0, "tf32": 40.0, "bf16": 80.0}


def point(version: str, *, operator: str = "conv2d", dram_mb: float, tensor_pct: float) -> pd.Series:
    """A version of 1 GFLOP that takes 100 µs."""
    kernels = pd.DataFrame([{**CASE, "operator": operator, "version": version, "gflop": 1.0}])
    counted = {"launches": 1, "duration_us": 100.0, "dram_mb": dram_mb, "tensor_pct": tensor_pct}
    counters = pd.DataFrame([{**CASE, "operator": operator, "version": version, **counted}])
    (found,) = roofline(counters, kernels, LIMITS).to_dict("records")
    return pd.Series(found)


@pytest.mark.parametrize(
    ("version", "dram_mb", "tensor_pct", "roof"),
    [
        ("direct", 1, 0, 10),
        ("cuDNN FP32", 500, 0, 2),  # memory allows less than the units
        ("cuDNN FP32", 1, 0.4, 10),
        ("cuDNN TF32", 1, 30, 40),
        ("cuDNN BF16, channels-last", 1, 30, 80),
        ("cuDNN TF32", 1, 0, 10),  # a library that takes no Tensor Core all the same
    ],
)
def test_a_versions_roof_is_memorys_or_its_own_units(
    version: str, dram_mb: float, tensor_pct: float, roof: float
) -> None:
    found = point(version, dram_mb=dram_mb, tensor_pct=tensor_pct)
    assert (found["tflops"], found["intensity"]) == (10, 1000 / dram_mb)
    assert (found["roof"], found["of_roof_pct"]) == (roof, pytest.approx(1000 / roof))


def test_a_blocks_depthwise_convolution_stays_on_the_cuda_cores() -> None:
    """With 64 channels it is 49 of 561 multiplications."""
    found = point("tensor", operator="block", dram_mb=0.001, tensor_pct=2)
    assert found["roof"] == pytest.approx(561 / (49 / LIMITS["fp32"] + 512 / LIMITS["bf16"]))
    assert point("fused", operator="block", dram_mb=0.001, tensor_pct=0)["roof"] == LIMITS["fp32"]


def test_a_layer_norm_has_the_name_of_the_other_tables() -> None:
    assert point("warp", operator="layer_norm", dram_mb=1, tensor_pct=0)["version"] == "a warp a row"
    assert point("warp", dram_mb=1, tensor_pct=0)["version"] == "warp"
