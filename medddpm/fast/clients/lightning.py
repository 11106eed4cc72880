"""A callback for Lightning (`lightning` 2): the network of a LightningModule on the fast path."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import nn

from medddpm.errors import BadInput
from medddpm.fast.graphs.cuda_graphs import is_accelerated
from medddpm.fast.patch import accelerate, restore


class Accelerate(Callback):
    """Accelerates a network before the strategy wraps the LightningModule in DistributedDataParallel.

    Build the network in the LightningModule's `__init__`: the callback runs before the module's `setup` and
    `configure_model`. It also moves the network to its device, as the strategy would do next.

    Args:
        network: the name of the network's attribute in the LightningModule, with dots if it lies deeper; None takes the
            only child that has 5-D parameters.
        restoring: whether to restore the network at the end of each fit, validation, test and prediction, and after an
            exception.
        options: the arguments of `accelerate` besides the model.
    """

    def __init__(self, network: str | None = None, restoring: bool = False, **options: Any) -> None:
        self.network = network
        self.restoring = restoring
        self.options = options

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Accelerates the network, unless it is accelerated already.

        Args:
            trainer: whose strategy knows the device.
            pl_module: holds the network.
            stage: "fit", "validate", "test" or "predict".

        Raises:
            BadInput: if the trainer is not lightning.pytorch's, there is no such network, or the strategy splits
                parameters among devices; what `accelerate` raises.
        """
        strategy = trainer.strategy
        package = type(trainer).__module__.partition(".")[0]
        if package == "pytorch_lightning":  # its strategies are none of lightning.pytorch's
            raise BadInput("Accelerate", f"this Trainer is of {package}", "import Trainer from lightning.pytorch")
        whole = isinstance(strategy, DDPStrategy | SingleDeviceStrategy)
        if not whole or isinstance(strategy, DeepSpeedStrategy):  # which is a DDPStrategy
            name = type(strategy).__name__
            raise BadInput("strategy", f"{name} may split parameters among devices", "use one device, or ddp")
        network = self._network(pl_module)
        if not is_accelerated(network):
            accelerate(network.to(strategy.root_device), **self.options)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restores the network if that was asked for.

        Args:
            trainer: not used.
            pl_module: holds the network.
            stage: not used.
        """
        if self.restoring:
            restore(self._network(pl_module))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Does what `teardown` does, which Lightning leaves out after an exception.

        Args:
            trainer: not used.
            pl_module: holds the network.
            exception: not used.
        """
        if self.restoring:
            restore(pl_module)

    def _network(self, module: LightningModule) -> nn.Module:
        if self.network is not None:
            try:
                return module.get_submodule(self.network)
            except AttributeError:
                problem = f"{type(module).__name__} has no module {self.network!r} yet"
        else:
            held = {n: c for n, c in module.named_children() if any(p.dim() == 5 for p in c.parameters())}
            if len(held) == 1:
                return next(iter(held.values()))
            problem = f"{type(module).__name__} has {len(held)} networks with 5-D parameters: {list(held)}"
        raise BadInput("network", problem, "build it in __init__, and name its attribute: Accelerate('network')")
