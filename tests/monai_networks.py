"""MONAI's own tests of its networks, with every network accelerated: which fail only then.

MONAI's packages come without its tests, so this takes a checkout of MONAI, of the release that is installed:

    git clone --depth 1 --branch 1.6.1 https://github.com/Project-MONAI/MONAI ../MONAI
    python tests/monai_networks.py ../MONAI [what pytest takes, such as -k unet]

It runs them twice, prints the names of those that fail only with accelerated networks, and ends with 1 if there is one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

TESTS = ("tests/networks/nets", "tests/networks/blocks")
PLUGIN = "monai_networks"  # this module, as pytest loads it in the second run


def main(checkout: Path, *options: str) -> int:
    """Runs the tests of `checkout` plain and accelerated, and prints the difference. Returns the exit status."""
    paths = [path for path in TESTS if (checkout / path).is_dir()]
    if not paths:
        print(f"{checkout}: no {' or '.join(TESTS)} there; give a checkout of MONAI")
        return 2
    plain, fast = (outcomes(checkout, [*extra, *paths, *options]) for extra in ([], ["-p", PLUGIN]))
    only = sorted(name for name, failed in fast.items() if failed and not plain.get(name, True))
    print(f"{len(fast)} tests; {sum(plain.values())} fail without the fast path; {len(only)} fail only on it")
    print(*only, sep="\n", end="\n" if only else "")
    return int(bool(only) or not fast)


def outcomes(checkout: Path, arguments: list[str]) -> dict[str, bool]:
    """Runs pytest in `checkout`; returns by name whether each test that was not skipped failed."""
    here = Path(__file__).resolve().parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (checkout.resolve(), here, here.parent)))}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={record}", *arguments]
        subprocess.run(command, cwd=checkout, env=environment, check=False)
        if not record.exists():
            return {}
        cases = ElementTree.parse(record).iter("testcase")
        return {
            f"{case.get('classname')}.{case.get('name')}": any(e.tag in ("failure", "error") for e in case)
            for case in cases
            if case.find("skipped") is None
        }


def pytest_configure() -> None:
    """In the second run: every network of MONAI is accelerated as soon as it is made."""
    import monai.networks.nets as nets
    from torch import nn

    for kind in {k for k in vars(nets).values() if isinstance(k, type) and issubclass(k, nn.Module)}:
        if "__init__" in vars(kind):
            kind.__init__ = accelerating(kind.__init__)  # type: ignore[method-assign]


def accelerating(make: Callable[..., None]) -> Callable[..., None]:
    """Wraps a network's `__init__`; of those that run inside one another, the outermost accelerates."""

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        from medddpm import accelerate, restore

        _making.append(self)
        try:
            make(self, *args, **kwargs)
        finally:
            _making.pop()
        if not _making:
            accelerate(restore(self), report=None)  # a part that was made before may be accelerated by itself

    return made


_making: list[Any] = []

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]) if len(sys.argv) > 1 else __doc__)
