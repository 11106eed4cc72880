"""The modules whose forward reads nothing but inputs, parameters, buffers and plain attributes.

Of such a network the key that is compared before a replay (`fast.replay.fingerprint`) holds all that a CUDA graph
depends on, so `accelerate` captures graphs by itself. The table names files, since what counts is where the forward is
written: a subclass that keeps it and overrides no other method counts, a class whose forward was replaced does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakSet

from torch import nn

from medddpm.errors import BadArgument
from medddpm.fast.forward import Forward
from medddpm.fast.hooks import modules_of

NETWORKS = (
    "medddpm.unet",
    # MONAI 1.5 and 1.6.
    "monai.networks.nets.attentionunet",
    "monai.networks.nets.autoencoder",
    "monai.networks.nets.autoencoderkl",
    "monai.networks.nets.basic_unet",
    "monai.networks.nets.basic_unetplusplus",
    "monai.networks.nets.controlnet",
    "monai.networks.nets.densenet",
    "monai.networks.nets.diffusion_model_unet",
    "monai.networks.nets.dynunet",
    "monai.networks.nets.flexible_unet",
    "monai.networks.nets.highresnet",
    "monai.networks.nets.mednext",
    "monai.networks.nets.patchgan_discriminator",
    "monai.networks.nets.regunet",
    "monai.networks.nets.resnet",
    "monai.networks.nets.segresnet",
    "monai.networks.nets.segresnet_ds",
    "monai.networks.nets.swin_unetr",
    "monai.networks.nets.unet",
    "monai.networks.nets.unetr",
    "monai.networks.nets.vit",
    "monai.networks.nets.vitautoenc",
    "monai.networks.nets.vnet",
    "monai.networks.nets.voxelmorph",
    "monai.apps.generation.maisi.networks",
    # nnU-Net 2.6 to 2.8, whose networks are those of dynamic-network-architectures 0.4.
    "dynamic_network_architectures.architectures",
    # torchvision 0.28.
    "torchvision.models.video",
)
"""Files, or folders of files, of whole networks: one gets its graphs inside a class of a reader's own, too."""

PARTS = (
    "torch.nn",
    "monai.networks.blocks",
    "monai.networks.layers",
    "dynamic_network_architectures.building_blocks",
    "torchvision.models.swin_transformer",
    "torchvision.ops",
    "einops.layers.torch",
)
"""Files, or folders of files, of what networks are made of."""

PACKAGES = ("medddpm", "torch", "monai", "dynamic_network_architectures", "torchvision")
"""Whose functions a module may hold."""

Known = TypeVar("Known", bound=Callable[..., Any])

_registered: WeakSet[FunctionType] = WeakSet()
METHODS = (FunctionType, property, cached_property, staticmethod, classmethod)
CALLED = frozenset({"__call__", "_call_impl", "__getattr__", "__getattribute__"})
"""Methods of every module that run around a part's forward, or as it reads an attribute."""

NO_METHODS = (
    frozenset(dir(object)) | {"__module__", "__annotations__", "__firstlineno__", "__static_attributes__"}
) - CALLED
"""What a class may have anew and still compute as its parent: how it is made, described and kept."""


def register(known: Known) -> Known:
    """Has `accelerate` capture CUDA graphs of a class of the reader's own by itself, as of MONAI's networks.

    The class's methods, and what they call, must read nothing but inputs, parameters, buffers and plain attributes
    (numbers, texts and containers of them). Usable as a decorator.

    Args:
        known: the class; its forward counts, also in subclasses that keep it, and so do the methods that it overrides
            of a known network. Or a function that replaces a method on one network: `model.sampling = register(mean)`.

    Returns:
        `known`.

    Raises:
        BadArgument: it is neither.

    >>> import torch
    >>> @register
    ... class Twice(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv = nn.Conv3d(1, 1, 3, padding=1)
    ...     def forward(self, x):
    ...         return self.conv(self.conv(x))
    >>> is_known(Twice())
    True
    """
    above = (base for base in getattr(known, "__mro__", ()) if base is not nn.Module)
    home = next((base for base in above if "forward" in vars(base)), None)
    function = _function(vars(home)["forward"] if home else known)
    if function is None:
        problem = f"{getattr(known, '__name__', type(known).__name__)} is no function, and no class with a forward"
        raise BadArgument("known", problem, "give one of these")
    _registered.add(function)
    if isinstance(known, type):
        _registered.update(filter(None, map(_function, vars(known).values())))
    return known


def unknown_in(network: nn.Module) -> str:
    """Names the first module of a network whose forward is not known; empty if there is none."""
    odd = next((module for module in modules_of(network) if not is_known(module)), None)
    if odd is None:
        return ""
    name = next((name for name, module in network.named_modules() if module is odd), "")
    return f"{name} ({type(odd).__name__})" if name else type(odd).__name__


def known_networks(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost networks inside a model of which every module is known."""
    for child in model.children():
        if _is_network(child) and not unknown_in(child):
            yield child
        else:
            yield from known_networks(child)


def is_known(module: nn.Module) -> bool:
    """Returns whether the module's forward, of its class and of this object, is one of the table or registered."""
    kind, attributes = type(module), module.__dict__
    home = _home(kind)
    if not _is_listed(home, NETWORKS + PARTS) or not isinstance(attributes.get("forward"), Forward | None):
        return False
    methods = {name for name, value in _members(home) if isinstance(value, METHODS)} | CALLED
    above = (base for base in kind.__mro__[: kind.__mro__.index(home)] if not _is_at(base.__module__, NETWORKS + PARTS))
    overrides = [vars(base)[name] for base in above for name in methods & vars(base).keys() - NO_METHODS]
    replaced = [attributes[name] for name in methods & attributes.keys() - {"forward", "_call_impl", "__getstate__"}]
    if any(_function(value) not in _registered for value in overrides + replaced):
        return False
    return all(map(_is_innocent, attributes.values()))  # functions that it holds may read anything


def _home(kind: type) -> type:
    """Returns the class that a module's forward is written in."""
    return next(base for base in kind.__mro__ if "forward" in vars(base))


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        if base not in (nn.Module, object):
            yield from vars(base).items()


def _function(value: object) -> FunctionType | None:
    """Returns the function of a method or property; None of anything else."""
    function: object = getattr(value, "__func__", value)
    if isinstance(value, property):
        function = value.fget
    elif isinstance(value, cached_property):
        function = value.func
    return function if isinstance(function, FunctionType) else None


def _is_listed(home: type, places: tuple[str, ...]) -> bool:
    forward = vars(home)["forward"]
    if _function(forward) in _registered:
        return True
    file = getattr(forward, "__module__", None) or ""
    return file == home.__module__ and _is_at(file, places)


def _is_network(module: nn.Module) -> bool:
    return _is_listed(_home(type(module)), NETWORKS)


def _is_at(file: str, places: tuple[str, ...]) -> bool:
    return any(file == place or file.startswith(f"{place}.") for place in places)


def _is_innocent(value: object) -> bool:
    """Returns whether a module's attribute is no function of the reader's."""
    function = _function(value)
    if function is None or function in _registered:
        return True
    return _is_at(function.__module__ or "", PACKAGES)
