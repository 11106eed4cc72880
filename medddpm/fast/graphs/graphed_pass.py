"""A function's forward and backward pass, captured as two CUDA graphs and replayed as one operation of autograd.

PyTorch's `torch.cuda.make_graphed_callables` does the same for one function in one order of calls. Here a replay hands
out copies, so that outputs and gradients may be kept; a backward pass that the graph does not fit (a second one, or of
other outputs) is computed by running the function again; and passes that share memory know of each other (`Pool`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from medddpm.fast.graphs import nested

SHORT = ("out of memory", "ALLOC_FAILED")
ACCUMULATES: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a parameter of "
    "the network, between its forward pass and this backward pass"
)
unwrapped: Callable[[Tensor], Tensor] = torch._C._functorch.unwrap_if_dead
VERSION = operator.attrgetter("_version")  # quicker than `nested.version`; what learns was not made in inference


class GraphedPass:
    """`function` for inputs of one shape, as graphs.

    Args:
        function: takes `value`'s kind of arguments; what it computes depends on their tensors, on `network` and on what
            stays the same, and on nothing else. It returns tensors in any nesting.
        value: example arguments; the tensors on the pool's device.
        network: whose parameters gradients are wanted of, and whose buffers may be changed in place.
        used: which of the outputs' distinct tensors a backward pass brings gradients for; empty: there is no backward
            pass. One that comes twice among the outputs comes twice from a replay too.
        pool: shared with other passes of which at most one is between forward and backward.
        draws: whether it draws from the device's generator.

    Attributes:
        unchanged: tells whether `function` still computes what it did, in the modes of then: the caller may set it.

    Raises:
        RuntimeError: it cannot be captured, or there is no memory for it: see `is_full`.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        value: Any,
        network: nn.Module,
        used: frozenset[int],
        pool: Any,
        draws: bool = False,
    ) -> None:
        self.function, self.used, self.pool, self.draws = function, used, pool, draws
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.buffers = list(network.buffers())
        self.modes = [(module, module.training) for module in network.modules()]
        kind = pool.device.type
        self.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self.unchanged: Callable[[], bool] = lambda: True
        self.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in nested.distinct(value)]
        self.value = nested.filled(value, self.inputs)
        # A loss of an earlier step that is still alive ties the parameters' gradients to the stream of that step, which
        # a capture must not touch. Their stand-ins have no such past.
        aliases = {id(p): nn.Parameter(p.detach()) for p in self.parameters if used}
        wanted = [t for t in self.inputs if t.requires_grad and used]
        self.needed = [*wanted, *aliases.values()]
        graph_of: list[Tensor] = []

        def forward() -> Any:
            with torch.set_grad_enabled(bool(used)), swapped(network, aliases):
                out = function(self.value)
            graph_of[:] = nested.distinct(out)
            return nested.mapped(out, nested.once(Tensor.detach))

        versions = [nested.version(t) for t in self.buffers]
        self.outputs, self._forward = pool.capture(forward)
        statistics = {  # of a norm in training nothing reads them
            id(t) for m in network.modules() if isinstance(m, _NormBase) and m.training for t in m.buffers(False)
        }
        changed = (t for t, v in zip(self.buffers, versions, strict=True) if nested.version(t) != v)
        self.changed = [t for t in changed if id(t) not in statistics]
        if not {id(t) for t in leaves(graph_of)} <= {id(t) for t in self.needed}:
            raise RuntimeError("its forward reads a parameter that none of its modules holds")
        self.learns = [t.requires_grad for t in graph_of]
        gradients: list[Tensor | None] = []
        if used:
            self.given = [torch.empty_like(graph_of[at]) for at in sorted(used)]

            def backward() -> list[Tensor | None]:
                # What forward left is freed as it is used, and its memory serves the rest of the backward pass.
                chosen = [graph_of[at] for at in sorted(used)]
                with swapped(network, aliases):  # what a checkpoint computes again reads them too
                    return list(torch.autograd.grad(chosen, self.needed, self.given, allow_unused=True))

            gradients, self._backward = pool.capture(backward)
        self.of_inputs, of_parameters = gradients[: len(wanted)], gradients[len(wanted) :]
        self.brings = [t is not None for t in of_parameters]
        self.of_parameters = [t for t in of_parameters if t is not None]
        graph_of.clear()

    def __call__(self, value: Any) -> Any:
        """The function of arguments in the example's shapes, which may require gradients where the example did."""
        given = list(map(unwrapped, nested.distinct(value)))
        outputs = APPLY(self, *given, *self.parameters) if self.used else self._replayed(given)
        return nested.filled(self.outputs, outputs)

    def _replayed(self, given: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            self.pool.replay(self._forward, self.inputs, given)
            return [t.clone() for t in nested.distinct(self.outputs)]

    def _gradients(self, given: Sequence[Tensor]) -> list[Tensor | None]:
        self.pool.replay(self._backward, self.given, given)
        each = iter(self.pool.copies(self.of_parameters, self, self.pool.last))
        of_inputs = (None if t is None else t.clone() for t in self.of_inputs)
        return [*of_inputs, *(next(each) if brings else None for brings in self.brings)]

    def _computed(
        self,
        inputs: Sequence[Tensor],
        wanted: Sequence[bool],
        gradients: Sequence[Tensor | None],
        before: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """The gradients of what is `wanted`, by running the function again, as it ran.

        Buffers that the first run changed are as they were `before` it, and keep what it left. Where these gradients
        are to be differentiated, they can be.
        """
        again = torch.is_grad_enabled()
        if not again:
            inputs = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
        left = [t.clone() for t in self.buffers]
        with torch.enable_grad(), self._as_it_was():
            if not self.unchanged():
                raise RuntimeError(
                    "a setting of the network has changed between its forward pass and this backward pass, which "
                    "computes the forward pass again: it is a second one, or of other outputs than before"
                )
            try:
                for buffer, was in zip(self.changed, before, strict=True):
                    buffer.data.copy_(was)
                out = nested.distinct(self.function(nested.filled(self.value, inputs)))
            finally:
                for buffer, value in zip(self.buffers, left, strict=True):
                    buffer.data.copy_(value)  # a graph that holds it is as it was
        pairs = [(t, g) for t, g in zip(out, gradients, strict=True) if g is not None and t.requires_grad]
        now = [*inputs, *self.parameters]
        places = [at for at, (t, want) in enumerate(zip(now, wanted, strict=True)) if want and t.requires_grad]
        if not pairs or not places:  # all of it has been frozen since
            return [None] * len(now)
        outputs, directions = zip(*pairs, strict=True)
        sought = [now[at] for at in places]
        gradients_of_sought = torch.autograd.grad(outputs, sought, directions, create_graph=again, allow_unused=True)
        by_place = dict(zip(places, gradients_of_sought, strict=True))
        return [by_place.get(at) for at in range(len(now))]

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Inside, modules are in the mode of the forward pass, and autocast is as it was there."""
        modes = [(module, module.training) for module, _ in self.modes]
        kind, dtype, on = self.autocast
        try:
            for module, training in self.modes:
                module.training = training
            with torch.autocast(kind, dtype, on):
                yield
        finally:
            for module, training in modes:
                module.training = training


class _Replay(torch.autograd.Function):
    """A replayed forward pass, and its backward pass."""

    @staticmethod
    def forward(ctx: Any, graphed: GraphedPass, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.graphed, ctx.turn = graphed, graphed.pool.begin()
        ctx.generator_place = generator_place(graphed.pool.device) if graphed.draws else None
        ctx.before = [t.detach().clone() for t in graphed.changed]
        ctx.versions = list(map(VERSION, graphed.parameters))
        outputs = graphed._replayed(tensors[: len(graphed.inputs)])
        ctx.save_for_backward(*tensors[: len(graphed.inputs)])  # which notes their versions, as is done of parameters
        ctx.mark_non_differentiable(*(t for t, learns in zip(outputs, graphed.learns, strict=True) if not learns))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        graphed: GraphedPass = ctx.graphed
        wanted = ctx.needs_input_grad[1:]
        came = frozenset(at for at, g in enumerate(gradients) if g is not None)
        if not came:
            return (None,) * (1 + len(wanted))
        differentiable = torch.is_grad_enabled()  # with `create_graph`
        same = ctx.versions == list(map(VERSION, graphed.parameters))
        if same and not differentiable and graphed.pool.end(ctx.turn) and came == graphed.used:
            # A buffer for batches may have the next one by now: this pass reads what the forward pass left.
            each = iter(graphed._gradients([g for g in gradients if g is not None]))
            return (None, *(next(each) if want else None for want in wanted))
        inputs = ctx.saved_tensors
        if not same:
            raise RuntimeError(CHANGED)
        with generator_at(graphed.pool.device, ctx.generator_place):
            return (None, *graphed._computed(inputs, wanted, gradients, ctx.before))


# What `_Replay.apply` calls, after it has looked in Python for what `vmap` left of each parameter, too.
APPLY: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _Replay).apply


@contextlib.contextmanager
def swapped(network: nn.Module, others: Mapping[int, nn.Parameter]) -> Iterator[None]:
    """Inside, the network's modules hold other parameters, by the `id` of their own."""
    tables = [(module._parameters, module._parameters.copy()) for module in network.modules()]
    try:
        for table, parameters in tables:
            table.update({name: others[id(p)] for name, p in parameters.items() if id(p) in others})
        yield
    finally:
        for table, parameters in tables:
            table.update(parameters)


def is_full(error: RuntimeError) -> bool:
    """Returns whether the error means that memory is short; CUDA's graphs and libraries say so in words alone."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SHORT)


def leaves(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yields the leaves to which a backward pass from `tensors` would bring gradients."""
    stack: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(node, ACCUMULATES):  # a user's own function may have a `variable`, too
            yield node.variable
        new = {above for above, _ in node.next_functions if above is not None} - seen
        seen |= new
        stack += new


def generator_place(device: torch.device) -> tuple[int, int] | None:
    """Returns the seed and the offset of the device's generator; None on a CPU."""
    if device.type != "cuda":
        return None
    generator = torch.cuda.default_generators[device.index or 0]
    return generator.initial_seed(), generator.get_offset()


@contextlib.contextmanager
def generator_at(device: torch.device, place: tuple[int, int] | None) -> Iterator[None]:
    """Inside, the device's generator draws from there again; None leaves it alone."""
    if place is None:
        yield
        return
    generator = torch.cuda.default_generators[device.index or 0]
    before = generator.initial_seed(), generator.get_offset()

    def stand(at: tuple[int, int]) -> None:
        generator.manual_seed(at[0])
        generator.set_offset(at[1])

    stand(place)
    try:
        yield
    finally:
        stand(before)
