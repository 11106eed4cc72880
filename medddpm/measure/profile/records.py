"""Turns the tables that `medddpm profile` leaves in its folder into records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.measure import schemas
from medddpm.measure.machine import gpu_folder_name
from medddpm.measure.profile.parse import origin, parse
from medddpm.measure.tables import read_meta, read_table, write_table

_PAGE = re.compile(r"(?P<stem>(?P<setting>[a-z0-9]+)_(?P<part>[a-z0-9-]+)_run\d+)_(?P<kind>raw|trace)\.csv\.gz")


UNFINISHED = "unfinished"  # in the description of a table that is being measured, or was when the process ended


def is_finished(table: Path, commands: Sequence[str] | None = None) -> bool:
    """Returns whether a table and then its description were written to the end, by these commands if any are given."""
    try:
        meta = read_meta(table)
    except BadInput:
        return False
    return table.is_file() and not meta.get(UNFINISHED) and (commands is None or meta.get("commands") == commands)


def adopt(profiles: Path, folder: Path) -> Iterator[str]:
    """Parses each raw table in `profiles` with the details and the trace beside it, and writes its record.

    Args:
        profiles: the folder of `medddpm profile --out`; unfinished tables are left out.
        folder: figures/records. A record goes to the folder of the card that its profile names; each trace goes there
            too, as launches_<setting>_<part>_run<N>.csv, even if no counters were measured beside it.

    Yields:
        a line for each record written.

    Raises:
        BadInput: there is no finished profile, or a step lacks its trace.
    """
    matches = (_PAGE.fullmatch(path.name) for path in sorted(profiles.glob("*.csv.gz")))
    pages = [named for named in matches if named and is_finished(profiles / named[0])]
    if not pages:
        raise BadInput(profiles, "holds no finished profile", f"medddpm profile --out {profiles}")
    for named in pages:
        page = profiles / named[0]
        machine = folder / gpu_folder_name(str(read_meta(page).get("gpu", "cpu")))
        if named["kind"] == "raw":
            yield _adopted(page, named, machine)
        else:
            table = read_table(page, schemas.TRACE)
            if table["start_ns"].isna().all():  # of a trace from before the column
                table = table.drop(columns="start_ns")
            written = write_table(table, machine / _launches(named), schemas.TRACE, read_meta(page))
            yield f"{written.name}: {len(table)} launches in order"


def _adopted(raw: Path, named: re.Match[str], folder: Path) -> str:
    """Writes the record of a raw table; returns a line that describes it."""
    details, trace = (_beside(raw, kind) for kind in ("details", "trace"))
    view = named["part"].partition("-")[0]
    weights = trace if view == "step" else None
    if view == "step" and weights is None:
        raise BadInput(raw, "its trace is missing, which tells how often each launch occurs", "medddpm profile again")
    parsed = parse(raw, named["setting"].upper(), view, details=details, trace=weights)
    meta = origin(parsed, raw)
    if weights:
        meta["scaled_by"] |= {"trace": _launches(named), "step": 1}  # as the records name it
    written = write_table(parsed.table, folder / f"kernels_{named['stem']}.csv", schemas.KERNELS, meta)
    return f"{written.name}: {parsed}"


def _launches(named: re.Match[str]) -> str:
    return f"launches_{named['stem']}.csv"


def _beside(raw: Path, kind: str) -> Path | None:
    path = raw.with_name(raw.name.replace("_raw.", f"_{kind}."))
    return path if is_finished(path) else None
