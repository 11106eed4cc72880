"""A reader's own step: a file with `def build(): return model, loss_fn, batch`, loaded as `python FILE` would be.

The three are what `medddpm.graphed_step` takes, in its order: a network; `loss_fn(model, *batch)`, which returns the
loss, a scalar, or a tuple of the loss and further tensors; and a batch, the arguments after the network in a sequence,
or the only one, if that is a tensor or a dict.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medddpm.errors import BadInput, first_line
from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.graphs.graphed_pass import leaves
from medddpm.measure.store import digest

BUILD = "build"
RETURN = "end it with: return model, loss_fn, batch"
SEED = 0


@dataclass(frozen=True)
class StepFile:
    """The file and the function in it that builds the step.

    Args:
        path: as the reader gave it.
        function: its name.
    """

    path: Path
    function: str = BUILD

    def __str__(self) -> str:
        return str(self.path) if self.function == BUILD else f"{self.path}:{self.function}"

    def identity(self) -> dict[str, str]:
        """Returns what tells the rows of this step from another's: the file's name and content, and the function."""
        return {"file": self.path.name, "sha256": digest(self.path), "function": self.function}

    def imports(self) -> dict[str, str]:
        """Returns the SHA-256 of each module in the file's folder that this process has imported, by its path there."""
        file, folder = self.path.resolve(), self.path.resolve().parent
        names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        paths = {Path(name) for name in names if name}
        theirs = (path for path in sorted(paths) if path.is_relative_to(folder) and path != file)
        return {
            path.relative_to(folder).as_posix(): digest(path)
            for path in theirs
            if path.suffix == ".py" and "site-packages" not in path.parts
        }

    def changed(self, imports: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the modules among pairs of earlier `imports` that have another content now, or are gone."""
        folder = self.path.resolve().parent
        return [name for name, sum_ in imports if not (folder / name).is_file() or digest(folder / name) != sum_]


def step_file(text: str) -> StepFile:
    """Reads FILE or FILE:FUNCTION.

    Raises:
        BadInput: there is no such file, or it is no Python.
    """
    path, function = Path(text), BUILD
    head, colon, tail = text.rpartition(":")
    if colon and not path.exists():
        path, function = Path(head), tail
    example = "give a file with `def build(): return model, loss_fn, batch`"
    if not path.is_file():
        raise BadInput(path, "a folder stands there" if path.is_dir() else "there is no such file", example)
    if path.suffix != ".py":
        raise BadInput(path, "its name does not end in .py", example)
    if not function.isidentifier():
        raise BadInput(text, f"{function!r} is no function's name", "give FILE or FILE:FUNCTION")
    return StepFile(path, function)


def seed() -> None:
    """Seeds what a step may draw from: Python, NumPy, and PyTorch on every device."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


class Step:
    """A reader's step on a device; a `medddpm.measure.subject.Batch`.

    Args:
        file: where it comes from, for messages.
        made: what the file's function returned.
        device: takes network and batch.

    Attributes:
        model: the network.
        inputs: the arguments of the loss after the network.
        call: (args, kwargs) of the network's first call in the loss, without gradients; None if the loss calls only
            parts of the network.
        digest: tells whether another process has built the same weights and batch.

    Raises:
        BadInput: the function returned something else, or the network cannot go to the device.
    """

    always_fused = True

    def __init__(self, file: StepFile, made: Any, device: torch.device) -> None:
        self.file, self.device = file, device
        model, self.loss_fn, batch = _checked(file, made)
        self.unpacked = not isinstance(batch, Tensor | dict)
        batch = tuple(batch) if self.unpacked else (batch,)
        try:
            nested.shape_of(batch)
        except TypeError as error:
            remedy = "use plain tensors (of a MONAI MetaTensor, `.as_tensor()`) in tuples, lists and dicts"
            raise BadInput(str(file), f"the batch holds a {error}", remedy) from None
        with named_lines(file, f"moving the network to {device}"):
            self.digest = _digest([*model.parameters(), *model.buffers(), *nested.tensors(batch)])
            self.model: nn.Module = model.to(device)
        self.inputs: tuple[Any, ...] = nested.mapped(batch, lambda t: t.to(device))
        self.call = self._first_call()
        self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]

    def loss(self, model: nn.Module, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Returns the loss, and the loss again, without its graph."""
        loss: Tensor = next(nested.tensors(self.loss_fn(model, *inputs)))
        return loss, loss.detach()

    def forward(self, model: nn.Module, *inputs: Any) -> Any:
        """Returns what the network returns for the arguments of its first call in the loss."""
        return model(*inputs, **(self.call[1] if self.call else {}))

    def forward_inputs(self) -> tuple[Any, ...]:
        """Returns the positional arguments of the network's first call in the loss."""
        assert self.call is not None
        return tuple(self.call[0])

    def reset(self) -> None:
        """Seeds, and gives the buffers (statistics of norms) the values that they were built with."""
        for buffer, value in self._buffers:
            buffer.copy_(value)
        seed()

    def check_loss(self) -> bool:
        """Computes the loss once, and checks it; returns whether further tensors come with the loss.

        Raises:
            BadInput: it is no scalar, not finite or reaches no parameter, or the reader's code raised an error.
        """
        with named_lines(self.file, "loss_fn"):
            made = self.loss_fn(self.model, *self.inputs)
        loss = made[0] if isinstance(made, tuple) and made else made
        if not isinstance(loss, Tensor):
            problem = f"loss_fn returns {_kind(made)}, and not the loss as a tensor"
            raise BadInput(str(self.file), problem, "return the loss, or a tuple that begins with it")
        if loss.numel() != 1:
            problem = f"loss_fn returns a loss of shape {tuple(loss.shape)}, and a loss is a scalar"
            raise BadInput(str(self.file), problem, "return its mean")
        if set(self.model.parameters()).isdisjoint(leaves([loss])):
            problem = "the loss reaches no parameter of the network that takes a gradient"
            raise BadInput(str(self.file), problem, "compute it from loss_fn's first argument, or give --infer")
        if not loss.isfinite():
            problem = f"the loss of its batch is {loss.item():g}, which no tool can be compared by"
            raise BadInput(str(self.file), problem, "build weights and a batch whose loss is finite")
        return isinstance(made, tuple)

    def _first_call(self) -> tuple[Any, Any] | None:
        """Runs the loss up to the network's first call; returns the arguments of that, without computing it."""
        given = copy.copy(self.model)  # which shares the hooks, so that a call of either is seen

        def stop(module: nn.Module, args: Any, kwargs: Any) -> None:
            raise _Called(module, (args, kwargs))

        handle = self.model.register_forward_pre_hook(stop, with_kwargs=True, prepend=True)
        seed()
        try:
            with named_lines(self.file, "loss_fn"):
                self.loss_fn(given, *self.inputs)
        except _Called as called:
            if called.module is not given:
                problem = "loss_fn calls a network of its own, not the one that it is given"
                raise BadInput(str(self.file), problem, "call its first argument: def loss_fn(model, …)") from None
            return nested.mapped(called.arguments, Tensor.detach)
        finally:
            handle.remove()
        return None


class _Called(BaseException):
    """The network is called: not an Exception, which the reader's code may catch."""

    def __init__(self, module: nn.Module, arguments: tuple[Any, Any]) -> None:
        self.module, self.arguments = module, arguments


def load(file: StepFile, device: torch.device) -> Step:
    """Loads the file, as `python FILE` would but under the module's own name, and builds its step.

    Raises:
        BadInput: the file, its function or what that returns is at fault; names the line.
    """
    path = file.path.resolve()
    sys.argv = [str(path)]
    if sys.path[0] in ("", os.getcwd()):  # by `python -m`; a script's own folder stands there instead
        del sys.path[0]
    sys.path.insert(0, str(path.parent))
    seed()
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_reader"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with named_lines(file, "the file"):
        spec.loader.exec_module(module)
    build: Callable[[], Any] | None = getattr(module, file.function, None)
    if build is None or not callable(build):
        remedy = f"add `def {file.function}(): return model, loss_fn, batch`, or name the function: {path.name}:NAME"
        raise BadInput(file.path, f"it has no function {file.function}", remedy)
    with named_lines(file, f"{file.function}()"):
        made = build()
    return Step(file, made, device)


@contextlib.contextmanager
def named_lines(file: StepFile, what: str) -> Iterator[None]:
    """Turns an error of the reader's code into a `BadInput` that names the line.

    Args:
        file: the reader's.
        what: raises the error, in words.
    """
    try:
        yield
    except (BadInput, torch.OutOfMemoryError):
        raise
    except SyntaxError as error:
        place = f"{error.filename or file.path}:{error.lineno}"
        raise BadInput(_short(file, place), f"it is no Python: {error.msg}", "correct that line") from None
    except (Exception, SystemExit) as error:
        folder = str(file.path.resolve().parent)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(folder + os.sep)]
        theirs = [f for f in frames if "site-packages" not in f.filename]
        place = f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else str(file)
        said = first_line(error) if str(error).strip() else ""
        problem = f"{what} raises {type(error).__name__}{said and f': {said}'}"
        remedy = "correct that line" if theirs else "correct it"
        if isinstance(error, SystemExit):
            problem, remedy = f"{what} ends the program", 'put what only a script does under if __name__ == "__main__":'
        raise BadInput(_short(file, place), problem, remedy) from None


def _short(file: StepFile, place: str) -> str:
    """Returns a place in a file of the reader's folder with the folder as the reader wrote it."""
    return str(file.path.parent / os.path.relpath(place, file.path.resolve().parent)) if os.path.isabs(place) else place


def _checked(file: StepFile, made: Any) -> tuple[nn.Module, Callable[..., Any], Any]:
    where, function = str(file), f"{file.function}()"
    if not isinstance(made, tuple | list) or len(made) != 3:
        raise BadInput(where, f"{function} returns {_kind(made)}, not (model, loss_fn, batch)", RETURN)
    model, loss_fn, batch = made
    if not isinstance(model, nn.Module) or not callable(loss_fn):
        first, what = (model, "a torch.nn.Module") if not isinstance(model, nn.Module) else (loss_fn, "a function")
        place = "first" if first is model else "second"
        raise BadInput(where, f"{function} returns {_kind(made)}, whose {place} is not {what}", RETURN)
    if hasattr(model, "_orig_mod") or any(map(cuda_graphs.is_accelerated, model.modules())):
        raise BadInput(where, f"{function} returns a network under a tool", "return it as it is: the tools come here")
    if low := {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}:
        problem = f"{function} returns a network with weights in {str(low.pop()).removeprefix('torch.')}"
        raise BadInput(where, problem, "return it in float32, from which errors are measured: the tools bring theirs")
    if not isinstance(batch, Tensor | dict | tuple | list):
        remedy = "give one batch: a tensor, a dict, or a tuple of loss_fn's arguments after the model"
        raise BadInput(where, f"{function} returns {_kind(batch)} as the batch", remedy)
    return model, loss_fn, batch


def _kind(value: Any) -> str:
    """Names a value's type; of a short sequence its items'."""
    if isinstance(value, tuple | list) and len(value) <= 6:
        return f"({', '.join(type(each).__name__ for each in value)})"
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
