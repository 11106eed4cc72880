"""Keeps the results that processes leave, a JSON file each; only those of one run count."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medddpm.runtime.files import replacing

ONE_RUN = ("gpu", "driver", "cudnn", "torch", "commit")
"""What results must have in common to stand in one table."""


@dataclass
class Store:
    """Reads and stamps the results of one run.

    Args:
        folder: where the results lie.
        meta: `machine_meta` of this call.
        failed: what could not be measured in this call, and why.
    """

    folder: Path
    meta: Mapping[str, Any]
    failed: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """The card, versions and commit that the results of a run have in common."""
        return {name: self.meta[name] for name in ONE_RUN}

    def read(self, path: Path) -> dict[str, Any] | None:
        """A result of this run; None if there is none, or only another run's."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("run") == self.run else None

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Keeps a result as one of this run."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({**content, "run": self.run}) + "\n", encoding="utf-8")

    def stamp(self, path: Path, **known: object) -> None:
        """Marks a result that a process left, if it left one, as one of this run, and adds what else is known of it."""
        if path.is_file():
            self.write(path, json.loads(path.read_text(encoding="utf-8")) | known)


def rows_folder(out: Path) -> Path:
    """The folder of the rows of the table at `out`: NAME.rows, beside it."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.rows")
