"""The report's operators on a CPU, compiled by numba: float32, images (N, H, W, C), one thread or all cores.

`numba.set_num_threads(1)` makes them the report's reference; nothing else tells the two apart. They are written as one
would write them in C++ and are the definitions that the CUDA kernels replace, not the fastest code for a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

EPSILON = np.float32(1e-6)  # of ConvNeXt's layer norms


@numba.njit(parallel=True, cache=True)
def _conv2d(padded: Array, weight: Array, bias: Array, stride: int) -> Array:
    images, high, wide, inputs = padded.shape
    side, _, _, outputs = weight.shape
    rows, columns = (high - side) // stride + 1, (wide - side) // stride + 1
    out = np.empty((images, rows, columns, outputs), np.float32)
    for line in numba.prange(images * rows):
        image, row = line // rows, line % rows
        for column in range(columns):
            for output in range(outputs):
                out[image, row, column, output] = bias[output]
            for y in range(side):
                for x in range(side):
                    for channel in range(inputs):
                        value = padded[image, row * stride + y, column * stride + x, channel]
                        for output in range(outputs):
                            out[image, row, column, output] += value * weight[y, x, channel, output]
    return out


@numba.njit(parallel=True, cache=True)
def _depthwise(padded: Array, weight: Array, bias: Array, stride: int) -> Array:
    images, high, wide, channels = padded.shape
    side = weight.shape[0]
    rows, columns = (high - side) // stride + 1, (wide - side) // stride + 1
    out = np.empty((images, rows, columns, channels), np.float32)
    for line in numba.prange(images * rows):
        image, row = line // rows, line % rows
        for column in range(columns):
            for channel in range(channels):
                out[image, row, column, channel] = bias[channel]
            for y in range(side):
                for x in range(side):
                    for channel in range(channels):
                        value = padded[image, row * stride + y, column * stride + x, channel]
                        out[image, row, column, channel] += value * weight[y, x, 0, channel]
    return out


@numba.njit(parallel=True, cache=True)
def _layer_norm(rows: Array, gain: Array, bias: Array, epsilon: float) -> Array:
    count, channels = rows.shape
    out = np.empty_like(rows)
    for row in numba.prange(count):
        mean = np.float32(0)
        for channel in range(channels):
            mean += rows[row, channel]
        mean /= channels
        variance = np.float32(0)
        for channel in range(channels):
            variance += (rows[row, channel] - mean) ** 2
        scale = 1 / math.sqrt(variance / channels + epsilon)
        for channel in range(channels):
            out[row, channel] = (rows[row, channel] - mean) * scale * gain[channel] + bias[channel]
    return out


@numba.njit(parallel=True, cache=True)
def _linear(rows: Array, weight: Array, bias: Array) -> Array:
    count, inputs = rows.shape
    outputs = weight.shape[1]
    out = np.empty((count, outputs), np.float32)
    for row in numba.prange(count):
        for output in range(outputs):
            out[row, output] = bias[output]
        for channel in range(inputs):
            for output in range(outputs):
                out[row, output] += rows[row, channel] * weight[channel, output]
    return out


@numba.njit(parallel=True, cache=True)
def _pointwise(flat: Array, which: int) -> Array:
    out = np.empty_like(flat)
    for place in numba.prange(flat.size):
        value = flat[place]
        if which == 0:
            out[place] = max(value, np.float32(0))
        elif which == 1:
            out[place] = np.float32(0.5) * value * (1 + math.erf(value * np.float32(math.sqrt(0.5))))
        else:
            out[place] = 1 / (1 + math.exp(-value))
    return out


def relu(x: Array) -> Array:
    """Computes max(x, 0), of any shape."""
    return _pointwise(x.ravel(), 0).reshape(x.shape)


def gelu(x: Array) -> Array:
    """Computes x·Φ(x) with the exact error function (Hendrycks & Gimpel 2016), of any shape."""
    return _pointwise(x.ravel(), 1).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """Computes 1 / (1 + exp(−x)), of any shape."""
    return _pointwise(x.ravel(), 2).reshape(x.shape)


def softmax(x: Array) -> Array:
    """Divides exp(x) by its sum over the last axis."""
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True), dtype=np.float32)


def upsample(x: Array) -> Array:
    """Repeats each pixel four times: (N, H, W, C) to (N, 2H, 2W, C)."""
    return x.repeat(2, axis=1).repeat(2, axis=2)


def identity(x: Array) -> Array:
    """Returns a copy, for a skip connection."""
    return x.copy()


def normalize_to_neg_one_to_one(x: Array) -> Array:
    """Brings an image from [0, 1] to [-1, 1]."""
    return x * np.float32(2) - np.float32(1)


def unnormalize_to_zero_to_one(x: Array) -> Array:
    """Brings an image from [-1, 1] to [0, 1]."""
    return (x + np.float32(1)) * np.float32(0.5)


def extract(schedule: Array, t: npt.NDArray[np.int64]) -> Array:
    """Returns the schedule's value at each of t (N,), (N, 1, 1, 1)."""
    return schedule[t].reshape(-1, 1, 1, 1)


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """Computes (N, I) times weight (I, O) plus bias (O,)."""
    return _linear(x, weight, bias)


def element_matmul(x: Array, y: Array) -> Array:
    """Returns the element-wise product of two arrays of one shape."""
    return x * y


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    """Computes a layer norm over the last axis (Ba et al. 2016) with gain and bias (C,); its epsilon is `EPSILON`."""
    return _layer_norm(x.reshape(-1, x.shape[-1]), gain, bias, EPSILON).reshape(x.shape)


def conv2d_pad(x: Array, padding: int) -> Array:
    """Pads (N, H, W, C) with `padding` rows and columns of zeros on each side."""
    return np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def conv2d(padded: Array, weight: Array, bias: Array, stride: int = 1) -> Array:
    """Computes a convolution without padding.

    Args:
        padded: (N, H, W, I).
        weight: (K, K, I, O), or (K, K, 1, I) for a depthwise convolution.
        bias: (O,).
        stride: of both axes.

    Returns:
        (N, (H − K) // stride + 1, (W − K) // stride + 1, O).
    """
    depthwise = weight.shape[2] == 1 and padded.shape[3] == weight.shape[3]
    return (_depthwise if depthwise else _conv2d)(padded, weight, bias, stride)


OPERATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        relu, gelu, sigmoid, softmax, upsample, identity, normalize_to_neg_one_to_one, unnormalize_to_zero_to_one,
        extract, linear, element_matmul, layer_norm, conv2d_pad, conv2d,
    )
}  # fmt: skip
"""The rows of the report's Table I, in its order, and the function of each."""


class OperatorTimer:
    """The operators by name as `OPERATORS` has them, each call timed.

    Args:
        replaced: functions that stand in for operators of that name, such as a kernel with its transfers.

    Attributes:
        seconds: wall time of all calls of each operator, in the table's order.
        calls: their number.
    """

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        self._functions = OPERATORS | replaced
        self.seconds = dict.fromkeys(OPERATORS, 0.0)
        self.calls = dict.fromkeys(OPERATORS, 0)

    def __call__(self, name: str, *inputs: Any) -> Any:
        """Calls one operator and adds its time to the others of its name."""
        began = time.perf_counter()
        result = self._functions[name](*inputs)
        self.seconds[name] += time.perf_counter() - began
        self.calls[name] += 1
        return result
