"""The folder of a training run: run.json, which holds its configuration, and the checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medddpm.checkpoints.files import read_checkpoint, save_checkpoint
from medddpm.checkpoints.released import renamed
from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from medddpm.runtime.reports import log
from medddpm.training.config import FREE, TrainConfig


def claim(out: Path, config: TrainConfig, volumes: Volumes) -> None:
    """Makes the run's folder, or checks that it belongs to this run."""
    record = out / "run.json"
    # Through JSON, so that it compares with what is read back: there a tuple is a list.
    wanted = json.loads(json.dumps({**asdict(config), "size": volumes.size, "layout": volumes.layout.name}))
    wanted["volumes"] = volumes.names()
    if record.exists():
        known = {**asdict(TrainConfig()), **read_run(out)}  # an earlier version's lacks newer fields
        changed = [key for key in wanted if key not in FREE and known.get(key) != wanted[key]]
        if changed:
            key = changed[0]
            was, now = ("other files", "these") if key == "volumes" else (known.get(key), wanted[key])
            raise BadInput(
                out,
                f"its run was begun with {key} {was}, not {now}",
                "resume it with the same, or train in another folder",
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(out, "it exists already and is no run of medddpm", "choose a folder that is new or empty")
    with replacing(record) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1) + "\n")
    for torn in out.rglob(".writing-*"):  # left by a killed run
        torn.unlink()


def read_run(out: Path) -> dict[str, Any]:
    """Reads a run's run.json: its configuration, and the volumes' size and names."""
    record = out / "run.json"
    try:
        content = json.loads(record.read_text())
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise BadInput(record, "it is damaged", "remove it together with the run, or choose another folder") from None
    return renamed(content)


def checkpoints_of(out: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    return sorted((out / "checkpoints").glob("step-*.pt"))


def save(out: Path, content: Mapping[str, Any], keep: int) -> None:
    """Writes a checkpoint, then removes all but the newest `keep`."""
    save_checkpoint(out / "checkpoints" / f"step-{content['step']:07d}.pt", content)
    for old in checkpoints_of(out)[: -max(keep, 1)]:
        old.unlink()


def newest(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """Reads a run's newest readable checkpoint; reports each unreadable one and goes back to the previous one."""
    for path in reversed(checkpoints_of(out)):
        try:
            return path, read_checkpoint(path)
        except BadInput as error:
            log.warning(f"{error}; going back to the one before")
    return None
