"""What `medddpm profile` leaves in its folder, and the records that `adopt` makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.study.profile.parse import origin, parse
from medddpm.study.records import schemas
from medddpm.study.records.machine import gpu_folder_name
from medddpm.study.records.tables import read_meta, read_table, write_table

_RAW = re.compile(r"(?P<setting>[a-z0-9]+)_(?P<part>[a-z0-9-]+)_run(?P<run>\d+)_raw\.csv\.gz")


def is_finished(table: Path, commands: Sequence[str] | None = None) -> bool:
    """Whether a table was written to its end, and by these commands if any are given; its description comes last."""
    try:
        meta = read_meta(table)
    except BadInput:
        return False
    return table.is_file() and (commands is None or meta.get("commands") == commands)


def adopt(profiles: Path, folder: Path) -> Iterator[str]:
    """Parses each raw table in `profiles` with the details and the trace beside it, and writes its record.

    Args:
        profiles: what `medddpm profile --out` filled; only what it finished is taken.
        folder: figures/records. A record goes to the folder of the card that its profile names; a window's trace goes
            there too, as launches_<setting>_<part>_run<N>.csv.

    Yields:
        a line for each record written.

    Raises:
        BadInput: there is no finished profile, or a step lacks its trace.
    """
    raws = [path for path in sorted(profiles.glob("*_raw.csv.gz")) if _RAW.fullmatch(path.name) and is_finished(path)]
    if not raws:
        raise BadInput(profiles, "holds no finished profile", f"medddpm profile --out {profiles.name}")
    for raw in raws:
        yield from _adopted(raw, folder)


def _adopted(raw: Path, folder: Path) -> Iterator[str]:
    named = _RAW.fullmatch(raw.name)
    assert named
    stem = raw.name.removesuffix("_raw.csv.gz")
    folder = folder / gpu_folder_name(str(read_meta(raw).get("gpu", "cpu")))
    details, trace = (_beside(raw, kind) for kind in ("details", "trace"))
    view = named["part"].partition("-")[0]
    weights = trace if view == "step" else None
    if view == "step" and weights is None:
        raise BadInput(raw, "its trace is missing, which tells how often each launch occurs", "medddpm profile again")
    parsed = parse(raw, named["setting"].upper(), view, details=details, trace=weights)
    meta = origin(parsed, raw)
    written = write_table(parsed.table, folder / f"kernels_{stem}.csv", schemas.KERNELS, meta)
    yield f"{written.name}: {parsed}"
    if view == "window" and trace:
        table = read_table(trace, schemas.TRACE)
        written = write_table(table, folder / f"launches_{stem}.csv", schemas.TRACE, read_meta(trace))
        yield f"{written.name}: {len(table)} launches from the first on"


def _beside(raw: Path, kind: str) -> Path | None:
    path = raw.with_name(raw.name.replace("_raw.", f"_{kind}."))
    return path if is_finished(path) else None
