"""The folder of a training run: run.json, which holds its configuration, and the checkpoints."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medddpm.checkpoints.fields import LARGEST, are_whole, is_size, whole
from medddpm.checkpoints.files import checkpoints_of, read_checkpoint, save_checkpoint
from medddpm.checkpoints.released import renamed
from medddpm.checkpoints.weights import not_finite, some
from medddpm.data.layouts import LAYOUTS
from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.fast.reports import log
from medddpm.runtime import locks
from medddpm.runtime.files import check_room, check_writable, read_json, write_json
from medddpm.runtime.locks import LOCK
from medddpm.training.config import CHOICES, TrainConfig
from medddpm.training.mismatch import differences

HALF = (LOCK, ".writing-")  # the beginnings of names that `runtime.files` and the lock leave
ASIDE = ".unreadable"  # is added to the name of a damaged checkpoint


def claim(out: Path, config: TrainConfig, volumes: Volumes, processes: int = 1) -> int:
    """Makes the run's folder, or checks that it belongs to this run.

    A folder without a checkpoint, damaged or not, belongs to no run yet: a first start that failed does not keep it.

    Returns:
        the micro-steps of each of the `processes` in a step: a run that was begun with other processes is shared out
        anew, so that its steps stay what they were.

    Raises:
        BadInput: it is another run's, or holds something else; says all that differs. Or it cannot be written to.
    """
    record = out / "run.json"
    # Through JSON, so that it compares with what is read back: there a tuple is a list.
    wanted = json.loads(json.dumps({**asdict(config), "size": volumes.size, "layout": volumes.layout.name}))
    wanted |= {"volumes": volumes.names(), "data": volumes.digests(), "processes": processes}
    accumulation = config.accumulation
    if record.exists() and (checkpoints_of(out) or _set_aside(out)):
        known = {**wanted, **asdict(TrainConfig()), **read_run(out)}  # an earlier version's lacks newer fields
        total = known["accumulation"] * known["processes"]
        wanted["processes"] = known["processes"]
        if accumulation * processes == total:
            wanted["accumulation"] = known["accumulation"]
        if changed := differences(known, wanted):
            problem = f"its run was begun with {', '.join(changed)}"
            raise BadInput(out, problem, "resume it with the same, or train in another folder")
        accumulation = _shared(out, total, processes)
    write_json(record, wanted, indent=1)
    for folder in ["checkpoints", *(["samples"] if config.sample_every else [])]:
        check_writable(out / folder / "step")  # before the steps that would be lost with them
    for torn in out.rglob(".writing-*"):  # left by a killed run
        torn.unlink()
    return accumulation


def _shared(out: Path, total: int, processes: int) -> int:
    """The micro-steps of each process, where the `total` of a run's step are shared by `processes` of them."""
    if total % processes:
        fitting = ", ".join(str(n) for n in range(1, min(total, MOST_NAMED) + 1) if total % n == 0)
        problem = f"its steps are of {total} micro-steps, which {processes} processes cannot share"
        raise BadInput(out, problem, f"start one of {fitting} processes")
    return total // processes


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Within it, no other training runs in the folder.

    Raises:
        BadInput: one does; names its process. Or the folder holds something else.
    """
    if out.exists() and not (out / LOCK).exists():  # another's first files may be half there: the lock comes first
        _check_own(out)
    with locks.locked(out, out, "training", "wait for it, or choose another folder"):
        _check_own(out)
        yield


def _check_own(out: Path) -> None:
    """Refuses a folder that holds something else than a run; what this package has not finished writing is nothing."""
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
    record, remedy = out / "run.json", "restore it, or choose another folder"
    content = renamed(read_json(record, remedy))
    if absent := [name for name in _NEEDED if name not in content]:
        raise BadInput(record, f"it is damaged: it has no {absent[0]}", remedy)
    if wrong := [name for name, value in content.items() if name in _SOUND and not _SOUND[name](value)]:
        raise BadInput(record, f"it is damaged: {wrong[0]} is not what it should be", remedy)
    return content


def _field(name: str, default: object) -> Callable[[Any], bool]:
    """Whether a value is one that this field of `TrainConfig` may have."""
    if name in CHOICES:
        return lambda value: value in CHOICES[name]
    if name == "channel_mult":
        return lambda value: value is None or (are_whole(value, 1) and bool(value))
    if isinstance(default, float):
        most = 1.0 if name == "ema_decay" else sys.float_info.max
        return lambda value: type(value) in (int, float) and 0 <= value <= most
    if type(default) is int:
        return functools.partial(whole, least=0 if name in _FROM_0 else 1, most=LARGEST if name in _WIDTHS else MOST)
    return lambda value: type(value) is type(default)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


MOST = 2**63 - 1
MOST_NAMED = 1024  # processes of which a message names the numbers that fit
_NEEDED = ("size", "layout", "volumes")  # an earlier version's record may lack any other
_FROM_0 = ("seed", "save_every", "sample_every", "workers", "ema_start", "bucket_mib")
_WIDTHS = ("image_size", "model_channels", "num_res_blocks", "norm_groups")
_SOUND: dict[str, Callable[[Any], bool]] = {
    **{name: _field(name, default) for name, default in asdict(TrainConfig()).items()},
    "size": is_size,
    "layout": lambda value: value in [layout.name for layout in LAYOUTS],
    "volumes": _are_texts,
    "data": _are_texts,
    "processes": functools.partial(whole, least=1, most=MOST),
}
"""Whether a value of run.json is sound, by its name."""


def what_is_kept(out: Path) -> str:
    """Returns what a run that ends now leaves of its weights, as the end of a line."""
    found = checkpoints_of(out)
    return f"the last checkpoint is kept: {found[-1].name}" if found else "no checkpoint was written yet"


def _set_aside(out: Path) -> list[Path]:
    """The checkpoints that were damaged, by their new names."""
    return sorted((out / "checkpoints").glob(f"step-*.pt{ASIDE}*"))


def save(out: Path, content: Mapping[str, Any], keep: int) -> None:
    """Writes a checkpoint, then removes all older ones but the newest `keep` - 1.

    Raises:
        BadInput: a weight is not finite, or the disk is full; the checkpoints that are there stay.
    """
    for kind in ("model", "ema"):
        if broken := not_finite(content[kind]):
            raise BadInput(
                out,
                f"at step {content['step']} the weights are no longer finite ({some(broken)})",
                f"lower --learning-rate; {what_is_kept(out)}",
            )
    path = out / "checkpoints" / f"step-{content['step']:07d}.pt"
    save_checkpoint(path, content)
    older = [known for known in checkpoints_of(out) if int(known.stem[5:]) < content["step"]]
    for old in older[: len(older) - max(keep, 1) + 1]:
        old.unlink()


def check_room_for(out: Path, size: int, config: TrainConfig, first: int, steps: int) -> None:
    """Checks, before a run trains, that its disk has room for the checkpoints that will be there at once.

    A new checkpoint is written before the oldest one is removed, so that there is one more than the run keeps.

    Args:
        out: the run's folder.
        size: of a checkpoint, in bytes.
        config: the run's.
        first, steps: the run goes from step `first` to step `steps`.

    Raises:
        BadInput: it has not.
    """
    every = config.save_every or steps
    due = max(-(-steps // every) - first // every, 0) if steps > first else 0
    there = len(checkpoints_of(out))
    count = min(due, max(config.keep + 1 - there, 1))
    remedy = "free some space, give a smaller --keep, or choose another folder"
    check_room(out, size * count, f"{count} checkpoint{'s' * (count != 1)}", remedy)


def newest(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """Reads a run's newest readable checkpoint, to go on from it; unreadable newer ones are set aside, renamed.

    Set aside, they neither count among those that are kept nor are written over.

    Raises:
        BadInput: as `readable`.
    """
    found = readable(out)
    if found is None:
        return None
    path, content, problems = found
    for broken, problem in problems.items():
        aside = _free(broken.with_name(broken.name + ASIDE))
        broken.rename(aside)
        log.warning(str(BadInput(broken, problem.problem, f"set aside as {aside.name}, going on from {path.name}")))
    return path, content


def _free(path: Path) -> Path:
    """The path, or the first of NAME-2, NAME-3 … that nothing has."""
    names = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([path], names) if not name.exists())


def readable(out: Path) -> tuple[Path, dict[str, Any], dict[Path, BadInput]] | None:
    """Reads a run's newest readable checkpoint, and changes nothing; also returns what is wrong with each newer one.

    Raises:
        BadInput: it has checkpoints, and none is readable. Those that were set aside count: a run that has lost all of
            its checkpoints does not begin anew, however often it is started.
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
