"""nnU-Net's trainer with the network on the fast path, and nnU-Net's benchmark of it."""

from __future__ import annotations

from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.benchmarking.nnUNetTrainerBenchmark_5epochs_noDataLoading import (
    nnUNetTrainerBenchmark_5epochs_noDataLoading,
)
from torch import nn

from medddpm.fast.patch import accelerate


class nnUNetTrainerAccelerated(nnUNetTrainer):
    """`nnUNetTrainer`, its network accelerated in training, validation and prediction; all else is nnU-Net's.

    Combine it with other trainers by inheritance, and name it first: `class Mine(nnUNetTrainerAccelerated,
    nnUNetTrainerDA5)`. Checkpoints are nnU-Net's: either trainer reads the other's weights.
    """

    @classmethod
    def build_network_architecture(cls, plans_manager: Any, *args: Any, **kwargs: Any) -> nn.Module:
        """Builds the network as the next class does, and accelerates it. Prediction calls nothing else of a trainer.

        Args:
            plans_manager: a parameter of this name tells nnU-Net which arguments follow.
            args: as nnU-Net hands them.
            kwargs: likewise.

        Returns:
            The network, on the CPU.
        """
        return accelerate(super().build_network_architecture(plans_manager, *args, **kwargs), report=None)

    def configure_optimizers(self) -> Any:
        """Accelerates the network anew, now on its device and not yet in DDP, and logs the report.

        Returns:
            What the next class returns: the optimizer and the learning rate's schedule.
        """
        accelerate(self.network, report=self.print_to_log_file)
        return super().configure_optimizers()

    def _do_i_compile(self) -> bool:
        return False  # nnU-Net's default is to compile, which has nothing left to fuse


class nnUNetTrainerAcceleratedBenchmark_5epochs_noDataLoading(
    nnUNetTrainerAccelerated, nnUNetTrainerBenchmark_5epochs_noDataLoading
):
    """nnU-Net's benchmark of five epochs on one random batch: `fastest_epoch`, in s, in its benchmark_result.json."""
