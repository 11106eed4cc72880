"""Changes that a user may make to one module of a network, and every place in a network where one can be made."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.more_networks import MORE, SINGLE
from helpers.networks import alive, distance, farthest, inputs, made, passed
from medddpm.fast.patch import accelerate
from medddpm.unet import UNet3D

NORMS = (nn.GroupNorm, nn.InstanceNorm3d, nn.BatchNorm3d, nn.LayerNorm)
Change = Callable[[nn.Module, nn.Module, str], bool | None]
"""Takes a module, the one that holds it and its name there; returns False if there is nothing to change."""


def hook(module: nn.Module, holder: nn.Module, name: str) -> None:
    module.register_forward_hook(lambda _module, _inputs, y: 1.5 * y if isinstance(y, Tensor) else y)


def hook_before(module: nn.Module, holder: nn.Module, name: str) -> None:
    def halved(_module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(0.5 * x if isinstance(x, Tensor) and x.is_floating_point() else x for x in given)

    module.register_forward_pre_hook(halved)


def own_forward(module: nn.Module, holder: nn.Module, name: str) -> None:
    def doubled(*args: Any, **kwargs: Any) -> Any:
        y = type(module).forward(module, *args, **kwargs)
        return 2 * y if isinstance(y, Tensor) else y

    module.forward = doubled  # type: ignore[method-assign]


def weight_norm(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if not isinstance(getattr(module, "weight", None), nn.Parameter) or module.weight.dim() < 2:
        return False
    nn.utils.parametrizations.weight_norm(module)
    return None


def old_weight_norm(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if not isinstance(getattr(module, "weight", None), nn.Parameter) or module.weight.dim() < 2:
        return False
    nn.utils.weight_norm(module)
    return None


def no_bias(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if not isinstance(getattr(module, "bias", None), nn.Parameter):
        return False
    module.bias = None
    return None


def tanh(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if type(module).__module__ != "torch.nn.modules.activation":
        return False
    holder.register_module(name, nn.Tanh())
    return None


def no_norm(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if not isinstance(module, NORMS):
        return False
    holder.register_module(name, nn.Identity())
    return None


def as_buffers(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    own = {key: p.detach() for key, p in module._parameters.items() if p is not None}
    for key, tensor in own.items():
        delattr(module, key)
        module.register_buffer(key, tensor)
    return bool(own)


def circular(module: nn.Module, holder: nn.Module, name: str) -> bool | None:
    if not isinstance(module, nn.Conv3d) or max(module.kernel_size) == 1:
        return False
    module.padding_mode = "circular"
    return None


CHANGES: tuple[Change, ...] = (
    hook, hook_before, own_forward, weight_norm, old_weight_norm, no_bias, tanh, no_norm, as_buffers,
    circular,
)  # fmt: skip


class Case(NamedTuple):
    """A change of the module at `path`, before or after the network is accelerated."""

    network: str
    path: str
    change: Change
    before: bool

    def __str__(self) -> str:
        return f"{self.network}: {self.change.__name__} of {self.path}, {'before' if self.before else 'after'}"

    def make(self, network: nn.Module) -> bool:
        """Makes the change; False if there is nothing to change."""
        holder, _, name = self.path.rpartition(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the old weight norm's
            done = self.change(network.get_submodule(self.path), network.get_submodule(holder), name)
        return done is not False

    def fault(self, base: nn.Module, given: tuple[Tensor, ...]) -> str | None:
        """What is wrong; empty if nothing is, None if the changed network itself does not run."""
        plain, fast = copy.deepcopy(base), copy.deepcopy(base)
        try:
            if not self.make(plain):
                return None
            outputs, gradients = passed(plain, *given)
        except Exception:
            return None
        try:
            if self.before:
                self.make(fast)
            accelerate(fast, report=None)
            if not self.before:
                self.make(fast)
            found, fast_gradients = passed(fast, *given)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        wide = given[0].dtype == torch.float64
        far = max(distance(a, b) for a, b in zip(found, outputs, strict=True)), farthest(fast_gradients, gradients)
        return "" if far[0] < (1e-6 if wide else 1e-4) and far[1] < (1e-4 if wide else 2e-3) else f"{far} away"


def cases(name: str, network: nn.Module) -> list[Case]:
    """One for each class of module, place in its holder, depth and change: in an order that looks random."""
    kinds: dict[object, tuple[str, Change]] = {}
    for path, module in network.named_modules():
        for change in CHANGES if path else ():
            kind = type(module), path.rsplit(".", 1)[-1], path.count("."), change
            kinds.setdefault(kind, (path, change))
    found = [Case(name, path, change, before) for path, change in kinds.values() for before in (True, False)]
    return sorted(found, key=lambda case: zlib.crc32(str(case).encode()))


def prepared(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network of that name, and what it is given; in float64 but for our own and others that are in float32."""
    torch.manual_seed(0)
    if name in MORE:
        make, side = MORE[name]
        dtype = torch.float32 if name in SINGLE else torch.float64
        return alive(make().to(dtype)), inputs(name, dtype, side)
    if name != "UNet3D":
        return made(name, torch.float64), inputs(name, torch.float64)
    network = UNet3D(32, 3, 1, 32, 1, channel_mult=(1, 2), attention_rates=(2,))
    for parameter in network.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return network, inputs("DiffusionModelUNet")


def faults(name: str, most: int | None = None) -> Iterator[tuple[Case, str]]:
    """The cases of a network that could be tried, `most` of them, and what is wrong with each."""
    network, given = prepared(name)
    tried = 0
    for case in cases(name, network):
        if most is not None and tried >= most:
            return
        fault = case.fault(network, given)
        if fault is not None:
            tried += 1
            yield case, fault
