"""The records by kind: what each kind is measured by, and the sums that tell whether one was edited."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from medddpm.errors import BadInput
from medddpm.runtime.files import opened

SUMS = "SHA256SUMS"
_BOOK = "python -m study book --only {} --measure"
_PROFILE = f"`{_BOOK.format('02')}`, then `03`"
_BENCH = "`python -m study bench --out runs/bench.csv`"

MEASURED_BY: Mapping[str, str] = MappingProxyType(
    {
        "kernels_": _PROFILE,
        "launches_": _PROFILE,
        "opt1_window_run2_": _PROFILE,
        "card.": _PROFILE,
        "training.": f"`{_BOOK.format('01')}`",
        "generative.": f"`{_BOOK.format('04')}`",
        "bench.": f"{_BENCH[:-1]} --rounds 2 --network NAME`",
        "bench_anchors.": f"{_BENCH[:-1]} --rounds 2 --setting accelerate`",
        "bench_other_hosts.": f"{_BENCH[:-1]} --rounds 2 --network monai-unet-batch`",
        "ceilings.": _BENCH,
        "coverage.": "`python -m study coverage --out runs/coverage.csv`",
        "nnunet.": "`PYTHONPATH=tests python -m nnunet_benchmark --out runs/nnunet`",
        "quality": f"`{_BOOK.format('17')}`, then `21`",
        "loss.": f"`{_BOOK.format('17')}`, then `21`",
        "convnext_": f"`{_BOOK.format('18')}`",
        "throughput.": f"`{_BOOK.format('19')}`",
        "endurance.": f"`{_BOOK.format('19')}`",
        "scaling.": f"`{_BOOK.format('20')}`",
        "judge_": "`python -m study judge --out runs/judge`",
        "brains/": "`python -m study trainings --plan models --out runs/models`, then "
        "`python -m study judge --out runs/judge`",
        "networks/": "`medddpm profile study/bench/theirs.py:NAME --tool TOOL --out DIR`",
        "phantom-flair-64/": "`medddpm train --phantom 1024 --contrast flair …`, then `medddpm release`",
        "gpu_tests": "`make test-gpu`",
    }
)
"""By the beginning of the names of a kind's files, or by their folder, its command; the first that fits is the kind."""


def sums(root: Path) -> dict[str, str]:
    """Returns the line of each record in `SHA256SUMS` by its name, as H100/bench.csv, in the file's order.

    Raises:
        BadInput: the file is missing.
    """
    with opened(root / "figures" / "records" / SUMS) as stream:
        lines = stream.read().decode().splitlines()
    return {line.split(maxsplit=1)[1]: line for line in lines}


def kind(name: str) -> str:
    """Returns the kind of a record by its file's name.

    Raises:
        BadInput: it has none.
    """
    for beginning in MEASURED_BY:
        if name.startswith(beginning):
            return beginning
    raise BadInput(name, "a record of no kind", "say in study/records/groups.py what measures it")


def digest(lines: list[str]) -> str:
    """Returns the first 16 digits of the SHA-256 of lines, as `grep … SHA256SUMS | sha256sum` prints it."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()[:16]
