"""That what a loss reads is found wherever it lies, and that what it does not read is left alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.networks import block
from monai.losses import DiceCELoss
from torch import Tensor, nn

from medddpm.fast.replay.readings import Readings

WEIGHTS = {"term": 1.0}


class Options:
    weight, epoch = 1.0, 0


class Trainer(nn.Module):
    """Has parts and counters, as Lightning's modules have."""

    weight, _hidden = 1.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.network, self.other = block(), nn.BatchNorm3d(2)
        self.criterion = DiceCELoss(lambda_ce=0.5)
        self.entropy = type("Entropy", (nn.CrossEntropyLoss,), {})()
        self.calls, self.options = 0, Options()
        self.last: Any = None
        self.register_buffer("classes", torch.ones(2))

    @property
    def hidden(self) -> float:
        return self._hidden

    def term(self, x: Tensor) -> Tensor:
        return self.hidden * x * self.options.weight

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = self.criterion(self.term(model(x)), y) + self.entropy(x, y) * self.weight * self.classes.sum()
        self.last = loss
        return loss


def scaled(x: Tensor) -> Tensor:
    return WEIGHTS["term"] * x


def matched(held: Any) -> Callable[..., Any]:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        match held.options:
            case Options(weight=weight):
                return weight * x
        return x

    return loss


def weighted(weights: dict[str, float]) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*batch: Any) -> Any:
            return weights["term"] * function(*batch)

        return inner

    return decorate


def read(loss: object) -> Readings:
    readings = Readings((loss, None), (), torch.device("cpu"))
    assert not readings.why
    assert readings.holds()
    return readings


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda t: setattr(t, "weight", 2.0), "weight"),
        (lambda t: setattr(t, "_hidden", 2.0), "_hidden"),
        (lambda t: setattr(t.options, "weight", 2.0), "weight"),
        (lambda t: setattr(t.criterion, "lambda_ce", 2.0), "lambda_ce"),
        (lambda t: setattr(t.criterion.dice, "smooth_nr", 2.0), "smooth_nr"),
        (lambda t: setattr(t.entropy, "label_smoothing", 0.1), "label_smoothing"),
        (lambda t: setattr(t, "classes", torch.ones(2)), "classes"),
        (lambda t: t.train(False), "training"),
    ],
)
def test_what_a_method_reads(change: Callable[[Trainer], None], name: str) -> None:
    trainer = Trainer()
    readings = read(trainer.loss)
    change(trainer)
    assert not readings.holds()
    assert name in readings.changed()


def test_what_a_method_does_not_read() -> None:
    trainer = Trainer()
    readings = read(trainer.loss)
    trainer.calls, trainer.last, trainer.options.epoch = 1, torch.ones(1), 1  # type: ignore[misc]
    trainer.classes.mul_(2)  # on the work's device
    assert readings.holds()
    assert not readings.changed()


@pytest.mark.parametrize("bound", [False, True])
def test_a_method_of_the_model_itself(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attributes are the fingerprint's; what its methods read beside them is not."""

    class Model(nn.Module):
        def loss(self, x: Tensor) -> Tensor:
            return self.term(x)

        def term(self, x: Tensor) -> Tensor:
            return scaled(x)

    model = Model()
    loss = model.loss if bound else lambda model, x: model.loss(x)
    readings = Readings((loss, None), (model,), torch.device("cpu"))
    assert readings.holds()
    monkeypatch.setitem(WEIGHTS, "term", 2.0)
    assert not readings.holds()


@pytest.mark.parametrize(
    ("make", "change", "name"),
    [
        (lambda h: lambda model, x: scaled(model(x)), lambda h: WEIGHTS.update(term=WEIGHTS["term"] + 1), "term"),
        (lambda h: lambda model, x: h.list[0] * x, lambda h: h.list.append(1), "list"),
        (lambda h: lambda model, x: h.array[0] * x, lambda h: h.array.fill(2), "array"),
        (lambda h: lambda model, x: h.host * x, lambda h: h.host.fill_(2), "host"),
        (lambda h: lambda model, x: next(h.iterator) * x, lambda h: None, "iterator"),
        (lambda h: lambda model, x: getattr(h, "weight") * x, lambda h: setattr(h, "weight", 2), "weight"),  # noqa: B009
        (lambda h: lambda model, x: getattr(h, h.name) * x, lambda h: setattr(h, "weight", 2), "weight"),
        (lambda h: lambda model, x: vars(h)["weight"] * x, lambda h: setattr(h, "weight", 2), "weight"),
        (lambda h: lambda model, x: h.none and h.none * x, lambda h: setattr(h, "none", 2), "none"),
        (lambda h: functools.partial(lambda w, x: w["a"] * x, h.dict), lambda h: h.dict.update(a=2), "a"),
        (lambda h: weighted(h.dict)(lambda model, x: x), lambda h: h.dict.update(a=2), "a"),
        (lambda h: lambda model, x, w=h.dict: w["a"] * x, lambda h: h.dict.update(a=2), "a"),
        (lambda h: h.function, lambda h: setattr(h.function, "weight", 2), "weight"),
        (matched, lambda h: setattr(h.options, "weight", 2), "weight"),
        (lambda h: h.of_a_package, lambda h: setattr(h.module.part, "WEIGHT", 2), "WEIGHT"),
    ],
)  # fmt: skip
def test_where_else_a_loss_reads(make: Any, change: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS, "term", 1.0)
    held = SimpleNamespace(
        list=[1.0], array=np.ones(1), host=torch.ones(1), iterator=iter((1, 2)), weight=1, name="weight", none=None,
        dict={"a": 1.0}, function=lambda model, x: x, module=ModuleType("package"),
        options=Options(),
    )  # fmt: skip
    held.module.part = ModuleType("package.part")  # type: ignore[attr-defined]
    exec("WEIGHT = 1\ndef term(x): return WEIGHT * x", vars(held.module.part))
    space: dict[str, Any] = {"package": held.module}
    exec("def of_a_package(model, x): return package.part.term(x)", space)
    held.of_a_package = space["of_a_package"]
    held.function.weight = 1
    loss = make(held)
    readings = Readings((loss, None), (), torch.device("meta"))  # so that the host is another device
    assert not readings.why
    change(held)
    assert not readings.holds()
    assert name in readings.changed()
