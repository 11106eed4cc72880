"""The program that `python -m study convnext` starts for the counters: ncu over every version; FOLDER/counters.json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.measure.profile import ncu
from medddpm.runtime.exits import end
from medddpm.runtime.files import replacing, write_json
from medddpm.runtime.processes import pick_device
from study.convnext.counted import METRICS, counted
from study.convnext.versions import Case
from study.convnext.worker import in_order

COUNTERS, PAGE = "counters", "counters_raw.csv"


def main(argv: Sequence[str] | None = None) -> int:
    """Counts the launches of every version by ncu; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.convnext.counters", description=__doc__)
    top.add_argument("--folder", type=Path, required=True, help="of the result")
    top.add_argument("--toy", action="store_true", help="the smallest sizes")
    top.add_argument("--device", default="auto", help="auto, cuda")
    arguments = top.parse_args(argv)
    program = [sys.executable, "-m", "study.convnext.worker", "--part", "kernels", "--mark"]
    program += ["--folder", str(arguments.folder), "--device", arguments.device]
    collection = ncu.Collection(
        "ncu",
        [*program, *(["--toy"] if arguments.toy else [])],
        ["--profile-from-start", "off", "--metrics", ",".join(METRICS), "--force-overwrite"],
    )
    page = arguments.folder / PAGE
    try:
        text = collection.text()
        with replacing(page) as temporary:
            temporary.write_text(text, encoding="utf-8")
        rows = counted_rows(page, in_order(arguments.toy, pick_device(arguments.device)))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    write_json(arguments.folder / f"{COUNTERS}.json", {"rows": rows})
    return 0


def counted_rows(page: Path, order: Sequence[tuple[Case, str]]) -> list[dict[str, object]]:
    """Makes a row of counters for each version from ncu's raw page, in the order in which the versions ran."""
    return [
        {"operator": case.operator, "batch": case.batch, "size": case.size, "stride": case.stride,
         "version": version, **counts}
        for (case, version), counts in zip(order, counted(page, len(order)), strict=True)
    ]  # fmt: skip


if __name__ == "__main__":
    end(main())
