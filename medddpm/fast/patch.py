"""`accelerate(model)`: the fast path for any 3-D network, ours or not, by one mechanism that `restore` undoes.

Modules get a stand-in for their forward as an instance attribute (`fast.forward.Forward`); their class, parameters,
names and state dict are untouched. `RULES` maps exact class paths to rules, so a package whose networks are not used
need not be installed. A rule takes the module and the features that are on, and returns the stand-in, or None to leave
the module alone; a class without a rule is left alone too, but for subclasses that change nothing of PyTorch's own
layer, which take that layer's. Outer modules come first, and the modules that a stand-in lists as `handled` get none of
their own. The root's stand-in is `fast.root.Root`, around the one its own rule gave: it brings inputs into the layout,
casts weights and sets autocast around the whole forward.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Collection

import torch
from torch import nn

from medddpm.errors import BadInput
from medddpm.fast import layers, norm_chains, reports
from medddpm.fast.as_contiguous import sees_layout
from medddpm.fast.forward import Forward, Rule, hooked, replaced_in_class
from medddpm.fast.hooks import check_network, in_ddp
from medddpm.fast.kernels import cards, dispatch
from medddpm.fast.known import NO_METHODS, known_networks, unknown_in
from medddpm.fast.networks import mednext, monai, monai_blocks, nnunet, unet
from medddpm.fast.placing import Acceleration, is_stray, put, remove, remove_strays
from medddpm.fast.replay.graphs import ASKED, Graphs
from medddpm.fast.root import Root, held_back, root_of, sound

PRECISIONS = ("bf16", "tf32")
GRAPH = (True, False, "auto")
FEATURES = ("norm", "upsample", "residual", "few_channels", "attention", "casts", "hopper")
"""In this order: norms computed with their neighbours; resampling; residual sums without concatenation; convolutions
of few channels; scaled-dot-product attention; all weights cast at once; Hopper's kernels for the other convolutions."""

RULES: dict[str, Rule] = {
    **layers.RULES,
    **norm_chains.RULES,
    **monai.RULES,
    **monai_blocks.RULES,
    **mednext.RULES,
    **nnunet.RULES,
    **unet.RULES,
}
"""Rules by class path: `type(module).__module__ + "." + type(module).__qualname__`."""

PLAIN = (Forward, layers.Dropout, norm_chains.InstanceNorm)
"""Stand-ins under which PyTorch's own function computes the layer: it counts as left alone."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Where they hold nothing there is no layer that could be left alone."""


CONVOLUTIONS = ((nn.Conv1d, nn.ConvTranspose1d), (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d))


def accelerate(
    model: nn.Module,
    precision: str = "bf16",
    only: Collection[str] | None = None,
    graph: bool | str = "auto",
    verify: bool = True,
    report: Callable[[str], object] | None = reports.report,
) -> nn.Module:
    """Puts a 3-D network on the fast path, in place.

    Outputs and gradients equal the network's own within the precision's tolerance; a layer without a rule runs as it
    does under autocast. PyTorch's functions replace the kernels without Triton, and on a CPU, there in the network's
    own precision; the report says so. On a card of compute capability below 8.0 the model is left as it is, with a
    warning. The model stays trainable, can be pickled and copied, and can be called in parts. Accelerating it again
    replaces the former setting. On a GPU `torch.autograd.grad` cannot take `is_grads_batched=True` through the kernels;
    within `torch.func` and `torch.fx` the network computes as it did before, and so does what `torch.jit` makes of it,
    or `torch.onnx.export`.
    A shallow copy (`copy.copy`) of the network or of a layer is not accelerated itself; the parts that it shares
    with the original are. What `model.compile()` has compiled in place, before or after, is compiled anew with the
    fast path when it is called next. Over an accelerated network give `torch.compile` the mode "reduce-overhead": in
    its default mode there are no graphs, and each kernel waits for the host.

    Args:
        model: any network; its parameters stay as they are, in memory too, and an optimizer may hold them already.
            Channels-last parameters (`model.to(memory_format=torch.channels_last_3d)`) save a little of each step.
        precision: "bf16": products in BF16 from float32 weights, which stay float32 as do their gradients, statistics
            and the outputs. "tf32": float32 tensors; PyTorch's flags decide whether products round to TF32, and
            `switches.OPT1` sets them.
        only: the features to use, of `medddpm.fast.patch.FEATURES`, or the name of one; None uses all.
        graph: "auto": on a CUDA device, the third call with inputs of one shape captures the forward and the backward
            pass as CUDA graphs, which this and later calls replay; at most eight shapes have graphs. It does so of
            networks whose forward is known to read nothing but inputs, parameters and attributes (`medddpm.fast.known`:
            MONAI's, nnU-Net's, torchvision's, ours, and those given to `register`), also where they stand in a class of
            the caller's. True: of any network, on the caller's word that its forward reads nothing else; whatever is in
            the way of a graph is an error. False: no graphs. Where a graph is not safe the network runs without, and
            `print(model.acceleration)` says why. If one shape cannot be captured, the others keep their graphs; if a
            capture finds no memory, all graphs are freed. Graphs keep their memory between calls. A gradient's memory
            serves again once nothing holds it; before you let it go, wait for a stream of yours that reads it, as
            `record_stream` does not keep it.
        verify: whether graphs that rest on the caller's word are compared, at replays 10, 100 and 1 000, with what the
            network computes without. A difference is an error.
        report: called with the report, one string; if it raises, the model is restored. By default the report is
            logged at level INFO through the logger `medddpm`, on rank 0 only, or printed to stderr if the program has
            set up no logging. None: no report.

    Returns:
        `model`.

    Raises:
        BadInput: if a precision, feature or kind of graph does not exist; if a part of the model is accelerated by
            itself, or the model is or was part of an accelerated one; if its forward is already replaced by something
            else, as by Hugging Face's `prepare`; if it is what `torch.compile`, `torch.jit.trace` or `torch.jit.script`
            returned; if DataParallel or DistributedDataParallel holds it.
    """
    only = (only,) if isinstance(only, str) else only
    if precision not in PRECISIONS:
        raise BadInput("precision", f"{precision!r} is not known", f"use one of {', '.join(PRECISIONS)}")
    unknown = set(FEATURES if only is None else only) - set(FEATURES)
    if unknown:
        raise BadInput("only", f"no feature {', '.join(map(repr, sorted(unknown)))}", f"use {', '.join(FEATURES)}")
    if graph not in GRAPH:
        raise BadInput("graph", f"{graph!r} is not known", 'use True, False or "auto"')
    check_network(model)
    _refuse(model)
    restore(model)  # of a former setting
    old = next((parameter.device for parameter in model.parameters() if dispatch.too_old(parameter.device)), None)
    if old is not None:
        off = f"{_card(old)} is below 8.0: the model is left as it is"
        if reports.is_first():
            warnings.warn(f"accelerate: {off}", stacklevel=2)
        if not hasattr(model, "acceleration"):
            model.__dict__["acceleration"] = Acceleration(precision, (), (), (), str, off=off)
        return model
    features = tuple(f for f in FEATURES if only is None or f in only)
    try:
        done = _replace(model, precision, features, graph, verify)
        if report is not None:
            report(str(done))
    except BaseException:
        remove(model)
        raise
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes `accelerate`. Leaves any other model as it is.

    It also frees the graphs' memory, and the network's as soon as nothing holds the network. Without it both stay
    until Python's garbage collector runs, for a network and its stand-ins hold each other. A network whose forward
    another tool has wrapped since stays accelerated as a whole, with a warning: what the tool kept calls its parts.

    Args:
        model: the network, a wrapper that holds it, or a copy of a part of one.

    Returns:
        `model`.

    Raises:
        BadInput: it is no network.
    """
    check_network(model)
    for network in list(model.modules()):  # it may stand in a wrapper
        root = root_of(network)
        if root is None:
            if isinstance(network.__dict__.get("acceleration"), Acceleration):  # left as it is, on an old card
                del network.__dict__["acceleration"]
            continue
        if network.__dict__.setdefault("forward", root) is root:  # or it was deleted: the parts are to be restored yet
            remove(network)
        elif reports.is_first():
            what = f"another forward was put over that of {type(network).__name__}, which stays accelerated"
            warnings.warn(f"restore: {what}; undo that first, then call restore again", stacklevel=2)
    remove_strays(model)
    return model


def rule_of(kind: type[nn.Module]) -> Rule | None:
    """Returns the rule of a class: its own, or that of PyTorch's layer of which it changes nothing; None without one.

    Video networks have such subclasses: torchvision's `Conv3DSimple` is an nn.Conv3d with another constructor.
    """
    later: set[str] = set()
    for base in kind.__mro__:
        rule = RULES.get(f"{base.__module__}.{base.__qualname__}")
        if base is kind and rule is not None:
            return rule
        if rule is not None and base.__module__.startswith("torch.nn."):
            # An attribute of the layer that the subclass computes, as a property, is among the annotations.
            known = set(dir(base)).union(*(inspect.get_annotations(part) for part in base.__mro__))
            return None if later & known else rule
        later |= vars(base).keys() - NO_METHODS
    return None


def _refuse(model: nn.Module) -> None:
    first = "accelerate the network first, then wrap it"
    if in_ddp(model):
        raise BadInput("model", "DistributedDataParallel holds it", f"{first}, or have Hugging Face's prepare do so")
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise BadInput("model", "DataParallel holds it", first)  # which copies the parts' stand-ins as they are
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise BadInput("model", "torch.compile has it already", "accelerate the network first, then compile it")
    if isinstance(model, torch.jit.ScriptModule):
        # Accelerating first and tracing then would give the same trace, which computes as the plain network does.
        remedy = "accelerate the network that it was made from, and call that"
        raise BadInput("model", "torch.jit has traced or scripted it already", remedy)
    replaced = model.__dict__.get("forward")
    if replaced is not None and not isinstance(replaced, Forward):
        remedy = "accelerate the network first, then prepare it; or remove that forward"
        raise BadInput("model", "its forward is replaced already, as Hugging Face's prepare does", remedy)
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        part = f"its part {name}" if name else "it"
        if module is not model and isinstance(forward, Root) and not isinstance(replaced, Root):
            raise BadInput("model", f"{part} is accelerated by itself", "call restore on that first")
        if isinstance(replaced, Root) or not isinstance(forward, Forward):  # a network's own stand-ins are taken out
            continue
        if is_stray(module):
            raise BadInput("model", f"{part} was part of an accelerated network", "call restore on the model first")
        remedy = "accelerate that one only" if name else "call restore on that network first"
        raise BadInput("model", f"{part} is part of an accelerated network", remedy)


def _replace(
    model: nn.Module, precision: str, features: tuple[str, ...], graph: bool | str, verify: bool
) -> Acceleration:
    names = {module: name for name, module in reversed(list(model.named_modules()))}
    odd = unknown_in(model) if graph == "auto" else ""
    # A known network in a class of the user's is accelerated by itself, and has its graphs there.
    within = {part: _replace(part, precision, features, graph, verify) for part in known_networks(model)} if odd else {}
    stand_ins: dict[nn.Module, Forward] = {}
    handled = {module for part in within for module in part.modules()}
    for module in model.modules():
        rule = rule_of(type(module))
        if module in handled or "forward" in module.__dict__:
            continue
        free = not (held_back(module) if module is model else hooked(module))
        free = free and rule is not None and not replaced_in_class(module)
        stand_in = rule(module, frozenset(features)) if rule is not None and free else None
        if stand_in is not None and stand_in.intact:
            stand_ins[module] = stand_in
            handled.update(stand_in.handled)
        elif sees_layout(module):
            stand_ins[module] = Forward(module)

    root = Root(model, stand_ins.get(model), precision, "casts" in features)
    if graph and not within:
        why = f"the forward of {odd} is not known; {ASKED}" if odd else ""
        root.graphs = Graphs(model, root.run, strict=graph is True, checked=verify, why=why)
    replaced = [(names[m], type(m).__name__, s.what) for m, s in stand_ins.items() if s.what]
    left = [
        (name, type(module).__name__)
        for name, module in model.named_modules()
        if (module not in stand_ins or type(stand_ins[module]) in PLAIN)
        and module not in handled
        and next(module.children(), None) is None
        if not layers.idle(module) and not (type(module) in CONTAINERS and len(module) == 0)
    ]
    for part, inner in within.items():
        replaced += ((f"{names[part]}.{name}".rstrip("."), kind, what) for name, kind, what in inner.replaced)
        left += ((f"{names[part]}.{name}", kind) for name, kind in inner.left)
    for module, stand_in in stand_ins.items():
        stand_in.network = weakref.ref(model)
        put(module, stand_in)
    put(model, root)
    model.__dict__.update(__prepare_scriptable__=root.scriptable, _replicate_for_data_parallel=root.replica)
    note = functools.partial(_note, model, precision)
    flat = _flat(model, precision == "bf16", bool(graph))
    parts = tuple((names[part], inner.graphs) for part, inner in within.items() if inner.graphs is not None)
    done = Acceleration(precision, features, tuple(replaced), tuple(left), note, root.graphs, flat=flat, parts=parts)
    if root.attribute:
        model.__dict__["acceleration"] = done
    return done


def _flat(model: nn.Module, autocast: bool, graphs: bool) -> str:
    """Says that the model's convolutions are not 3-D, if it has any, and what `accelerate` does for it on a GPU."""
    ranks = {rank for rank, kinds in enumerate(CONVOLUTIONS, 1) if any(isinstance(m, kinds) for m in model.modules())}
    if not ranks or 3 in ranks:
        return ""
    has = " and ".join(["autocast to BF16"] * autocast + ["CUDA graphs where they are safe"] * graphs) or "nothing"
    return f"its convolutions are {max(ranks)}-D and the kernels are for 3-D ones: on a GPU it gets {has}"


def _note(model: nn.Module, precision: str) -> str:
    """Says why the model's device does not run the kernels, or that they are untested there; empty if neither."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    device, dtype = parameter.device, parameter.dtype
    if device.type != "cuda":
        why = f"on {device.type}"
    elif dispatch.too_old(device):
        why = f"{_card(device)} is below 8.0"
    elif not sound():
        why = "with a cuDNN whose BF16 convolutions are wrong (9.8 to 9.14)"
    elif dtype == torch.float64:
        why = "with parameters in float64"
    elif not dispatch.serves(device):
        return "; without Triton: computed by PyTorch's own functions"
    else:
        unknown = cards.untested(torch.cuda.get_device_capability(device))
        return f"; {unknown}" if unknown else ""
    expected = precision == "tf32" and dtype == torch.float32
    suffix = "" if expected else f" in {str(dtype).removeprefix('torch.')}"
    return f"; {why}: computed by PyTorch's own functions{suffix}"


def _card(device: torch.device) -> str:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"compute capability {capability} of {torch.cuda.get_device_name(device)}"
