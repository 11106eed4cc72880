"""The progress of a training run: a bar, and TensorBoard's curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tqdm import tqdm

from medddpm.errors import BadInput


class Report:
    """The progress bar and the TensorBoard log of a run; refuses a loss that is not finite.

    Args:
        out: the run's folder.
        name: the bar's label.
        first: the steps made before.
        steps: the steps in all.
        shown: shows the bar.
        logged: writes the log, to ``out/tensorboard``.
    """

    def __init__(self, out: Path, name: str, first: int, steps: int, *, shown: bool, logged: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and needed only here

        self._out = out
        # The steps that a killed run logged after its last checkpoint are made again: the log drops them.
        self._log = SummaryWriter(str(out / "tensorboard"), purge_step=first + 1) if logged else None
        self._bar = tqdm(total=steps, initial=first, desc=name, unit="step", disable=not shown)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        if self._log:
            self._log.close()

    def losses(self, losses: list[float], step: int) -> None:
        """Shows and logs the losses of the steps up to `step`.

        Raises:
            BadInput: a loss is not finite; saved checkpoints stay.
        """
        self._bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
        self._bar.update(len(losses))
        if self._log:
            for number, loss in enumerate(losses, start=step - len(losses) + 1):
                self._log.add_scalar("loss", loss, number)
            if rate := self._bar.format_dict["rate"]:
                self._log.add_scalar("steps_per_second", rate, step)
        if not np.isfinite(losses).all():
            raise BadInput(
                self._out,
                f"the loss is no longer a number at step {step}",
                "lower --learning-rate, or run `medddpm check` over the data; the last checkpoint is kept",
            )
