"""The versions of each operator: our kernels, Triton's, and PyTorch's with its libraries, on the same numbers."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.switches import BASE, OPT1, Switches
from study.convnext import launches
from study.convnext.launches import BlockWeights
from study.convnext.model import EPSILON, ConvNeXtBlock

SEED = 0
TIME = 8  # width of a timestep's embedding where a block stands alone


def block_products(channels: int) -> tuple[int, int]:
    """Counts a block's multiplications a pixel: of its depthwise convolution, and of its two products over channels."""
    return 49 * channels, 8 * channels**2


@dataclass(frozen=True)
class Case:
    """One operator at one size.

    Args:
        operator: "conv2d", "layer_norm" or "block".
        batch: images at once.
        side: of an image.
        channels: in and out.
        stride: of the convolution; else 1.
    """

    operator: str
    batch: int
    side: int
    channels: int
    stride: int = 1

    @property
    def size(self) -> str:
        """H×W×C of the input, as 32x32x64."""
        return f"{self.side}x{self.side}x{self.channels}"

    @property
    def flop(self) -> int:
        """Floating-point operations of products and convolutions; of a layer norm 8 a value."""
        pixels, c = self.batch * (self.side // self.stride) ** 2, self.channels
        a_pixel = {"conv2d": 2 * 9 * c * c, "layer_norm": 8 * c, "block": 2 * sum(block_products(c))}
        return a_pixel[self.operator] * pixels

    @property
    def least_bytes(self) -> int:
        """Bytes that must come from memory and go back: input, output and weights in float32."""
        c = self.channels
        weights = {"conv2d": 9 * c * c + c, "layer_norm": 2 * c, "block": 8 * c * c + 49 * c + 9 * c}[self.operator]
        image = self.batch * self.side**2 * c
        return 4 * (image + image // self.stride**2 + weights)


CASES = (
    *(Case("conv2d", batch, 32, 64, stride) for batch in (1, 64) for stride in (1, 2)),
    *(Case("layer_norm", batch, 32, 64) for batch in (1, 64)),
    *(Case("block", batch, 32, 64) for batch in (1, 64)),
    Case("block", 1, 16, 128),
)
"""At the sizes of `model`'s network; one image, which the report's times fit, and 64, which fill the card."""
TOY = (Case("conv2d", 1, 4, 16), Case("layer_norm", 1, 4, 16), Case("block", 1, 3, 32))


Settings = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Version:
    """One way to compute a case.

    Args:
        name: as in the record.
        run: computes it once, from prepared tensors.
        output: makes (N, H, W, C) of the last result, the value of `run` or the tensor that it wrote.
        settings: PyTorch's, of which the fastest is chosen.
    """

    name: str
    run: Callable[[], object]
    output: Callable[[object], Tensor]
    settings: tuple[Settings, ...] = (contextlib.nullcontext,)

    @property
    def searched(self) -> bool:
        """True if it has several settings to choose from, as if cuDNN chooses an algorithm."""
        return len(self.settings) > 1


@dataclass(frozen=True)
class Problem:
    """A case's tensors, its versions and its result in float64.

    Args:
        case: the operator and its size.
        versions: in the record's order.
        exact: the result, (N, H', W', C) float64.
        base: the part of the result that the operator does not compute, a block's residual; errors are relative to the
            rest.
    """

    case: Case
    versions: list[Version]
    exact: Tensor
    base: Tensor

    def error(self, result: Tensor) -> float:
        """Returns ‖result − exact‖ / ‖exact − base‖."""
        apart = result.double() - self.exact
        return float(apart.norm() / (self.exact - self.base).norm())


def problem(case: Case, device: torch.device) -> Problem:
    """Makes the versions of a case on a device.

    Args:
        case: the operator and its size.
        device: a GPU, or a CPU, where numba's simulator computes our kernels.
    """
    make = {"conv2d": _conv2d, "layer_norm": _layer_norm, "block": _block}[case.operator]
    torch.compiler.reset()  # it compiles one function eight times at most, and then runs it as it is
    return make(case, torch.Generator(device).manual_seed(SEED))


def _ours(name: str, listed: list[launches.Launch], out: Tensor) -> Version:
    prepared = [launch.prepared() for launch in listed]

    def run() -> None:
        for launch in prepared:
            launch()

    return Version(name, run, lambda _: out)


@contextlib.contextmanager
def _settings(switches: Switches, search: bool) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = search
    try:
        with switches, torch.no_grad():
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def _library(name: str, switches: Switches, run: Callable[[], Tensor], output: Callable[..., Tensor]) -> Version:
    """Returns a library's version with both of cuDNN's ways to choose an algorithm: by rule, and by search.

    The search times each algorithm once; where they take some microseconds it may keep a slower one.
    """
    both = tuple(functools.partial(_settings, switches, search) for search in (False, True))
    return Version(name, run, output, both)


def _whole(result: object) -> Tensor:
    assert isinstance(result, Tensor)
    return result


def _last(result: object) -> Tensor:
    """Turns (N, C, H, W), of any memory order and precision, into (N, H, W, C)."""
    return _whole(result).permute(0, 2, 3, 1)


def _conv2d(case: Case, generator: torch.Generator) -> Problem:
    c, device = case.channels, generator.device
    x = torch.randn(case.batch, case.side, case.side, c, generator=generator, device=device)
    weight = torch.randn(3, 3, c, c, generator=generator, device=device) / (3 * c**0.5)
    bias = torch.randn(c, generator=generator, device=device)
    images, filters = x.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1)  # as PyTorch has them, over the same memory
    exact = _last(functional.conv2d(images.double(), filters.double(), bias.double(), case.stride, 1))
    versions = []
    for name in launches.CONVOLUTIONS:
        out = torch.full(exact.shape, float("nan"), device=device)
        versions.append(_ours(name, launches.convolution(name, x, weight, bias, out, case.stride, 1), out))
    dense = images.contiguous(), filters.contiguous(), bias
    last = images, filters.contiguous(memory_format=torch.channels_last), bias
    half = tuple(t.bfloat16() for t in last)
    for name, switches, inputs in (
        ("cuDNN FP32", BASE, dense),
        ("cuDNN FP32, channels-last", BASE, last),
        ("cuDNN TF32", OPT1, dense),
        ("cuDNN TF32, channels-last", OPT1, last),
        ("cuDNN BF16, channels-last", OPT1, half),
    ):
        run = functools.partial(functional.conv2d, *inputs, case.stride, 1)
        versions.append(_library(name, switches, run, _last))
    return Problem(case, versions, exact, torch.zeros_like(exact))


def _layer_norm(case: Case, generator: torch.Generator) -> Problem:
    c, device = case.channels, generator.device
    x = torch.randn(case.batch, case.side, case.side, c, generator=generator, device=device)
    gain, bias = (torch.randn(c, generator=generator, device=device) for _ in range(2))
    exact = functional.layer_norm(x.double(), (c,), gain.double(), bias.double(), EPSILON)
    versions = []
    for name in launches.NORMS:
        out = torch.full(x.shape, float("nan"), device=device)
        versions.append(_ours(name, launches.layer_norm(name, x, gain, bias, out), out))
    run = functools.partial(functional.layer_norm, x, (c,), gain, bias, EPSILON)
    versions.append(Version("PyTorch", run, _whole))
    if x.is_cuda:
        compiled = torch.compile(functional.layer_norm, dynamic=False, fullgraph=True)
        run = functools.partial(compiled, x, (c,), gain, bias, EPSILON)
        versions.append(Version("torch.compile", run, _whole))
    return Problem(case, versions, exact, torch.zeros_like(exact))


def _block(case: Case, generator: torch.Generator) -> Problem:
    c, device = case.channels, generator.device
    torch.manual_seed(SEED)
    module = ConvNeXtBlock(c, TIME).to(device)
    x = torch.randn(case.batch, case.side, case.side, c, generator=generator, device=device)
    shift = torch.randn(case.batch, c, generator=generator, device=device)
    images = x.permute(0, 3, 1, 2)
    with torch.no_grad():
        double = ConvNeXtBlock(c, TIME).to(device).double()
        double.load_state_dict(module.state_dict())
        exact = _last(double.body(images.double(), shift.double()))
    weights = BlockWeights.of(module)
    together = shift + weights.depthwise_bias
    versions = []
    for name in launches.BLOCKS:
        if name == "fused" and c not in launches.FUSED_CHANNELS:
            continue
        out = torch.full(x.shape, float("nan"), device=device)
        versions.append(_ours(name, launches.convnext_block(name, x, together, weights, out), out))
    versions += _library_blocks(module, x, shift, together, weights)
    return Problem(case, versions, exact, x.double())


def _library_blocks(
    module: ConvNeXtBlock, x: Tensor, shift: Tensor, together: Tensor, w: BlockWeights
) -> list[Version]:
    """Makes Triton's version and PyTorch's: eager and compiled, in float32, TF32, and BF16 by autocast.

    Autocast casts weights at each call, "cast once" has them in BF16.
    """
    versions = []
    if importlib.util.find_spec("triton") and x.is_cuda:
        from study.convnext.kernels.block_triton import convnext_block

        out = torch.full_like(x, float("nan"))
        products = [m.weight.detach().bfloat16().contiguous() for m in (module.expand, module.project)]
        vectors = (w.taps(), w.gain, w.bias, products[0], w.expand_bias, products[1], w.project_bias)
        versions.append(Version("Triton", lambda: convnext_block(x, together, vectors, out, EPSILON), lambda _: out))
    last = x.permute(0, 3, 1, 2)  # channels-last, as ours
    dense = last.contiguous()
    device = x.device.type

    def mixed(function: Callable[..., Tensor], image: Tensor) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.autocast(device, torch.bfloat16):
                return function(image, shift)

        return run

    def plain(function: Callable[..., Tensor], image: Tensor) -> Callable[[], Tensor]:
        return lambda: function(image, shift)

    body, cast = _Body(module), _Body(_products_in_bf16(module))
    versions += [
        _library("PyTorch FP32", BASE, plain(body, dense), _last),
        _library("PyTorch TF32", OPT1, plain(body, dense), _last),
        _library("PyTorch TF32, channels-last", OPT1, plain(body, last), _last),
        _library("PyTorch BF16, channels-last", OPT1, mixed(body, last), _last),
        _library("PyTorch BF16, cast once", OPT1, mixed(cast, last), _last),
    ]
    if x.is_cuda:
        searched = "max-autotune-no-cudagraphs"  # `timing.graphed` captures every version
        for name, how, computed, mode in (
            ("torch.compile TF32", plain, body, "default"),
            ("torch.compile BF16", mixed, body, "default"),
            ("torch.compile BF16, cast once", mixed, cast, "default"),
            ("torch.compile TF32, max-autotune", plain, body, searched),
            ("torch.compile BF16, cast once, max-autotune", mixed, cast, searched),
        ):
            compiled = torch.compile(copy.deepcopy(computed), dynamic=False, fullgraph=True, mode=mode)
            versions.append(_library(name, OPT1, how(compiled, last), _last))
    return versions


def _products_in_bf16(module: ConvNeXtBlock) -> ConvNeXtBlock:
    """Copies a block with weights in BF16, which autocast need not cast at each call."""
    cast = copy.deepcopy(module)
    for layer in (cast.depthwise, cast.expand, cast.project):
        layer.bfloat16()
    return cast


class _Body(nn.Module):
    """A block without the product that makes its shift."""

    def __init__(self, block: ConvNeXtBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.block.body(x, shift)
