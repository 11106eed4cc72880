"""Kernel families: Table 2 of the paper (ICPE '26, arXiv:2606.19365), extended to every kernel of a training step.

`FAMILIES` is one ordered table: the first rule whose pattern is found in a kernel's name gives its family, so special
rules come before general ones. The patterns match the names that PyTorch, cuDNN, cuBLAS and Triton give their kernels.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pandas as pd

OTHER = "other"
GROUPS = ("convolution", "matmul", "normalization", "pointwise", "layout", "reduction", "resampling", "update", OTHER)


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        name: in tables and figures; the paper's name if it has one.
        group: the kind of work, one of `GROUPS`.
        pattern: a regular expression, searched in the kernel's name with case.
        paper: the paper's abbreviation, KN1 to KN8, of the name that its authors would have filed this kernel under;
            empty where Table 2 has none.
    """

    name: str
    group: str
    pattern: str
    paper: str = ""


FAMILIES = (
    # NCCL's first: their names say what they do (reduce, gather, scatter), as names of other families do.
    Family("nccl", "update", r"(?i:nccl)"),
    # Triton kernels next: inductor names one after everything fused into it, so any later pattern may be found there.
    # `tem` is a template (a product, or flex attention), `red` and `per` are reductions, `poi` is pointwise. While it
    # searches, inductor names a template by itself: `triton_mm_3`, `triton_convolution3d_2`.
    Family("triton convolution", "convolution", r"triton_(?:tem_\w*)?conv"),
    Family("triton attention", "matmul", r"triton_(?:tem_\w*)?(?:flex_)?attention"),
    Family("triton matmul", "matmul", r"triton_(?:tem|mm|bmm)_"),
    Family("triton norm", "normalization", r"triton_\w*(?:group_norm|layer_norm|batch_norm|rsqrt|var_mean|welford)"),
    Family("triton upsample", "resampling", r"triton_\w*(?:upsample|unsafe_index)"),
    Family("triton reduction", "reduction", r"triton_(?:red|per)_"),
    Family("triton pointwise", "pointwise", r"triton_"),
    # This package's own, by the names that `medddpm.fast.kernels.norm_triton` and its neighbours give them.
    Family("fused norm backward", "normalization", r"^_norm_(?:\w*sums|\w*backward)"),
    Family("fused norm", "normalization", r"^_norm_"),
    Family("fused data gradient", "convolution", r"^_conv_adjoint"),
    Family("fused weight gradient", "convolution", r"^_(?:conv_weight|edge_correlate)"),
    Family("fused convolution", "convolution", r"^_conv"),
    Family("fused edge", "convolution", r"^_edge_"),  # the first and the last convolution
    Family("fused skip product", "matmul", r"^_add_product"),  # a residual sum that makes its 1×1×1 convolution itself
    Family("fused add", "pointwise", r"^_add"),
    Family("fused column sums", "reduction", r"^_column_sums"),  # gradients of biases
    Family("fused weight copies", "layout", r"^_relay"),  # casts of weights into the other memory order, and back
    # cuDNN's convolutions on Ampere's and on Hopper's tiles; FP32 ones run on CUDA cores under the same names.
    Family("sm80_xmma_fprop_implicit", "convolution", r"sm8\d_xmma_fprop", "KN1"),
    Family("sm90_xmma_fprop_implicit", "convolution", r"sm(?:9\d|1\d\d)_xmma_fprop", "KN2"),
    Family("xmma_dgrad", "convolution", r"sm\d+_xmma_(?:dgrad|bprop)"),  # gradient of a convolution's input
    Family("xmma_wgrad", "convolution", r"sm\d+_xmma_wgrad"),  # gradient of a convolution's weights
    # cuDNN's convolutions without a Tensor Core (A100's main kernel), and Volta's assembly (V100's).
    Family("implicit_convolveNd", "convolution", r"implicit_convolve", "KN6"),
    Family("_5x_cudnn_volta_scudnn", "convolution", r"_5x_cudnn_volta|volta_[sh]\w*cudnn", "KN7"),
    # What cuDNN runs around a convolution: tensors padded, transposed, converted; offsets tabulated, filters reordered.
    Family("nhwcAddPaddingKernel", "layout", r"nhwcAddPadding|nchwAddPadding|RemovePadding", "KN8"),
    Family("nhwcToNchwKernel", "layout", r"nhwcToNchw", "KN5"),
    Family("nchwToNhwcKernel", "layout", r"nchwToNhwc|[fF]oldedNhwc"),
    Family("cudnn layout", "layout", r"convertTensor|genericTranspose|transpose_readWrite|region_transform"),
    Family("cudnn helper", "convolution", r"computeOffsets|precompute\w*_ind|(?:scale|set|add)\w*Tensor|reorderFil"),
    # cuDNN's attention is generated at run time; around its backward pass it sums and converts. FlashAttention 3 is
    # written in CUTLASS (`cutlass::device_kernel<flash::…>`), xFormers' is `fmha_cutlass…`, Triton's `_attn_fwd`.
    Family(
        "attention", "matmul",
        r"(?i:flash_|flash::|fmha|sdpa|attention|attn)|cudnn::fusion::(?:compute_dot_do|convert_dq)",
    ),
    # cuDNN's remaining convolutions: CUTLASS's, direct, Winograd, generated at run time; and PyTorch's own.
    Family(
        "other convolution", "convolution",
        r"cudnn_generated|[shi]\d*cudnn_|[fdw](?:prop|grad)(?:\d|_|::|<|$)|(?i:conv(?:[123]d|nd|olve|olution)|conv_|winograd)"
        r"|im2col|vol2col|col2vol|col2im",
    ),
    # Norms: statistics of rows (PyTorch's group and layer norm), their application, their gradients; other norms whole.
    Family("RowwiseMomentsCUDAKernel", "normalization", r"RowwiseMoments", "KN3"),
    Family("group norm elementwise", "normalization", r"elementwise_kernel.*GroupNorm", "KN4"),
    Family(
        "group norm backward", "normalization",
        r"ComputeInternalGradients|ComputeBackwardFusedParams|GammaBeta\w*Backward|GroupNorm\w*Backward",
    ),
    Family("group norm parameters", "normalization", r"ComputeFusedParams"),
    Family("other norm", "normalization", r"(?i:(?:group|layer|batch|instance|rms)_?norm)|bn_[fb]w"),
    # One launch over many tensors: parameters copied to another precision; the optimizer and the moving average.
    Family("multi_tensor copy", "layout", r"multi_tensor_apply.*CopyFunctor"),
    Family("multi_tensor_apply", "update", r"multi_tensor_apply|Fused(?:Adam|Optimizer)"),
    # Matrix products: the time embedding, and 1×1×1 convolutions that are run as such.
    Family("gemm", "matmul", r"(?i:gemm|gemv|nvjet|splitk|cublas)|cutlass|dot_kernel|reduce_1Block"),
    # Trilinear upsampling and other resampling, PyTorch's and this package's.
    Family("upsample backward", "resampling", r"(?i:(?:upsample|interpolate|grid_sampler)\w*(?:backward|grad))"),
    Family("upsample", "resampling", r"(?i:upsample|interpolate|grid_sampler)"),
    Family("pooling", "resampling", r"(?i:(?:max|avg|average)_?\w*pool|pooling)"),
    Family("cat", "layout", r"CatArray"),
    Family("padding", "layout", r"(?:reflection|replication)_pad"),
    Family("softmax", "reduction", r"(?i:softmax)"),
    Family(
        "index and scatter", "layout",
        r"index_(?:put|select|copy|fill|add|elementwise|kernel)|index(?:Select|Func|Copy|Add|Fill)"
        r"|(?i:gather|scatter|embedding|radixsort|sortkv)|roll_cuda|triu_tril",
    ),
    Family("random", "pointwise", r"distribution_elementwise|(?i:philox|curand|dropout|randperm)"),
    # Between layouts or precisions PyTorch copies by its elementwise kernels: KN4 by name.
    Family("copy", "layout", r"direct_copy_kernel|float\w*_copy_kernel|copy_device_to_device", "KN4"),
    Family("transpose", "layout", r"(?i:transpose|permute)"),
    # PyTorch's pointwise operations: contiguous (vectorized), of mixed types or unaligned (unrolled), strided.
    Family("vectorized_elementwise_kernel", "pointwise", r"vectorized_elementwise_kernel", "KN4"),
    Family("unrolled_elementwise_kernel", "pointwise", r"unrolled_elementwise_kernel", "KN4"),
    Family("elementwise_kernel", "pointwise", r"elementwise", "KN4"),
    Family(
        "reduce_kernel", "reduction", r"(?i:reduce)|cub::|DeviceScan|selective_scan|scan_(?:inn|out)ermost"
    ),
    # Not kernels: the driver fills and copies by engines of its own, and only a trace shows it.
    Family("memset and memcpy", "layout", r"(?i:^\W*(?:cuda ?)?mem(?:set|cpy))"),
)  # fmt: skip


@functools.cache
def family_of(kernel: str) -> Family:
    """Returns the family of a kernel, given its name, mangled or not; `other` if no rule fits."""
    for family, pattern in _compiled():
        if pattern.search(kernel):
            return family
    return Family(OTHER, OTHER, "")


def families_of(kernels: pd.Series[str]) -> pd.Series[str]:
    """Returns the name of each kernel's family; each name is looked up once."""
    return kernels.map({name: family_of(name).name for name in kernels.unique()})


def family_named(name: str) -> Family:
    """Returns the family of that name; `other` has no pattern.

    Raises:
        KeyError: there is no such family.
    """
    return Family(OTHER, OTHER, "") if name == OTHER else _by_name()[name]


@functools.cache
def _compiled() -> tuple[tuple[Family, re.Pattern[str]], ...]:
    return tuple((family, re.compile(family.pattern)) for family in FAMILIES)


@functools.cache
def _by_name() -> dict[str, Family]:
    return {family.name: family for family in FAMILIES}
