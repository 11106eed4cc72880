"""Settings: the paper's TF32 (Section 5.1, Algorithm 1) and channels-last-3D (5.2, Algorithm 2), and the fast path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.reports import log


@dataclass(frozen=True)
class Switches:
    """A setting of the study. Every switch is set, on or off, and restored on exit, also after an exception.

    >>> with OPT1:                      # the precision flags, for all code inside
    ...     loss = diffusion.loss(image, mask)
    >>> with OPT12.on(network):         # the flags, and this network's weights and inputs in the layout
    ...     loss = diffusion.loss(image, mask)

    Args:
        name: in records and figures: BASE, OPT1, …
        tf32: whether matrix products and cuDNN may round float32 operands to TF32's 10-bit mantissa.
        channels_last: whether 5-D weights and inputs are stored N, D, H, W, C.
        precision: "fp32" runs the network as written; "bf16" and "tf32" accelerate it (`medddpm.accelerate`) in that
            precision, with its weights, loss and average in float32.
        features: the parts of the fast path that are used, of `medddpm.fast.patch.FEATURES`; None for all.
    """

    name: str
    tf32: bool
    channels_last: bool
    precision: Literal["fp32", "bf16", "tf32"] = "fp32"
    features: frozenset[str] | None = None

    @property
    def fast(self) -> bool:
        """True if networks are accelerated: fused kernels, and CUDA graphs around the steps that use them."""
        return self.precision != "fp32"

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of 5-D weights and inputs."""
        return torch.channels_last_3d if self.channels_last else torch.contiguous_format

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a 5-D tensor with the strides that PyTorch documents for this layout; a copy, if it has others.

        `contiguous` alone takes a tensor of one channel, or of one voxel, for channels-last as it is; by their strides
        cuDNN's convolutions then choose the contiguous layout.
        """
        return tensor.to(memory_format=self.memory_format).contiguous(memory_format=self.memory_format)

    def __enter__(self) -> Switches:
        """Sets the flags alone. A setting that also moves weights needs the network: see `on`."""
        if self.channels_last:
            raise TypeError(f"{self.name} changes the layout of a network: write `with {self.name}.on(network):`")
        _entered.append(_set_tf32(self.tf32))
        return self

    def __exit__(self, *exception: object) -> None:
        _entered.pop()()

    @contextlib.contextmanager
    def on(self, network: nn.Module, inputs: bool = True) -> Iterator[Switches]:
        """Sets the flags, lays out `network`'s 5-D parameters and buffers, and converts every 5-D input of its calls.

        Only strides change, not values; the optimizer may have the parameters already. A fast setting also accelerates
        the network, unless it is accelerated. On exit, every tensor has its former strides, and the network runs as
        before. Settings may be nested, on one network or several.

        Args:
            network: its weights are laid out.
            inputs: whether its calls convert their inputs; `torch.compile` would make the conversion a separate graph.
        """
        restore_flags = _set_tf32(self.tf32)
        tensors = [t for t in (*network.parameters(), *network.buffers()) if t.dim() == 5]
        strides = [t.stride() for t in tensors]
        with contextlib.ExitStack() as undo:
            undo.callback(restore_flags)
            undo.callback(_put_back, tensors, strides)
            for tensor in tensors:
                tensor.data = self.laid_out(tensor.data)
            if inputs and not self.fast:
                undo.callback(self.converting(network).remove)
            if self.fast and not cuda_graphs.is_accelerated(network):
                self._accelerate(network, undo)
            yield self

    def converting(self, module: nn.Module) -> RemovableHandle:
        """Makes each call of `module` convert its 5-D inputs, until the handle's `remove`."""
        return module.register_forward_pre_hook(self._convert_inputs, with_kwargs=True)

    def _accelerate(self, network: nn.Module, undo: contextlib.ExitStack) -> None:
        from medddpm.fast.kernels.dispatch import serves, too_old
        from medddpm.fast.patch import accelerate, restore  # imports Triton, which only a fast setting should wait for

        first = next(network.parameters(), None)
        if first is None or not too_old(first.device):  # which accelerate would warn of as well
            # No graph of the network alone: a training step or a sampler's step is captured as a whole.
            accelerate(network, self.precision, only=self.features, graph=False, report=None)
            undo.callback(restore, network)
        if first is not None and not serves(first.device):
            _warn_once(
                f"{self.name}: its kernels need a GPU of compute capability 8.0 or more, and Triton; "
                "computing the same in float32 without them"
            )

    def _convert_inputs(
        self, _network: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        def convert(value: object) -> object:
            if isinstance(value, torch.Tensor) and value.dim() == 5:
                return self.laid_out(value)
            return value

        return tuple(convert(a) for a in args), {k: convert(v) for k, v in kwargs.items()}


def _put_back(tensors: list[torch.Tensor], strides: list[tuple[int, ...]]) -> None:
    for tensor, stride in zip(tensors, strides, strict=True):
        if tensor.stride() != stride:
            tensor.data = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(
                tensor.data
            )


def _warn_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        log.warning(line)


def _set_tf32(on: bool) -> Callable[[], None]:
    """Sets the TF32 flags of matrix products and of cuDNN; returns a function that restores the former state.

    cuDNN's flag is True in a fresh process, so a run that sets nothing is not float32. The named flags are those of
    the paper's Algorithm 1; PyTorch 2.9 added a precision string for each operator, which the flags update only in
    part, so both are set and both are put back. The flags cannot be read if only the strings were used.
    """
    backends = torch.backends
    # PyTorch before 2.9 (`medddpm profile --python`) has the flags alone.
    named = hasattr(backends.cuda.matmul, "fp32_precision")
    operators = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn) if named else ()  # type: ignore[attr-defined]
    precisions = [operator.fp32_precision for operator in operators]
    try:
        matmul_flag, cudnn_flag = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
        matmul_precision = torch.get_float32_matmul_precision()
        readable = True
    except RuntimeError:
        readable = False

    def write(precision: list[str]) -> None:
        for operator, value in zip(operators, precision, strict=True):
            operator.fp32_precision = value

    def restore() -> None:
        if readable:
            backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = matmul_flag, cudnn_flag
            torch.set_float32_matmul_precision(matmul_precision)
        write(precisions)

    torch.set_float32_matmul_precision("high" if on else "highest")
    backends.cuda.matmul.allow_tf32 = on
    backends.cudnn.allow_tf32 = on
    write(["tf32" if on else "ieee"] * len(operators))
    return restore


# Functions that put back the flags of each open `with`, innermost last: the flags are the process's, not a setting's.
_entered: list[Callable[[], None]] = []
_said: set[str] = set()

BASE = Switches("BASE", tf32=False, channels_last=False)
OPT1 = Switches("OPT1", tf32=True, channels_last=False)
OPT2 = Switches("OPT2", tf32=False, channels_last=True)
OPT12 = Switches("OPT12", tf32=True, channels_last=True)
FAST = Switches("FAST", tf32=True, channels_last=True, precision="bf16")

SETTINGS: dict[str, Switches] = {setting.name: setting for setting in (BASE, OPT1, OPT2, OPT12, FAST)}
"""Every setting by its name, in the order of the figures: the paper's four, then ours."""
