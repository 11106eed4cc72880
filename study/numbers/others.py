"""Numbers of small records: nnU-Net's own benchmark, tests on the cards, the ConvNeXt block, scaling."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medddpm.fast.kernels import cards
from medddpm.measure.tables import read_meta, read_table
from study.bench.sentences import exact
from study.convnext import tables as convnext
from study.records import gpu_tests as of_cards
from study.records import schemas
from study.scaling import tables as scaling


def nnunet_rows(root: Path) -> list[str]:
    """Returns a row a planner and network: nnU-Net's fastest epoch in seconds, the accelerated one, the gain."""
    return [
        f"|`{planner}`, `{network}`|{exact(rows['nnU-Net'])}|{exact(rows['accelerated'])}|{_gain(rows)}|"
        for (planner, network), rows in nnunet(root).items()
    ]


def gpu_tests(root: Path, card: str, record: str, outcome: str) -> str:
    """Returns how many of the tests that need a GPU passed, or were skipped: "453"."""
    table = read_table(_folder(root, card) / f"{record}.csv", schemas.GPU_TESTS)
    return str(table.groupby("outcome")["tests"].sum()[outcome])


def gpu_tests_day(root: Path, card: str, record: str) -> str:
    """Returns the day on which they ran: "28 November"."""
    day = pd.Timestamp(read_meta(_folder(root, card) / f"{record}.csv")["date"])
    return f"{day.day} {day.month_name()}"


def tests_on_cards(root: Path) -> list[str]:
    """Returns a row a card, or several of a kind: how their tests ended, what was skipped, the day and versions."""
    return of_cards.account(root)


def tests_by_file(root: Path) -> list[str]:
    """Returns a row a file of tests: how they ended on each card, "–" where the card's run is older than the file."""
    ran = of_cards.by_file(root)
    ended = ran.apply(lambda row: ", ".join(f"{count} {how}" for how, count in row.items() if count), axis="columns")
    table = ended.unstack("card")[ran.index.unique("card")].fillna("–")
    return [f"|`{file}`|{'|'.join(cells)}|" for file, cells in zip(table.index, table.to_numpy(), strict=True)]


def card_rows(_root: Path) -> list[str]:
    """Returns a row a generation of cards: what runs on it, and on which card that was tested."""
    return cards.table().splitlines()[2:]


def convnext_block(root: Path, other: str) -> str:
    """Returns the best CUDA block by hand divided by another version of it, with 64 images on the H100: "3.2"."""
    took = convnext.times(convnext.recorded(root, "convnext_kernels")["H100"], "block", 64)["graph_us"]
    return f"{took[['fused', 'tensor', 'tensor, async']].min() / took[other]:.1f}"


def weak_scaling(root: Path, gpus: str) -> str:
    """Returns the speed of several H100s that train under FAST in percent of as many times one's: "98"."""
    steps = scaling.as_trained(scaling.efficiency(scaling.recorded(root)["H100"]))
    which = "network == 'med-ddpm' and setting == 'FAST' and micro_steps == 2 and gradient_dtype == 'fp32'"
    return f"{steps.query(which).set_index('gpus')['weak'][int(gpus)]:.0f}"


def nnunet(root: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Returns the fastest epochs in seconds by planner and network."""
    record = read_table(_folder(root, "H100") / "nnunet.csv", schemas.NNUNET)
    epochs: dict[tuple[str, str], dict[str, float]] = {}
    for row in record.to_dict("records"):
        which = "accelerated" if "Accelerated" in row["trainer"] else "nnU-Net"
        epochs.setdefault((row["planner"], row["network"]), {})[which] = row["fastest_s"]
    return epochs


def _gain(rows: dict[str, float]) -> str:
    return f"{rows['nnU-Net'] / rows['accelerated']:.2f}"


def _folder(root: Path, card: str) -> Path:
    return root / "figures" / "records" / card
