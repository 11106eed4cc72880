"""Times and profiles a program's step. `with medddpm.measure.step():` marks one for `medddpm profile -- python …`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

observer: Callable[[], contextlib.AbstractContextManager[None]] | None = None
"""Makes the mark of a step; `medddpm.measure.profile.program.hooked` sets it in a program that is profiled."""


def step() -> contextlib.AbstractContextManager[None]:
    """Marks one step of a training loop. Outside of `medddpm profile -- python …` the mark does nothing.

    Where a program has such marks, they tell its steps, and not the calls of its optimizers. Launches outside of a mark
    belong to no step.
    """
    return observer() if observer else contextlib.nullcontext()
