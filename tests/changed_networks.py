"""Every network with one module changed in every way, accelerated before or after: which computes something else.

    PYTHONPATH=tests python tests/changed_networks.py [NETWORK ...]

An hour or more on two cores. It prints what is wrong, and ends with 1 if anything is. `make test` tries some, and
`make test-all` more.
"""

from __future__ import annotations

import sys

import torch
from helpers.changes import faults
from helpers.more_networks import MORE
from helpers.networks import NETWORKS
from tqdm import tqdm

NAMES = ("UNet3D", *NETWORKS, *MORE)


def main(*names: str) -> int:
    """Tries all cases of these networks, by default of all. Returns the exit status."""
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"no network {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    torch.set_num_threads(1)
    tried = wrong = 0
    for name in names or NAMES:
        for case, fault in tqdm(faults(name), desc=name, unit=" cases"):
            tried += 1
            wrong += bool(fault)
            if fault:
                tqdm.write(f"{case}: {fault}")
    print(f"{tried} tried, {wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
