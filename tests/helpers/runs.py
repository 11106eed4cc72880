"""Reads the files of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medddpm.checkpoints.files import newest_checkpoint, read_checkpoint


def newest(out: Path) -> dict[str, Any]:
    """The newest checkpoint of a run's folder."""
    return read_checkpoint(newest_checkpoint(out))
