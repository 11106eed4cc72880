"""Kernel names as PyTorch 2.11, cuDNN 9, cuBLAS and Triton have them, in ncu's and in CUPTI's spelling."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.profile.families import FAMILIES, GROUPS, family_named, family_of
from medddpm.measure.profile.instructions import CLASSES, class_column, class_counts
from medddpm.measure.profile.kernel_names import dimensions, function_name, same_name

PACKAGE = ROOT / "medddpm"
RECORDS = PACKAGE.parent / "figures" / "records"
SM80, SM90 = "sm80_xmma_fprop_implicit_gemm", "sm90_xmma_fprop_implicit_gemm"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
NAMES = [
    (f"{SM80}_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x128x8_stage3_warpsize1x2x1_g1", "sm80_xmma_fprop_implicit"),
    (f"{SM80}_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16__5x_cudnn", "sm80_xmma_fprop_implicit"),
    (f"{SM90}_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1", "sm90_xmma_fprop_implicit"),
    ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nchwkcrs_nchw_tilesize128x128x16", "xmma_dgrad"),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3", "xmma_wgrad"),
    ("void implicit_convolveNd_sgemm<float, 3, 512, 6, 8, 3, 3, 5, 1, false>(int, int)", "implicit_convolveNd"),
    ("_5x_cudnn_volta_scudnn_128x64_relu_xregs_large_nn_v1", "_5x_cudnn_volta_scudnn"),
    ("volta_scudnn_128x32_3dconv_fprop_small_nn_v1", "_5x_cudnn_volta_scudnn"),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4>", "other convolution"),
    ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, int>(cudnnTensorStruct)", "other convolution"),
    ("cudnn_generated_fort_native_sdpa_sm90_knob_3i_64x128x64", "attention"),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>", "nchwToNhwcKernel"),
    ("void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (DataType_t)2>", "nhwcToNchwKernel"),
    ("void nhwcAddPaddingKernel<float, float, float, true, (DataType_t)0>(int, int)", "nhwcAddPaddingKernel"),
    ("void cask__5x_cudnn::computeOffsetsKernel<true, false>(cask__5x_cudnn::ComputeOffsetsParams)", "cudnn helper"),
    ("void at::native::<unnamed>::RowwiseMomentsCUDAKernel<float>(long, T1, const T1 *)", "RowwiseMomentsCUDAKernel"),
    ("_ZN2at6native54_GLOBAL__N__24RowwiseMomentsCUDAKernelIfEEvlT_PKS2_PS2_S5_", "RowwiseMomentsCUDAKernel"),
    ("void at::native::(anonymous namespace)::ComputeFusedParamsCUDAKernel<float>(long)", "group norm parameters"),
    (
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
        "<unnamed>::GroupNormKernelImplInternal<float>(const at::Tensor &)::[lambda(float, float) (instance 1)]>>",
        "group norm elementwise",
    ),
    ("void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<float>(long)", "group norm backward"),
    ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel2<float>(long, long)", "group norm backward"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>", "other norm"),
    (f"{ADD}(int, at::native::CUDAFunctor_add<float>)", "vectorized_elementwise_kernel"),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#3}::operator()() const::{lambda()#7}>(int)",
        "copy",
    ),
    ("void at::native::unrolled_elementwise_kernel<at::native::silu_kernel>", "unrolled_elementwise_kernel"),
    (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add"
        "<float> >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
        "elementwise_kernel",
    ),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>", "reduce_kernel"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<float, unsigned int, 5, 128, 1>", "cat"),
    ("void at::native::(anonymous namespace)::upsample_trilinear3d_out_frame<float, float>(int)", "upsample"),
    ("void at::native::(anonymous namespace)::upsample_trilinear3d_backward_out_frame<float>", "upsample backward"),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >",
        "multi_tensor_apply",
    ),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>", "softmax"),
    ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x> >", "index and scatter"),
    ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>", "random"),
    ("ampere_sgemm_128x64_nn", "gemm"),
    ("nvjet_tst_320x192_64x4_2x1_v_badd_NNT", "gemm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x3_nn_align4>(Params)", "gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>", "gemm"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<64, 128, cutlass::bfloat16_t> >", "attention"),
    ("triton_red_fused_native_group_norm_silu_12", "triton norm"),
    ("triton_poi_fused_convolution_silu_3", "triton pointwise"),
    ("triton_per_fused_sum_7", "triton reduction"),
    ("triton_tem_fused_mm_2", "triton matmul"),
    ("Memset (Device)", "memset and memcpy"),
    ("Memcpy DtoD (Device -> Device)", "memset and memcpy"),
    # of a step under FAST, as CUPTI recorded it on an H200
    ("_conv_depthwise", "fused convolution"),
    ("_conv_weight_depthwise", "fused weight gradient"),
    ("_conv_planes", "fused convolution"),
    ("_conv_unplanes", "fused convolution"),
    ("_conv_banded", "fused convolution"),
    ("_conv_depthwise_planes", "fused convolution"),
    ("_conv_weight_planes", "fused weight gradient"),
    ("_conv_weight_fold", "fused weight gradient"),
    ("_norm_statistics", "fused norm"),
    ("_norm_merge", "fused norm"),
    ("_norm_apply", "fused norm"),
    ("_norm_running_add", "fused norm"),
    ("_norm_running_tables", "fused norm"),
    ("_norm_sums", "fused norm backward"),
    ("_norm_merge_sums", "fused norm backward"),
    ("_norm_apply_backward", "fused norm backward"),
    ("_upsample", "upsample"),
    ("_upsample_backward", "upsample backward"),
    ("_add", "fused add"),
    ("_add_product", "fused skip product"),
    ("_column_sums", "fused column sums"),
    ("_conv", "fused convolution"),
    ("_conv_adjoint", "fused data gradient"),
    ("_conv_weight", "fused weight gradient"),
    ("_edge_spread", "fused edge"),
    ("_edge_gather", "fused edge"),
    ("_edge_correlate", "fused weight gradient"),
    (f"{SM90}_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x32_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel"
     "__5x_cudnn", "sm90_xmma_fprop_implicit"),
    ("sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x64_warpgroupsize1x1x1_g1"
     "_strided_execute_kernel__5x_cudnn", "xmma_dgrad"),
    ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_g1"
     "_execute_segment_k_on_kernel__5x_cudnn", "xmma_wgrad"),
    ("void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::fprop::"
     "Warp_specialized_params_non_template<xmma__5x_cudnn::Grid_constant_params> >", "other convolution"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x192_1x4x1_cga1x1x1_kernel0_0",
     "attention"),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 256>(void const*, void const*, void*)", "attention"),
    ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int)", "attention"),
    ("nvjet_sm90_tst_32x64_64x16_2x1_v_bz_splitK_NTN", "gemm"),
    ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1>", "gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", "gemm"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
     "TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<c10::BFloat16, float, 2, 1, 1>>",
     "multi_tensor copy"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
     "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>>",
     "multi_tensor_apply"),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)",
     "copy"),
    ("my_own_kernel(float *)", "other"),
    # as others' profiles of PyTorch, FlashAttention, xFormers, CUTLASS, inductor and NCCL have them
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(T1::Params)", "gemm"),
    ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
     "cute::tuple<int, int, int, int>>>>", "gemm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>(T1::Params)",
     "other convolution"),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90"
     "<2>>>>(T1::Params)", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<int>>>", "attention"),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>", "attention"),
    ("void flash::prepare_varlen_num_blocks_kernel<1, true>(int)", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
     "attention"),
    ("_attn_fwd", "attention"),
    ("triton_tem_fused_flex_attention_backward_3", "triton attention"),
    ("triton_tem_fused_addmm_relu_7", "triton matmul"),
    ("triton_convolution3d_9", "triton convolution"),
    ("triton_poi_fused_scaled_dot_product_attention_4", "triton pointwise"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "nccl"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "nccl"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
    ("void at::native::(anonymous namespace)::grid_sampler_3d_kernel<float, long>", "upsample"),
    ("void at::native::(anonymous namespace)::grid_sampler_3d_backward_kernel<float, long>", "upsample backward"),
    ("void at::native::(anonymous namespace)::reflection_pad3d_out_kernel<float>", "padding"),
    ("void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16>>", "reduce_kernel"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "family"), NAMES, ids=lambda text: re.sub(r"\W+", "_", text)[:40])
def test_a_kernel_has_its_family(kernel: str, family: str) -> None:
    assert family_of(kernel).name == family


def test_every_kernel_of_this_package_has_a_family() -> None:
    """Those that are launched, `_name[grid](…)`; what they call is inlined."""
    sources = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    kernels = set(re.findall(r"@triton\.jit\ndef (\w+)\(", sources))
    launched = {name for name in kernels if re.search(rf"\b{name}\[", sources)}
    assert {"_norm_apply", "_upsample", "_edge_spread"} <= launched
    assert {name for name in launched if family_of(name).group == "other"} == set()


def test_the_records_hold_the_families_of_the_table() -> None:
    for path in sorted(RECORDS.glob("*/kernels_*.csv")):
        rows = pd.read_csv(path, usecols=["kernel", "family"]).drop_duplicates()
        assert [family_of(kernel).name for kernel in rows["kernel"]] == list(rows["family"]), path.name


def test_the_table_of_families_is_sound() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert {family.group for family in FAMILIES} <= set(GROUPS)
    assert {family.paper for family in FAMILIES} - {""} == {f"KN{n}" for n in range(1, 9)}
    assert [family_named(name).name for name in (*names, "other")] == [*names, "other"]


PAIRS = [
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
        "std::array<char *, (unsigned long)1>>(int, T2, T3)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
    ),
    (
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
        "CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add"
        "<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int, at::"
        "native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >(at::TensorIterator&)::{lambda(int)#1})",
    ),
    (
        "void at::native::<unnamed>::softmax<float, (bool)1>(const T1 *)",
        "at::native::(anonymous namespace)::softmax<float, true>(float const*)",
    ),
    ("void <unnamed>::foo<(int)3>(T1)", "void (anonymous namespace)::foo<3>"),
    ("sm80_xmma_wgrad_kernel", "sm80_xmma_wgrad_kernel"),
]


@pytest.mark.parametrize(("ncu", "cupti"), PAIRS, ids=range(len(PAIRS)))
def test_ncu_and_cupti_mean_the_same_kernel(ncu: str, cupti: str) -> None:
    assert same_name(ncu) == same_name(cupti)
    assert function_name(ncu) == function_name(cupti)


def test_kernels_that_differ_stay_apart() -> None:
    names = [same_name(name) for name, _ in NAMES]
    assert len(set(names)) == len(names)
    assert same_name("foo<(int)4>(int)") != same_name("foo<(int)2>(int)")
    assert same_name("f<{lambda()#1}>") != same_name("f<{lambda()#2}>")
    assert function_name("void at::native::(anonymous namespace)::foo<at::native::bar<float> >(int)") == "foo"


@pytest.mark.parametrize("text", ["(64, 2, 1)", "64x2x1", "[64,2,1]", "(64,2)", "64, 2"])
def test_dimensions_are_written_one_way(text: str) -> None:
    assert dimensions(text) == "(64, 2, 1)"
    assert dimensions("") == ""


# instruction classes


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *((name, column) for column, name in CLASSES.items()),
        ("Load/Store Instructions", "inst_ldst"), ("Warpgroup", "inst_fp"), ("Texture", "inst_ldst"),
        ("FFMA", "inst_fp"), ("HMMA", "inst_fp"), ("IMAD", "inst_int"), ("IMAD.MOV.U32", "inst_int"),
        ("LDG", "inst_ldst"), ("BRA", "inst_control"), ("ULDC", "inst_uniform"), ("I2F", "inst_conv"),
        ("S2R", "inst_misc"), ("MOV", "inst_move"), ("PLOP3", "inst_pred"), ("Quantum", None),
        # where the reference puts what could be elsewhere: cluster barriers, Hopper's products, votes, Volta's own
        ("UCGABAR_ARV", "inst_uniform"), ("HGMMA.64x64x8.F32.TF32", "inst_fp"), ("VOTEU", "inst_uniform"),
        ("VOTE", "inst_misc"), ("VOTE_VTG", "inst_misc"), ("MATCH", "inst_ldst"), ("SYNCS", "inst_ldst"),
        ("UIADD3.64", "inst_uniform"), ("HFMA2.MMA", "inst_fp"), ("UTMALDG.2D", "inst_ldst"),
        ("F2FP.BF16", "inst_conv"),
    ],
)  # fmt: skip
def test_a_class_or_opcode_has_its_column(name: str, column: str | None) -> None:
    assert class_column(name) == column


def test_class_counts_are_summed_and_the_unknown_named() -> None:
    unknown: dict[str, float] = {}
    cell = "1,205 (Control: 1,093; Integer: 70; Load/Store: 20; Texture: 2; Quantum: 4; Miscellaneous: 13; Movement: 3)"
    counts = dict(zip(CLASSES, class_counts(cell, unknown) or [], strict=True))
    assert {name: count for name, count in counts.items() if count} == {
        "inst_control": 1093, "inst_int": 70, "inst_ldst": 22, "inst_misc": 17, "inst_move": 3,
    }  # fmt: skip
    assert unknown == {"Quantum": 4}
    class_counts("1 (Quantum: 1)", unknown)
    assert unknown == {"Quantum": 5}


@pytest.mark.parametrize("cell", ["1,205", "n/a", "", "205 (Control: 93; Integer: 7", "205 (93; 70)", "205 ()"])
def test_a_cell_without_whole_classes_counts_nothing(cell: str) -> None:
    assert class_counts(cell, {}) is None
