"""Operators of the fast path for channels-last 3-D tensors, each beside its definition in plain PyTorch.

One module or folder an operator (`norm`, `add`, `conv3d`, …), each with a function to call and its definition. The
function uses the Triton kernels (`*_triton`; on Hopper also `conv3d.hopper`) where `dispatch.takes` allows: Triton is
installed and the tensor is BF16, FP16 or FP32, on CUDA, channels-last in memory. Anything else runs the definition, so
every input has an answer and a CPU needs no Triton. The kernels never wait for the device and use no atomics: a CUDA
graph can capture them, and they give the same bits each time; `torch.compile` sees each launch as one operator
(`operators`). They have first derivatives; a gradient that is to be differentiated is computed by PyTorch's functions.
"""
