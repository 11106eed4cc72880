"""The hooks of modules and parameters, which a stand-in or a graph in their place would not call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torchs
from torch.nn.parallel import DistributedDataParallel

from medddpm.errors import BadInput
from medddpm.fast.functions import is_known

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def hook_tables(module: nn.Module) -> list[dict[int, Any] | None]:
    """The tables that a module's hooks are in, by the numbers of their handles."""
    attributes = module.__dict__
    return [attributes.get(name) for name in HOOKS]


def tables_of(parameter: Tensor) -> list[dict[int, Any] | None]:
    """The tables that a parameter's hooks are in, by the numbers of their handles."""
    return [parameter._backward_hooks, parameter._post_accumulate_grad_hooks]


def hooks_for_all() -> bool:
    """Returns whether there are hooks for all modules."""
    return bool(torchs._has_any_global_hook())


def has_users_hooks(module: nn.Module) -> bool:
    """Returns whether the module has hooks that PyTorch did not write; PyTorch's, as of pruning, take any tensors."""
    tables = hook_tables(module)
    if hooks_for_all():
        tables += [getattr(torchs, f"_global{name}") for name in HOOKS]
    hooks = [hook for table in tables if table for hook in table.values()]
    functions = [getattr(hook, "func", hook) for hook in hooks]  # of partials
    return any(not is_known(getattr(f, "__module__", None) or type(f).__module__) for f in functions)


def hooks_within(network: nn.Module) -> str:
    """Says that a part of the network has hooks, or that all modules have; empty if neither.

    The network's own hooks run around its forward, and so around a graph.
    """
    if hooks_for_all():
        return "hooks for all modules are set"
    for part in modules_of(network):
        if part is not network and any(hook_tables(part)):
            names = (name for name, module in network.named_modules() if module is part)
            return f"{next(names, 'a module')} has hooks"
    return ""


def still(why: str, network: nn.Module) -> str:
    """Returns an earlier reason against a graph; empty if the reason was hooks and they are gone."""
    return "" if why.endswith(("has hooks", "are set")) and not hooks_within(network) else why


def check_network(model: object) -> None:
    """Raises BadInput for what is no network."""
    if not isinstance(model, nn.Module):
        raise BadInput("model", f"{type(model).__name__} is no torch.nn.Module", "pass the network itself")


def in_ddp(network: nn.Module) -> bool:
    """Returns whether a DistributedDataParallel holds the model or a part; a graph would skip its sum of gradients."""
    return any(isinstance(module, DistributedDataParallel) for module in network.modules())


def modules_of(network: nn.Module) -> Iterator[nn.Module]:
    """Every module once, in a third of the time of `modules()`."""
    stack, seen = [network], {network}
    while stack:
        module = stack.pop()
        yield module
        inner = [m for m in module.__dict__["_modules"].values() if m is not None and m not in seen]
        stack += inner
        seen.update(inner)
