"""Judges sets of samples: trains the segmenter, makes the ranges of held-out heads, and writes tables of verdicts.

Ranges and segmenter are files, so that they are committed before the first sample is judged; a later call takes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from medddpm.data.grid import Size
from medddpm.data.tissues import Contrast
from medddpm.errors import BadInput
from medddpm.measure.machine import machine_meta
from medddpm.measure.tables import check_table, table_of, write_table
from medddpm.quality import distances
from medddpm.quality.intervals import bootstrap
from medddpm.quality.measures import Measured, Number, measure, nearest
from medddpm.quality.metrics import VolumeSet, compare
from medddpm.quality.tissues import SMALLEST_STEP, WIDTH, features, segment
from medddpm.runtime.processes import pick_device
from study.brains import segmenters
from study.brains.ranges import Ranges, ranges_of, relative_texture
from study.brains.samples import read_samples
from study.brains.strangers import strangers_dice
from study.brains.subjects import RANGES, TEST, TRAINED, Subjects, of_names, subjects
from study.brains.use import labelled_samples, use
from study.records import schemas_brains as schemas

SEGMENTER_FILE, RANGES_FILE = "segmenter.safetensors", "ranges.json"
TABLES = {
    "verdicts.csv": schemas.VERDICTS,
    "wholes.csv": schemas.WHOLES,
    "sets.csv": schemas.SETS,
    "use.csv": schemas.USE,
}
"""The tables, in the order in which they are written, each as soon as its rows are known."""

CONTROL = "heads"
"""The name, among the sets of samples, of held-out heads that are judged in the same way."""

SET_HEADS = 32  # held-out heads that a set is compared with: a pair's MS-SSIM at 64³ takes a third of a CPU second
SET_METRICS = ("ms_ssim_between", "diversity", "diversity_reference", "mmd_linear", "mmd_gaussian", "frechet")


@dataclass(frozen=True)
class Options:
    """What a call judges, and by what.

    Args:
        samples: of `read_samples`; none makes segmenter and ranges alone.
        contrasts: the samples' channels, in order.
        side: of a volume, a multiple of 8.
        segmenter: a file of an earlier call; None trains one.
        ranges: likewise; None makes them.
        heads: that the segmenter is trained on.
        tested: held-out heads that the segmenter is tested on.
        steps: of its training.
        width: of its network.
        batch: volumes a step.
        held_out: heads of the ranges.
        trained: heads of seed `TRAINED` among which copies are looked for, those that the model was trained on.
        use_steps: of each training of `use`; 0 leaves it out.
        use_seeds: trainings of each kind.
        device: "auto", "cuda" or "cpu".
    """

    samples: tuple[Path, ...] = ()
    contrasts: tuple[Contrast, ...] = ("t1",)
    side: int = 64
    segmenter: Path | None = None
    ranges: Path | None = None
    heads: int = 512
    tested: int = 32
    steps: int = 3000
    width: int = WIDTH
    batch: int = 4
    held_out: int = 128
    trained: int = 768
    use_steps: int = 0
    use_seeds: int = 2
    device: str = "auto"

    @property
    def size(self) -> Size:
        """(H, W, D)."""
        return self.side, self.side, self.side


def judge(options: Options, out: Path, command: Sequence[str]) -> pd.DataFrame:
    """Judges; writes `SEGMENTER_FILE`, `RANGES_FILE` and `TABLES` to a folder.

    Args:
        options: what, and by what.
        out: the folder.
        command: the command line, for the record.

    Returns:
        the table of wholes (schema `WHOLES`).

    Raises:
        BadInput: samples, segmenter or ranges do not fit the options, or a table cannot be written.
    """
    for name in TABLES:
        check_table(out / name)
    if options.side % SMALLEST_STEP:
        raise BadInput("--size", f"{options.side} is no multiple of {SMALLEST_STEP}", "give one")
    ranges = None if options.ranges is None else Ranges.read(options.ranges)
    device = pick_device(options.device)
    sets = {path.stem: read_samples(path, options.size, options.contrasts) for path in options.samples}
    if len(sets) < len(options.samples) or CONTROL in sets:
        raise BadInput("--samples", f"two sets have one name, or one is called {CONTROL}", "rename it")
    meta = {**machine_meta(command, options.device), "contrasts": list(options.contrasts), "size": list(options.size)}
    out.mkdir(parents=True, exist_ok=True)
    # Heads that made neither ranges nor segmenter test the segmenter, and are judged beside the samples: how many pass
    # says what to expect.
    tested = options.tested if sets or options.segmenter is None else 1
    most = max([tested, *(len(names) for _, names in sets.values())])
    test = subjects(most, options.size, options.contrasts, TEST)
    network, description = _segmenter(options, out, device, test.first(tested))
    meta["segmenter"] = vars(description)
    held_out = subjects(options.held_out, options.size, options.contrasts, RANGES)
    trained = subjects(options.trained, options.size, options.contrasts, TRAINED)
    if ranges is None:
        numbers = _numbers(held_out, network, options.contrasts, trained.images.to(device))[0]
        ranges = ranges_of(numbers, strangers_dice(held_out.tissues))
        ranges.write(out / RANGES_FILE, {**meta, "seed": RANGES, "held_out": options.held_out})
        print(f"{out / RANGES_FILE}: {len(ranges.ranges)} ranges of {options.held_out} heads", flush=True)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}

    def write(*names: str) -> None:
        for name in names:
            if rows[name]:
                write_table(table_of(rows[name], TABLES[name]), out / name, TABLES[name], meta)

    asked = {
        name: dataclasses.replace(of_names(names, options.size, options.contrasts), images=images)
        for name, (images, names) in sets.items()
    }
    for name, sampled in {**asked, CONTROL: test}.items() if sets else ():
        verdicts, wholes = judged(sampled, network, options.contrasts, ranges, trained, device)
        rows["verdicts.csv"] += [{"samples": name, **row} for row in verdicts]
        rows["wholes.csv"] += [{"samples": name, **row} for row in wholes]
        print(f"{name}: {summary(wholes)}", flush=True)
    write("verdicts.csv", "wholes.csv")
    compared = _compared(asked, test, held_out.first(SET_HEADS), network, options.contrasts, device)
    for name, part in compared:
        rows["sets.csv"] += [{"samples": name, **row} for row in part]
    write("sets.csv")
    for name, sampled in asked.items() if options.use_steps else ():
        alike = trained.first(len(sampled.images))
        table = use(
            labelled_samples(sampled.images, sampled.masks, network),
            (alike.images, alike.tissues),
            (held_out.images, held_out.tissues),
            steps=options.use_steps, seeds=range(options.use_seeds), width=options.width, batch=options.batch,
            device=device,
        )  # fmt: skip
        rows["use.csv"] += [{"samples": name, **row} for row in _rows(table)]
        write("use.csv")
    return table_of(rows["wholes.csv"], schemas.WHOLES)


def judged(
    volumes: Subjects,
    network: nn.Module,
    contrasts: Sequence[Contrast],
    ranges: Ranges,
    trained: Subjects,
    device: torch.device,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Judges volumes; returns the rows of `VERDICTS` and of `WHOLES` without the column samples."""
    numbers, alike = _numbers(volumes, network, contrasts, trained.images.to(device))
    numbers = relative_texture(numbers, ranges.texture)
    verdicts, wholes = [], []
    for row in ranges.judged(numbers):
        name = volumes.names[row["volume"]]
        nearest_name = trained.names[int(alike[row["volume"]])]
        note = (
            f"head of seed {nearest_name.seed}, subject {nearest_name.subject}" if row["metric"] == "nearest" else None
        )
        verdicts.append({**_without_volume(row), **name._asdict(), "note": note})
    for row in ranges.verdicts(numbers):
        wholes.append({**_without_volume(row), **volumes.names[row["volume"]]._asdict()})
    return verdicts, wholes


@dataclass(frozen=True)
class Reference:
    """Held-out heads that sets of volumes are compared with; see `of_set`.

    Args:
        volumes: the heads.
        features: those of the segmenter's encoder, of `medddpm.quality.tissues.features`.
    """

    volumes: VolumeSet
    features: Tensor

    @classmethod
    def of(cls, images: Tensor, network: nn.Module) -> Reference:
        """Measures heads (M, C, D, W, H), once for all sets."""
        return cls(VolumeSet(images), features(network, images))


def of_set(
    images: Tensor, reference: Reference, network: nn.Module, contrasts: Sequence[Contrast], resamples: int = 1000
) -> list[dict[str, Any]]:
    """Compares a set of volumes with held-out heads; returns the rows of `SETS` without the column samples.

    The Fréchet distance and the squared MMD (Gaussian kernel) of the features of the segmenter's encoder stand beside
    those of patch statistics and of voxels.

    Args:
        images: (N, C, D, W, H), on the reference's device.
        reference: the held-out heads.
        network: the segmenter.
        contrasts: the channels.
        resamples: bootstrap draws of each interval.
    """
    table = compare(
        VolumeSet(images), reference.volumes, metrics=SET_METRICS, channels=list(contrasts), resamples=resamples
    )  # fmt: skip
    rows = _rows(table)
    one, two = features(network, images), reference.features
    sizes = len(one), len(two)
    statistics = {"frechet_segmenter": (distances.frechet(one, two, paired=False), (0.0, np.inf))}
    if min(sizes) > 1:
        kernels = distances.gaussian_kernels(*distances.grams(one, two))
        statistics["mmd_segmenter"] = (distances.mmd(*kernels, paired=False), (-np.inf, np.inf))
    for metric, (statistic, bounds) in statistics.items():
        estimate = bootstrap(statistic, sizes, resamples=resamples, bounds=bounds)
        rows.append({"metric": metric, "channel": "all", **vars(estimate), "n": len(one)})
    return rows


def _compared(
    sets: Mapping[str, Subjects],
    test: Subjects,
    reference: Subjects,
    network: nn.Module,
    contrasts: Sequence[Contrast],
    device: torch.device,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the rows of `of_set` of each set, and of as many heads, which are measured once for sets of one size."""
    if not sets:
        return
    known = Reference.of(reference.images.to(device), network)
    heads: dict[int, list[dict[str, Any]]] = {}
    for name, sampled in sets.items():
        count = len(sampled.images)
        yield name, of_set(sampled.images.to(device), known, network, contrasts)
        if count not in heads:
            heads[count] = of_set(test.images[:count].to(device), known, network, contrasts)
        yield f"heads for {name}", heads[count]


def summary(wholes: Sequence[Mapping[str, Any]]) -> str:
    """Returns how many volumes pass each group."""
    table = pd.DataFrame(wholes).groupby("group", sort=False)["passes"].agg(["sum", "count"])
    return ", ".join(f"{group} {row['sum']} of {row['count']}" for group, row in table.iterrows())


def _numbers(
    volumes: Subjects, network: nn.Module, contrasts: Sequence[Contrast], trained: Tensor
) -> tuple[list[Number], Tensor]:
    """Returns all numbers of volumes, and the place of the training subject that each is most like."""
    seen = segment(network, volumes.images)
    measured = Measured(volumes.images, volumes.masks, seen, volumes.voxel, volumes.tissues)
    alike, correlation = nearest(volumes.images.to(trained.device), trained)
    numbers = measure(measured, tuple(contrasts))
    numbers += [Number(i, "nearest", "all", "all", float(value)) for i, value in enumerate(correlation)]
    return numbers, alike


def _segmenter(
    options: Options, out: Path, device: torch.device, test: Subjects
) -> tuple[nn.Module, segmenters.Description]:
    if options.segmenter is None:
        network, description = segmenters.train(
            options.contrasts, options.size, device, test, heads=options.heads, steps=options.steps,
            width=options.width, batch=options.batch,
        )  # fmt: skip
        segmenters.write(network, description, out / SEGMENTER_FILE)
        dice = ", ".join(f"{tissue} {row['value']:.3f}" for tissue, row in description.dice.items())
        print(f"{out / SEGMENTER_FILE}: Dice on {description.tested} held-out heads: {dice}", flush=True)
        return network, description
    network, description = segmenters.read(options.segmenter)
    if (description.contrasts, description.size) != (options.contrasts, options.size):
        trained = f"{', '.join(description.contrasts)} at {' × '.join(map(str, description.size))}"
        raise BadInput(options.segmenter, f"it was trained on {trained}", "give --contrasts and --size so, or another")
    return network.to(device), description


def _without_volume(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "volume"}


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
