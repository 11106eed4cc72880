"""Running statistics of a batch norm: kept up to date in training, and what the norm uses in evaluation.

Batch norm: Ioffe and Szegedy 2015, arXiv:1502.03167.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Running:
    """The running statistics of one layer.

    Args:
        mean: (C,), any float dtype.
        variance: (C,), any float dtype.
        count: (), int64: how many batches they have seen; None if the layer does not count.
        momentum: the weight of a new batch; None averages over all batches, for which `count` is needed.
        fixed: whether the norm is taken by these statistics, and leaves them as they are. Otherwise it is taken by
            the batch's own, which are then added to these.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor | None = None
    momentum: float | None = 0.1
    fixed: bool = False

    def plain(self, x: Tensor) -> bool:
        """Returns whether the kernels take these statistics beside a volume x (N, C, D, H, W)."""
        statistics = [a for a in (self.mean, self.variance, self.count) if a is not None]
        return all(a.device == x.device and a.is_contiguous() for a in statistics)

    def add(self, mean: Tensor, variance: Tensor, values: int) -> None:
        """Adds a batch, in place.

        Args:
            mean: (C,), of the batch.
            variance: (C,), of the batch: squared deviations divided by `values`.
            values: how many values of each channel the batch has; the running variance divides by one less.
        """
        with torch.no_grad():  # as a decorator it would be what torch.compile cannot take into one graph
            if self.count is not None:
                self.count.add_(1)
            weight: Tensor | float = self.momentum or 0.0
            if self.momentum is None and self.count is not None:
                weight = self.count.to(mean.dtype).reciprocal()  # a tensor: nothing waits for the device
            for held, new in ((self.mean, mean), (self.variance, variance * (values / max(1, values - 1)))):
                held.copy_(torch.lerp(held.to(new.dtype), new, weight))
