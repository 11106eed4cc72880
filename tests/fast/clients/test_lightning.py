"""Lightning's callback: a network is accelerated before anything wraps it, and trains as it does without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.networks import distance, monai_unet
from helpers.pages import page_block
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy

from medddpm.errors import BadInput
from medddpm.fast.clients.lightning import Accelerate


class Toy(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = monai_unet()
        self.head = nn.Linear(2, 2)
        self.losses: list[float] = []
        self.seen: list[tuple[bool, bool]] = []  # accelerated, in DDP
        self.fails = False

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if self.fails:
            raise RuntimeError("in the middle")
        wrapped = isinstance(self.trainer.strategy.model, DistributedDataParallel)
        self.seen.append((hasattr(self.network, "acceleration"), wrapped))
        out = self.head(self.network(batch).movedim(1, -1))
        loss = functional.mse_loss(out, batch.movedim(1, -1).expand_as(out))
        self.losses.append(loss.item())
        return loss

    def test_step(self, batch: Tensor, index: int) -> None:
        self.seen.append((hasattr(self.network, "acceleration"), False))
        self.network(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Lightning leaves variables of its processes behind."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def data() -> DataLoader[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return DataLoader([torch.randn(1, 1, 8, 8, 8, generator=generator) for _ in range(3)], batch_size=None)


def trainer(*callbacks: Accelerate, **changes: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", devices=1, max_epochs=2, callbacks=list(callbacks), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **changes,
    )  # fmt: skip


def replaced(module: nn.Module) -> bool:
    return any("forward" in vars(each) for each in module.modules())


def test_a_fit_is_what_it_was_without_the_callback() -> None:
    plain, fast = Toy(), Toy()
    trainer().fit(plain, data())
    trainer(Accelerate(report=None)).fit(fast, data())
    assert fast.losses == pytest.approx(plain.losses, rel=1e-4)
    assert len(fast.losses) == 6
    assert fast.seen == [(True, False)] * 6
    for name, value in plain.state_dict().items():
        assert distance(fast.state_dict()[name], value) < 1e-3, name
    assert fast.network.acceleration.replaced


def test_the_pages_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where Lightning leaves checkpoints and logs
    module = Toy()
    names = {"module": module, "loader": data()}
    exec(page_block("site/clients.md", "python", "medddpm.fast.clients.lightning"), names)
    assert module.network.acceleration.replaced
    assert len(module.losses) == 6


def test_it_is_accelerated_before_ddp_wraps_it() -> None:
    module, plain = Toy(), Toy()
    wrapped: list[bool] = []  # whether the network is accelerated then

    class Wraps(DDPStrategy):
        def _setup_model(self, model: Any) -> DistributedDataParallel:
            wrapped.append(hasattr(module.network, "acceleration"))
            return super()._setup_model(model)

    ddp = Wraps(process_group_backend="gloo")
    loop = trainer(Accelerate("network", report=None), strategy=ddp, use_distributed_sampler=False)
    try:
        loop.fit(module, data())
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    trainer().fit(plain, data())
    assert wrapped == [True]
    assert module.seen == [(True, True)] * 6
    assert module.losses == pytest.approx(plain.losses, rel=1e-4)


def test_it_is_restored_at_the_end_if_asked() -> None:
    module, callback = Toy(), Accelerate(restoring=True, report=None)
    loop = trainer(callback)
    loop.fit(module, data())
    assert not replaced(module)
    loop.test(module, data(), verbose=False)
    assert not replaced(module)
    module.fails = True
    loop = trainer(callback)
    with pytest.raises(RuntimeError, match="in the middle"):
        loop.fit(module, data())
    assert not replaced(module)
    assert module.seen == [(True, False)] * 9


def test_a_second_loop_keeps_the_acceleration() -> None:
    module, loop = Toy(), trainer(Accelerate(report=None))
    loop.fit(module, data())
    acceleration = module.network.acceleration
    loop.test(module, data(), verbose=False)
    assert module.network.acceleration is acceleration


def test_the_trainer_of_another_package_is_refused_by_its_name() -> None:
    """pytorch_lightning's Trainer takes the callback, but its strategies are none of lightning.pytorch's."""
    other = type("Trainer", (), {"__module__": "pytorch_lightning.trainer.trainer", "strategy": None})()
    with pytest.raises(BadInput, match=r"of pytorch_lightning; import Trainer from lightning\.pytorch"):
        Accelerate().setup(other, Toy(), "fit")


def test_a_network_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match="Toy has no module 'net' yet; build it in __init__"):
        trainer(Accelerate("net")).fit(Toy(), data())
    module = Toy()
    module.second = nn.Conv3d(1, 1, 1)
    with pytest.raises(BadInput, match=r"2 networks with 5-D parameters: \['network', 'second'\]"):
        trainer(Accelerate()).fit(module, data())


@pytest.mark.parametrize("kind", [FSDPStrategy, DeepSpeedStrategy])
def test_a_strategy_that_splits_parameters_is_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, module = trainer(), Toy()
    monkeypatch.setattr(type(loop), "strategy", kind.__new__(kind))
    with pytest.raises(BadInput, match=kind.__name__):
        Accelerate().setup(loop, module, "fit")
    assert not replaced(module)
