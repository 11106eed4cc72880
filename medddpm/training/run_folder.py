"""The folder of a training run: run.json, which holds its configuration, and the checkpoints."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medddpm.checkpoints.fields import LARGEST, are_whole, is_size, whole
from medddpm.checkpoints.files import checkpoints_of, read_checkpoint, save_checkpoint
from medddpm.checkpoints.released import with_present_names
from medddpm.checkpoints.weights import not_finite, some
from medddpm.data.layouts import LAYOUTS
from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.fast.reports import log
from medddpm.runtime import locks
from medddpm.runtime.files import check_room, check_writable, read_json, write_json
from medddpm.runtime.locks import LOCK
from medddpm.training.config import CHOICES, LARGEST_DEFORMATION, LARGEST_SHARE, TrainConfig
from medddpm.training.mismatch import differences

HALF = (LOCK, ".writing-")  # the beginnings of the names of unfinished files and of the lock
ASIDE = ".unreadable"  # is added to the name of a damaged checkpoint


def claim(out: Path, config: TrainConfig, volumes: Volumes, processes: int = 1, held_out: Sequence[str] = ()) -> int:
    """Makes the run's folder, or checks that it belongs to this run.

    A folder without a checkpoint, whole or damaged, belongs to no run yet: a failed first start does not claim it.

    Args:
        out: the run's folder.
        config: the run's.
        volumes: those that it trains on.
        processes: that train together.
        held_out: the names of the volumes that it does not train on.

    Returns:
        the micro-steps of each of the `processes` in a step. If a run resumes with another number of processes, its
        micro-steps are divided anew, and a step computes as before.

    Raises:
        BadInput: it is another run's (the message names the differences), is no run's, or cannot be written to.
    """
    record = out / "run.json"
    # Through JSON, so that it compares with what is read back: there a tuple is a list.
    content = json.loads(json.dumps({**asdict(config), "size": volumes.size, "layout": volumes.layout.name}))
    content |= {"volumes": volumes.names(), "data": volumes.digests(), "processes": processes, "held_out": [*held_out]}
    accumulation = config.accumulation
    if record.exists() and (checkpoints_of(out) or _set_aside(out)):
        known = {**content, **asdict(TrainConfig()), **read_run(out)}  # an earlier version's lacks newer fields
        total = known["accumulation"] * known["processes"]
        content["processes"] = known["processes"]
        if accumulation * processes == total:
            content["accumulation"] = known["accumulation"]
        if changed := differences(known, content):
            problem = f"its run was begun with {', '.join(changed)}"
            raise BadInput(out, problem, "resume it with the same, or train in another folder")
        accumulation = _shared(out, total, processes)
    write_json(record, content, indent=1)
    for folder in ["checkpoints", *(["samples"] if config.sample_every else [])]:
        check_writable(out / folder / "step")  # before the steps that would be lost with them
    for torn in out.rglob(".writing-*"):  # left by a killed run
        torn.unlink()
    return accumulation


def _shared(out: Path, total: int, processes: int) -> int:
    """Returns the micro-steps of each process if the `total` of a run's step is divided among `processes`."""
    if total % processes:
        fitting = ", ".join(str(n) for n in range(1, min(total, MOST_NAMED) + 1) if total % n == 0)
        problem = f"its steps are of {total} micro-steps, which {processes} processes cannot share"
        raise BadInput(out, problem, f"start one of {fitting} processes")
    return total // processes


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Locks the folder against other trainings.

    Raises:
        BadInput: another training runs there (the message names its process), or the folder holds something else.
    """
    if out.exists() and not (out / LOCK).exists():  # another's first files may be half there: the lock comes first
        _check_is_run(out)
    with locks.locked(out, out, "training", "wait for it, or choose another folder"):
        _check_is_run(out)
        yield


def _check_is_run(out: Path) -> None:
    """Refuses a folder that holds something other than a run; unfinished files of this package do not count."""
    foreign = out.exists() and not (out / "run.json").exists()
    if foreign and checkpoints_of(out):
        raise BadInput(out, "it has checkpoints but no run.json", "restore that file, or choose another folder")
    if foreign and (not out.is_dir() or any(not path.name.startswith(HALF) for path in out.iterdir())):
        raise BadInput(out, "it exists already and is no run of medddpm", "choose a folder that is new or empty")


def read_run(out: Path) -> dict[str, Any]:
    """Reads a run's run.json: its configuration, and its volumes' size, layout and names.

    Raises:
        BadInput: it is missing or damaged.
    """
    return read_record(out / "run.json", "restore it, or choose another folder")


def read_record(record: Path, remedy: str = "give the run.json of a run") -> dict[str, Any]:
    """Reads a file as `read_run` does; `remedy` is what an error tells the user to do."""
    content = with_present_names(read_json(record, remedy))
    if absent := [name for name in _NEEDED if name not in content]:
        raise BadInput(record, f"it is damaged: it has no {absent[0]}", remedy)
    if wrong := [name for name, value in content.items() if name in _SOUND and not _SOUND[name](value)]:
        raise BadInput(record, f"it is damaged: {wrong[0]} is not what it should be", remedy)
    return content


def _field(name: str, default: object) -> Callable[[Any], bool]:
    """Returns a test for the values that this field of `TrainConfig` may have."""
    if name in CHOICES:
        return lambda value: value in CHOICES[name]
    if name == "channel_mult":
        return lambda value: value is None or (are_whole(value, 1) and bool(value))
    if isinstance(default, float):
        most = _MOST.get(name, sys.float_info.max)
        return lambda value: type(value) in (int, float) and 0 <= value <= most
    if type(default) is int:
        return functools.partial(whole, least=0 if name in _FROM_0 else 1, most=LARGEST if name in _WIDTHS else MOST)
    return lambda value: type(value) is type(default)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


MOST = 2**63 - 1
MOST_NAMED = 1024  # processes of which a message names the numbers that fit
_NEEDED = ("size", "layout", "volumes")  # an earlier version's record may lack any other
_FROM_0 = ("seed", "save_every", "sample_every", "workers", "ema_start", "bucket_mib", "warm_up", "length", "holdout")
_MOST = {"ema_decay": 1.0, "ema_share": LARGEST_SHARE, "deform": LARGEST_DEFORMATION}
_WIDTHS = ("image_size", "model_channels", "num_res_blocks", "norm_groups")
_SOUND: dict[str, Callable[[Any], bool]] = {
    **{name: _field(name, default) for name, default in asdict(TrainConfig()).items()},
    "size": is_size,
    "layout": lambda value: value in [layout.name for layout in LAYOUTS],
    "volumes": lambda value: _are_texts(value) and bool(value),
    "data": lambda value: _are_texts(value) and bool(value),
    "held_out": _are_texts,
    "processes": functools.partial(whole, least=1, most=MOST),
}
"""For each name in run.json, a test of its value."""


def remaining_weights(out: Path) -> str:
    """Returns the end of an error line: the checkpoint that remains if the run ends now."""
    checkpoints = checkpoints_of(out)
    return f"the last checkpoint is kept: {checkpoints[-1].name}" if checkpoints else "no checkpoint was written yet"


def _set_aside(out: Path) -> list[Path]:
    """Returns the damaged checkpoints, under their new names."""
    return sorted((out / "checkpoints").glob(f"step-*.pt{ASIDE}*"))


def step_of(checkpoint: Path) -> int:
    """Returns the step of a checkpoint, which its name tells."""
    return int(checkpoint.stem[5:])


def newest_up_to(out: Path, step: int) -> Path | None:
    """Returns the newest checkpoint of a run of at most that step."""
    return next((path for path in reversed(checkpoints_of(out)) if step_of(path) <= step), None)


def save(
    out: Path,
    content: Mapping[str, Any],
    keep: int,
    needed: Callable[[Sequence[int]], set[int]] = lambda checkpoints: set(),
) -> None:
    """Writes a checkpoint, then removes all older ones but the newest `keep` - 1.

    Args:
        out: the run's folder.
        content: the checkpoint's.
        keep: the number of checkpoints that stay.
        needed: of the steps of all checkpoints, in order, those whose checkpoints stay as well.

    Raises:
        BadInput: a weight is not finite, or the disk is full. Existing checkpoints then stay.
    """
    for kind in ("model", "ema"):
        if broken := not_finite(content[kind]):
            raise BadInput(
                out,
                f"at step {content['step']} the weights are no longer finite ({some(broken)})",
                f"lower --learning-rate; {remaining_weights(out)}",
            )
    path = out / "checkpoints" / f"step-{content['step']:07d}.pt"
    save_checkpoint(path, content)
    older = [known for known in checkpoints_of(out) if step_of(known) < content["step"]]
    spared = needed([*map(step_of, older), content["step"]])
    for old in older[: len(older) - max(keep, 1) + 1]:
        if step_of(old) not in spared:
            old.unlink()


def check_room_for(out: Path, size: int, config: TrainConfig, first: int, steps: int) -> None:
    """Checks, before a run trains, that its disk has room for the checkpoints that exist at one time.

    A new checkpoint is written before the oldest one is removed, so there is one more than the run keeps; it keeps two
    at least, because the newest is not yet known to be good (`medddpm.training.reports.watch.Watch.needed`). Those that
    only a lost training keeps are not counted.

    Args:
        out: the run's folder.
        size: of a checkpoint, in bytes.
        config: the run's.
        first, steps: the run goes from step `first` to step `steps`.

    Raises:
        BadInput: there is too little room.
    """
    every = config.save_every or steps
    due = max(-(-steps // every) - first // every, 0) if steps > first else 0
    there = len(checkpoints_of(out))
    count = min(due, max(max(config.keep, 2) + 1 - there, 1))
    remedy = "free some space, give a smaller --keep, or choose another folder"
    check_room(out, size * count, f"{count} checkpoint{'s' * (count != 1)}", remedy)


def newest(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """Reads a run's newest readable checkpoint, to resume from it, and renames unreadable newer ones.

    A renamed checkpoint does not count among the newest `keep`, and is never overwritten.

    Raises:
        BadInput: as `readable`.
    """
    checkpoint = readable(out)
    if checkpoint is None:
        return None
    path, content, problems = checkpoint
    for broken, problem in problems.items():
        aside = _free(broken.with_name(broken.name + ASIDE))
        broken.rename(aside)
        log.warning(str(BadInput(broken, problem.problem, f"set aside as {aside.name}, going on from {path.name}")))
    return path, content


def _free(path: Path) -> Path:
    """Returns the path, or the first of NAME-2, NAME-3 … that does not exist."""
    names = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([path], names) if not name.exists())


def readable(out: Path) -> tuple[Path, dict[str, Any], dict[Path, BadInput]] | None:
    """Returns a run's newest readable checkpoint, and the problem of each newer one; changes nothing.

    Raises:
        BadInput: it has checkpoints, and none is readable. Renamed ones count: a run that has lost all of its
            checkpoints does not begin anew, however often it is started.
    """
    problems: dict[Path, BadInput] = {}
    for path in reversed(checkpoints_of(out)):
        try:
            return path, read_checkpoint(path), problems
        except BadInput as error:
            problems[path] = error
    if lost := [*problems, *_set_aside(out)]:
        raise BadInput(
            out,
            f"none of its {len(lost)} checkpoints is readable ({some(path.name for path in lost)})",
            "restore one, or train in another folder",
        )
    return None
