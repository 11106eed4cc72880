"""`graphed_step`: a reader's own training step, from the forward pass to the optimizer's update, as one CUDA graph."""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.fast import reports
from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.graphs.graphed_pass import is_full, leaves
from medddpm.fast.graphs.pool import forward_ended
from medddpm.fast.hooks import check_network, hook_tables, hooks_within, in_ddp, modules_of, still, tables_of
from medddpm.fast.replay import optimizers
from medddpm.fast.replay.captured_step import Captured
from medddpm.fast.replay.checks import CHECKED, difference, without_graph
from medddpm.fast.replay.fingerprint import Fingerprint
from medddpm.fast.replay.graphs import FULL, UNCHECKED, UPDATE, Watched, flags, graphable, make_pool, replayable
from medddpm.fast.root import root_of

CHANGES = 3  # of settings that a graph has in it, each within `OFTEN` calls of the one before
OFTEN = 10
SHAPES = 16  # of batches, at most: each has a graph for every place in an accumulation
REMEDY = "keep it out of the step, or call the step's parts without graphed_step"


def graphed_step(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    example: Sequence[Any] | Tensor | dict[str, Any],
    *,
    accumulate: int = 1,
    clip_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    after: Callable[[], object] | None = None,
    others: Sequence[nn.Module] = (),
    verify: bool = True,
) -> TrainingStep:
    """Makes a whole training step one CUDA graph: call the result with a batch, and it trains.

    ::

        step = graphed_step(model, lambda model, x, y: functional.mse_loss(model(x), y), optimizer, (x, y))
        for x, y in loader:
            loss = step(x, y)
            scheduler.step()

    On a GPU the learning rate becomes a tensor in the optimizer's groups: the graph reads it, and schedulers fill it in
    place. The step is captured anew for a batch of another shape, and when the model's mode, plain attributes or
    parameters change, or the optimizer's settings or state. What `loss_fn`, `after` and the model's forward read from
    elsewhere (globals, closures, other objects) must not change: the graph has its values of then. At replays 10, 100
    and 1 000 the loss is computed without the graph, too; if the two differ by more than a hundredth, the graph ends.

    The step goes on without a graph, and says so once, if settings keep changing (three times, each within ten calls
    of the one before: OneCycleLR changes betas unless its `cycle_momentum` is False); if batches have more than 16
    shapes; if the loss differs; if the model or `loss_fn` later does what no graph repeats; or if a capture finds no
    memory, which frees all graphs. While parts of the model have hooks that were set later, it runs without a graph
    too. If batches of one later shape cannot be captured for another reason, only these run without a graph.

    A capture needs the memory of a step without graphs on top of that of the graphs already there. Afterwards all
    shapes share the memory of the one that takes most, and one set of gradients; each keeps its batch and what
    `loss_fn` returns. With `accumulate`, the sums of the gradients come on top.

    On a CPU the step runs without a graph; a batch, an optimizer or `after` that no graph repeats is refused there too,
    and an optimizer of another network's parameters. There `loss_fn` is first called with the first batch, and its
    errors come then.

    Args:
        model: any network; `accelerate` it first. Its `forward` and `loss_fn` must be what a graph can do: the same
            work at each call, no value read back to the host, no random numbers of the host, no hooks inside.
        loss_fn: `loss_fn(model, *batch)` returns the loss, a scalar, or a tuple of it and of further tensors. Autocast,
            deep supervision and noise belong here.
        optimizer: of the model's parameters. It must update without the host: it has the option `capturable`, which
            this sets, or was made with `fused=True`, as SGD must be. Its state must begin with zeros, so a new NAdam,
            Rprop, ASGD or SGD with dampening is refused. So are LBFGS, which asks for the loss again, and an optimizer
            of another package that counts its updates on the host.
        example: a batch on the model's device, in the shape of those to come: the arguments of `step` in a sequence, or
            its only argument, if that is a tensor or a dict. Nothing is learned from it. Its tensors are plain ones: of
            MONAI's `MetaTensor`, which MONAI's transforms return, give `.as_tensor()`.
        accumulate: how many calls sum their gradients for one update. For the gradients each loss is divided by it.
        clip_norm: the norm to which gradients are scaled down before an update.
        scaler: scales the loss for FP16. The optimizer must be fused, as others ask the host whether to update.
        after: called after each update, within the graph, for example to average the weights by `torch._foreach_lerp_`.
            All that it reads must exist before its first call and stay in place; it must count nothing. PyTorch's
            `AveragedModel` counts on the host: call its `update_parameters` after the step.
        others: further networks that `loss_fn` calls, as a GAN's critic or a teacher: the step is captured anew when
            their modes, settings or parameters change, and making it leaves their statistics as they are.
        verify: whether the loss is compared at replays 10, 100 and 1 000.

    Returns:
        the step: `step(*batch)` returns what `loss_fn` does, on the device, in new tensors. The parameters' `grad` then
        has the gradients, as in a loop. With graphs of several shapes this holds for the shape that was captured last;
        after a batch of another shape `grad` is None.

    Raises:
        BadInput: an argument is of no use; the step cannot be captured for the example: the message names the line or
            part that is in the way; or the model or a batch is on several devices.
    """
    if not isinstance(accumulate, int) or accumulate < 1:
        raise BadInput("accumulate", f"{accumulate} is no number of calls", "use 1 or more")
    if not callable(loss_fn):
        raise BadInput("loss_fn", f"{type(loss_fn).__name__} cannot be called", "give loss_fn(model, *batch)")
    if after is not None and not callable(after):
        raise BadInput("after", f"{type(after).__name__} cannot be called", "give a function without arguments")
    if clip_norm is not None and not _is_norm(clip_norm):
        raise BadInput("clip_norm", f"{clip_norm!r} is no norm", "use a number above 0, or None for no clipping")
    if not hasattr(optimizer, "param_groups"):  # some that are no torch.optim.Optimizer have them
        raise BadInput("optimizer", f"{type(optimizer).__name__} is no optimizer", "make it of model.parameters()")
    if not isinstance(example, Tensor | dict | Iterable):
        raise BadInput("example", f"{type(example).__name__} is no batch", "give what the step will be called with")
    check_network(model)
    if in_ddp(model):
        raise BadInput("model", "DistributedDataParallel holds it", "accelerate, wrap, and write an ordinary loop")
    if not any(hasattr(part, "acceleration") or root_of(part) is not None for part in model.modules()):
        reports.report(
            "graphed_step: the network is not accelerated; call accelerate(model) first for the fast kernels"
        )
    step = TrainingStep(model, loss_fn, optimizer, accumulate, clip_norm, scaler, after, others, verify)
    step.prepare((example,) if isinstance(example, Tensor | dict) else tuple(example))
    return step


def _is_norm(value: Any) -> bool:
    try:
        return bool(0 < value < math.inf)
    except TypeError:
        return False


def _shape(batch: tuple[Any, ...]) -> Hashable:
    try:
        return nested.shape_of(batch)
    except TypeError as error:
        remedy = "use plain tensors (of a MONAI MetaTensor, `.as_tensor()`) in tuples, lists and dicts"
        raise BadInput("batch", f"it holds a {error}", remedy) from None


def _unreached() -> BadInput:
    return BadInput("optimizer", "the loss reaches none of its parameters", "make it of model.parameters()")


class TrainingStep:
    """A training step as `graphed_step` makes it; its arguments are explained there.

    Attributes:
        calls: how often it was called; the optimizer updates at every `accumulate`-th call.
        why: what keeps it from being captured; empty if nothing does.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        accumulate: int,
        clip_norm: float | None,
        scaler: torch.amp.GradScaler | None,
        after: Callable[[], object] | None,
        others: Sequence[nn.Module] = (),
        verify: bool = True,
    ) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.accumulate, self.clip_norm, self.scaler, self.after = accumulate, clip_norm, scaler, after
        self.others, self.verify = list(others), verify
        self.calls = 0
        self.why = ""
        self._graphs: dict[tuple[Any, ...], Captured] = {}
        self._pools: dict[torch.device, Any] = {}
        self._settings: list[dict[str, Any]] = []
        self._rates: list[Tensor] = []
        self._gradients: dict[Tensor, Tensor] = {}  # of an accumulation: where the graphs sum them
        self._reached: dict[tuple[Any, ...], set[Tensor]] = {}  # of an accumulation: which of them a call brings
        self._brought: set[Tensor] = set()  # which the last backward pass brought, while a graph is made
        self._others: dict[Tensor, Tensor | None] | None = None  # while a graph is made: gradients it must not write to
        self._parts: list[object] = []
        self._strays: list[nn.Parameter] = []  # the loss's own weights, which the model does not hold
        self._barred: dict[Hashable, str] = {}  # shapes of batches that could not be captured, and why
        self._changes, self._changed_at = 0, 0
        self._made = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Returns what the optimizer updates."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def _scaling(self) -> torch.amp.GradScaler | None:
        """The scaler, unless it was made with `enabled=False`: then it lacks most of its attributes."""
        return self.scaler if self.scaler is not None and self.scaler.is_enabled() else None

    def __call__(self, *batch: Any) -> Any:
        """Trains on a batch; returns what `loss_fn` returned, its tensors the caller's own.

        Args:
            batch: in any nesting of tuples, lists and dicts; the tensors on the model's device.
        """
        place, shape = self.calls % self.accumulate, _shape(batch)
        graph = self._graph(batch, shape, place) if self._graphable(batch) else None
        if graph is None:
            out = self._work(batch, place)
        else:
            self._sum_in_place(graph.brings, place == 0)
            out = self._compared(graph, batch) if self.verify and graph.replays + 1 in CHECKED else graph(batch)
            if self.accumulate == 1:
                graph.leave_gradients(self.parameters)
        self.calls += 1
        return out

    def _compared(self, graph: Captured, batch: tuple[Any, ...]) -> Any:
        """Replays a graph, and compares its loss with that which is computed without it."""
        device = self._device(batch)
        networks = [self.model, *self.others]
        eager = without_graph(lambda: self.loss_fn(self.model, *batch), networks, device)
        out = graph(batch)
        if eager is None:
            reports.report(f"graphed_step: {UNCHECKED}")
        elif why := difference(eager[:1], nested.distinct(out)[:1]):
            self._stop(f"the loss of call {self.calls + 1} is off ({why})", ": it depends on what has changed since")
        return out

    def prepare(self, batch: tuple[Any, ...]) -> None:
        """Captures the step for batches of this shape, and leaves everything else as it is."""
        # On a CPU too: what is taken there is taken on a GPU.
        optimizers.refuse(self.optimizer, self.scaler, self.after)
        shape = _shape(batch)
        if self._graphable(batch):
            for place in {0, self.accumulate - 1}:
                self._graph(batch, shape, place)
        elif set(self.parameters).isdisjoint(self.model.parameters()):  # they may still be the loss's own weights
            with self._unchanged():
                loss = next(nested.tensors(self.loss_fn(self.model, *batch)), None)
            if loss is not None and set(self.parameters).isdisjoint(leaves([loss])):
                raise _unreached()
        self._made = True

    def _device(self, batch: tuple[Any, ...]) -> torch.device:
        tensor = next(nested.tensors(batch), None)
        return (next(self.model.parameters()) if tensor is None else tensor).device

    def _graphable(self, batch: tuple[Any, ...]) -> bool:
        given = list(nested.tensors(batch))
        if any(t.grad_fn is not None for t in given):  # on a CPU too: what is taken there is taken on a GPU
            remedy = "compute the tensor in loss_fn, or detach it"
            raise BadInput("batch", "gradients would flow through a tensor of it into that tensor's own graph", remedy)
        tables = [module._parameters for module in modules_of(self.model)]  # at each call: `parameters()` takes longer
        devices = {t.device for t in given} | {p.device for table in tables for p in table.values() if p is not None}
        if len(devices) > 1:
            raise BadInput("batch", f"it and the model are on {', '.join(sorted(map(str, devices)))}", "use one device")
        self.why = still(self.why, self.model)
        return all(map(graphable, devices)) and bool(devices) and replayable() and not self.why

    def _graph(self, batch: tuple[Any, ...], shape: Hashable, place: int) -> Captured | None:
        """The graph of a call with such a batch at this place in an accumulation, captured now if there is none.

        None if the optimizer's settings change too often for one.
        """
        device = self._device(batch)
        first, last = place == 0, place == self.accumulate - 1
        call = shape, flags(device), self.model.training, first, last, self._beside()
        self._keep_parts()
        if self._barred and call[0] in self._barred:
            return None
        self._keep_rates(device)
        settings = optimizers.settings(self.optimizer)
        if settings != self._settings:
            names = optimizers.changed(settings, self._settings)
            if self._settings and self._keep_changing(f"the optimizer's {names}"):
                return None
            self._forget()
            self._settings = settings
        key = *call, self._others_summed(call)
        known = self._graphs.get(key)
        if known is not None and not all(each.holds() for each in known.fingerprints):
            if self._keep_changing("the model's settings or parameters"):
                return None
            self._forget()
            known = None
        if known is None and len({shape for shape, *_ in self._graphs} | self._barred.keys() | {key[0]}) > SHAPES:
            self._stop(f"batches come in more than {SHAPES} shapes (a number or text in a batch is part of its shape)")
            return None
        if known is None or not known.updates(self._state(last)):
            if known is not None:
                self._forget()
            if self._made and first:
                self._free_gradients()
            try:
                with self._apart():
                    known = self._captured(batch, place, device)
            except RuntimeError as error:
                if not is_full(error):
                    raise
                known = None  # all graphs go: without one the step needs the memory that they keep
                self._bar(FULL, "use a smaller batch")
            if known is not None:
                self._reached[call] = known.brings
                self._graphs[*call, self._others_summed(call)] = known
        return known

    def _beside(self) -> tuple[Any, ...]:
        """Returns what else a graph contains: settings of clipping and scaler, hooks of model, weights, optimizer."""
        scaler = self._scaling
        scales = scaler and (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
        tables = [table for network in (self.model, *self.others) for table in hook_tables(network)]
        tables += [getattr(self.optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
        learned = [*self.parameters, *(p for network in self.others for p in network.parameters())]
        tables += [table for p in learned for table in tables_of(p)]
        # By the numbers of their handles: no two hooks of a process have the same.
        hooks = tuple(tuple(table) if table else () for table in tables)
        return self.clip_norm, scales, hooks, tuple(p.requires_grad for p in self.parameters)

    def _stop(self, why: str, more: str = "") -> None:
        """From now on there is no graph; says why."""
        self.why = why
        reports.report(f"graphed_step runs without a CUDA graph: {why}{more}")
        self._forget()
        self._pools.clear()  # whose memory is no other's while they live

    def _bar(self, why: str, remedy: str = REMEDY, shape: Hashable = None) -> None:
        """Something is in a graph's way: an error while the step is made; amid a training, it goes on without.

        If it is in the way of batches of one `shape` only, others are captured, those that were so anew.
        """
        if not self._made:
            raise BadInput("graphed_step", why, remedy) from None
        if shape is None:
            self._stop(why)
            return
        if why not in self._barred.values():
            reports.report(f"graphed_step runs without a CUDA graph for batches of one shape: {why}")
        self._barred[shape] = why
        self._forget()  # of these none keeps the gradients any more

    def _forget(self) -> None:
        self._graphs.clear()
        self._gradients.clear()
        self._reached.clear()

    def _free_gradients(self) -> None:
        """Frees the last call's gradients, which the call to come drops: a new graph's are as large as those.

        From then on only that graph leaves the parameters their gradients.
        """
        for graph in self._graphs.values():
            graph.gradients = []
        for p in self.parameters:
            p.grad = None

    def _keep_changing(self, what: str) -> bool:
        """Counts changes of what a graph has in it; after some in close succession there is none any more."""
        self._changes = self._changes + 1 if self.calls - self._changed_at < OFTEN else 1
        self._changed_at = self.calls
        if self._changes < CHANGES:
            return False
        self._stop(f"{what} keep changing", "; only the learning rate may")
        return True

    def _others_summed(self, call: tuple[Any, ...]) -> tuple[int, ...]:
        """The parameters with a gradient of this accumulation that such a call does not bring: it updates them too."""
        first, last = call[3:5]
        if first or not last:
            return ()
        brings = self._reached.get(call, ())
        return tuple(at for at, p in enumerate(self.parameters) if p.grad is not None and p not in brings)

    def _sum_in_place(self, brings: set[Tensor], first: bool) -> None:
        """Has gradients where the graphs sum them: what is summed so far, and zeros for those that a call `brings`.

        Other parameters have none, and are not updated. The `first` call of an accumulation zeroes them itself.
        """
        fresh = []
        for p, held in self._gradients.items():
            if first:
                p.grad = held if p in brings else None
            elif p.grad is None and p in brings:
                fresh.append(held)
                p.grad = held
            elif p.grad is not None and p.grad is not held:
                held.copy_(p.grad)
                p.grad = held
        if fresh:
            torch._foreach_zero_(fresh)

    def _keep_parts(self) -> None:
        """Begins anew where the user has given the step another part since."""
        parts: list[object] = [self.model, *self.others, self.loss_fn, self.after]
        parts += [self.optimizer, self.scaler, self.accumulate]
        if len(parts) != len(self._parts) or any(map(operator.is_not, parts, self._parts)):
            self._forget()
            self._parts, self._rates, self._settings, self._barred = parts, [], [], {}

    def _keep_rates(self, device: torch.device) -> None:
        """Makes each group's learning rate a tensor, the same one from then on, with the rate as it is now."""
        groups = self.optimizer.param_groups
        if len(self._rates) != len(groups):
            self._rates = []
            for group in groups:
                self._rates.append(optimizers.rate(group["lr"], device, self._rates))
        for group, rate in zip(groups, self._rates, strict=True):
            if group["lr"] is not rate:  # a number, which the user has set, or a schedule that knows no tensors
                rate.fill_(float(group["lr"]))
                group["lr"] = rate

    def _captured(self, batch: tuple[Any, ...], place: int, device: torch.device) -> Captured | None:
        optimizers.refuse(self.optimizer, self.scaler, self.after)
        if hooks := hooks_within(self.model):
            self._bar(hooks)
            return None
        for group in self.optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        for p in self.parameters:
            state = self.optimizer.state.get(p, {})
            if isinstance(state.get("step"), Tensor):  # on the host before, and in a checkpoint
                state["step"] = state["step"].to(p.device)
        self._settings = optimizers.settings(self.optimizer)
        pool = self._pools.get(device) or self._pools.setdefault(device, make_pool(device))
        inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in nested.distinct(batch)]
        static = nested.filled(batch, inputs)
        watched = Watched(whole=True)
        with self._unchanged(), warnings.catch_warnings(), pool.on_stream(), cuda_graphs.off():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable")  # it is not captured yet
            for _ in range(2):
                numbers = optimizers.numbers(self.optimizer)
                watched(lambda given: self._work(given, place), static, self.model, device)
                if watched.why:
                    if watched.why.startswith(UPDATE):
                        raise optimizers.waits(self.optimizer)
                    break
            counted = numbers != optimizers.numbers(self.optimizer)
        if watched.why:
            self._bar(watched.why)
            return None
        if counted:
            self._bar("the optimizer counts on the host, which no graph repeats", optimizers.FITTING)
            return None
        held = set(self.model.parameters())
        self._strays = [p for p in self.parameters if p not in held]
        fingerprints = [Fingerprint(network) for network in (self.model, *self.others)]
        if why := next((each.why for each in fingerprints if each.why), ""):
            self._bar(why)
            return None
        brings = self._brought
        if not brings and not self._made:
            raise _unreached()
        summed = [p for p in self.parameters if p in brings or p.grad is not None] if self.accumulate > 1 else []
        if new := [p for p in summed if p not in self._gradients]:
            self._gradients |= {p: torch.zeros_like(p) for p in new}
            self._graphs.clear()  # what was captured before does not begin with these
        self._sum_in_place(brings, place == 0)
        try:
            with cuda_graphs.off():
                outputs, replay = pool.capture(lambda: self._work(static, place))
        except RuntimeError as error:
            if is_full(error):
                raise
            remedy = f"{REMEDY}; if the loss of a former step is alive, delete it"  # it holds the stream it was made on
            line = str(error).partition("\n")[0]
            self._bar(f"it cannot be captured ({line})", remedy, nested.shape_of(batch))
            return None
        gradients = [p.grad for p in self.parameters] if self.accumulate == 1 else []
        places: dict[Tensor, Any] = {t: at for at, t in enumerate(inputs)}
        others = [(places.get(t, t), t.grad) for t in self._others or () if t.grad is not None]
        state = self._state(place == self.accumulate - 1)
        return Captured(inputs, outputs, replay, pool, fingerprints, state, gradients, others, brings)

    def _work(self, batch: tuple[Any, ...], place: int) -> Any:
        """One call: forward and backward pass, and behind the last of an accumulation the update."""
        if place == 0:
            self.optimizer.zero_grad(set_to_none=True)  # what then gets no gradient is not updated
            if self._others is not None and self._gradients:
                torch._foreach_zero_(list(self._gradients.values()))
                self._sum_in_place(self._brought, first=True)
        out = self.loss_fn(self.model, *batch)
        loss = next(nested.tensors(out), None)
        if loss is None:
            what = "it returns no tensor" if out is None else f"it returns no tensor, but {type(out).__name__}"
            raise BadInput("loss_fn", what, "return the loss itself, and read its value after the step")
        if loss.numel() != 1:
            what = f"its loss has the shape {tuple(loss.shape)}"
            raise BadInput("loss_fn", what, "return a scalar, such as its mean")
        loss = loss / self.accumulate
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        forward_ended()  # the loss's too, or that of a model which is not accelerated
        if self._others is None:
            loss.backward()
        else:
            self._watched_backward(loss, self._others)
        if place == self.accumulate - 1:
            self._update()
        return nested.mapped(out, Tensor.detach)

    def _update(self) -> None:
        if self.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.after is not None:
            self.after()

    def _watched_backward(self, loss: Tensor, others: dict[Tensor, Tensor | None]) -> None:
        """Notes which of the optimizer's parameters it brings gradients to, and those of others in `others`."""
        updated = set(self.parameters)
        reached = list(leaves([loss]))
        for t in reached:
            if t not in updated:
                others.setdefault(t, t.grad)
                t.grad = None
        versions = {p: None if p.grad is None else p.grad._version for p in reached if p in updated}
        loss.backward()
        self._brought = {p for p, v in versions.items() if p.grad is not None and p.grad._version != v}

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Inside, gradients of what is not the optimizer's, as of a GAN's other network, come in tensors of their own.

        A graph that summed them where they are would do so when that memory is another tensor's.
        """
        self._others = {}
        try:
            with optimizers.gradients_restored(self.parameters):
                yield
        finally:
            for t, gradient in self._others.items():
                t.grad = gradient
            self._others = None
            if self._scaling is not None:  # a capture that failed may have unscaled gradients, and not updated
                self._scaling._per_optimizer_states.pop(id(self.optimizer), None)

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """On leaving, restores weights, buffers, moments, gradients, the scale and generators; `after` is not called.

        New moments become zero.
        """
        tensors = self._tensors()
        modules = [module for network in (self.model, *self.others) for module in network.modules()]
        tables = [(module._buffers, module._buffers.copy()) for module in modules]
        # On the host: on a GPU they would raise the peak by weights and moments, for the length of a warm-up.
        before = {id(t): t.detach().to("cpu", copy=True) for t in tensors}
        scale = None if self.scaler is None else self.scaler.state_dict()
        after, self.after = self.after, None
        devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
        try:
            with (
                torch.random.fork_rng(devices),
                optimizers.gradients_restored(self.parameters),
                optimizers.numbers_restored(self.optimizer),
            ):
                yield
        finally:
            self.after = after
            for table, held in tables:
                table.update(held)  # a forward may put others in their place
            if self.scaler is not None and scale is not None:
                self.scaler.load_state_dict(scale)
            with torch.no_grad():
                for t in self._tensors():
                    if id(t) in before:
                        t.copy_(before[id(t)])
                    else:
                        t.zero_()

    def _moments(self) -> list[Tensor]:
        """The tensors of the optimizer's state."""
        state = self.optimizer.state
        return [v for p in self.parameters for v in state.get(p, {}).values() if isinstance(v, Tensor)]

    def _state(self, updates: bool) -> list[Tensor]:
        """Returns what of optimizer and scaler is in a graph of a call; one that does not update reads the scale."""
        scaler = self._scaling
        scale = [] if scaler is None else [t for t in (scaler._scale, scaler._growth_tracker) if t is not None]
        return [*scale, *self._strays, *(self._moments() if updates else [])]

    def _tensors(self) -> list[Tensor]:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        buffers = [t for network in (self.model, *self.others) for t in network.buffers()]
        return [*self.parameters, *self.model.parameters(), *buffers, *self._moments(), *gradients]
