"""`study judge` at toy size: a segmenter of a minute, few heads, and volumes that are no brains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from medddpm.data.grid import Size
from medddpm.data.heads import head_subject
from medddpm.data.tissues import Contrast
from medddpm.errors import BadInput
from medddpm.measure.tables import read_table
from medddpm.quality.tissues import TUMOUR, segment, tissue_dice, train_segmenter
from study.brains import judge as judging
from study.brains import segmenters
from study.brains.judge import CONTROL, RANGES_FILE, SEGMENTER_FILE, Options, _numbers, judge, judged
from study.brains.ranges import Ranges, ranges_of
from study.brains.samples import read_samples, write_samples
from study.brains.strangers import strangers_dice
from study.brains.subjects import HELD_OUT, RANGES, SEGMENTER, TEST, TRAINED, HeadName, Subjects, subjects
from study.brains.use import labelled_samples, use
from study.cli.main import main
from study.records import schemas_brains as schemas

SIZE = (32, 32, 32)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    known = subjects(16, SIZE, ("t1",), SEGMENTER, processes=1)
    return train_segmenter(known.images, known.tissues, steps=80, batch=2, width=8)


@pytest.fixture(scope="module")
def trained() -> Subjects:
    return subjects(6, SIZE, ("t1",), TRAINED, processes=1)


@pytest.fixture(scope="module")
def fresh() -> Subjects:
    return subjects(8, SIZE, ("t1",), HELD_OUT, processes=1)


@pytest.fixture(scope="module")
def ranges(network: torch.nn.Module, trained: Subjects) -> Ranges:
    held_out = subjects(24, SIZE, ("t1",), RANGES, processes=1)
    numbers, _ = _numbers(held_out, network, ("t1",), trained.images)
    return ranges_of(numbers, strangers_dice(held_out.tissues))


def passing(volumes: Subjects, network: torch.nn.Module, trained: Subjects, ranges: Ranges) -> dict[str, float]:
    _, wholes = judged(volumes, network, ("t1",), ranges, trained, CPU)
    groups = {row["group"] for row in wholes}
    return {group: float(np.mean([row["passes"] for row in wholes if row["group"] == group])) for group in groups}


def changed(volumes: Subjects, images: Tensor) -> Subjects:
    return dataclasses.replace(volumes, images=images)


def flat(volumes: Subjects) -> Tensor:
    """A grey mass with the lesion of the head."""
    images = volumes.images.clone()
    noise = 0.03 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    healthy = volumes.masks[:, None] == 1
    return torch.where(healthy, images[healthy].mean() + noise, images)


@pytest.mark.long
def test_the_segmenter_knows_heads_that_it_has_not_seen(network: torch.nn.Module, fresh: Subjects) -> None:
    dice = tissue_dice(segment(network, fresh.images).labels, fresh.tissues).nanmean(0)
    assert dice[[0, 3, 4]].min() > 0.6


@pytest.mark.long
def test_fresh_heads_pass_and_what_is_no_brain_does_not(
    network: torch.nn.Module, fresh: Subjects, trained: Subjects, ranges: Ranges
) -> None:
    heads = passing(fresh, network, trained, ranges)
    assert heads["anatomy"] >= 0.6
    assert heads["image"] >= 0.6
    blurred = torch.from_numpy(gaussian_filter(fresh.images.numpy(), (0, 0, 2, 2, 2)))
    for images in (flat(fresh), blurred):
        assert passing(changed(fresh, images), network, trained, ranges)["image"] == 0
    grey = fresh.images + 0.2 * torch.rand(fresh.images.shape, generator=torch.Generator().manual_seed(0))
    assert passing(changed(fresh, grey), network, trained, ranges)["image"] == 0


@pytest.mark.long
def test_other_heads_in_a_masks_place_fail_by_their_anatomy(
    network: torch.nn.Module, fresh: Subjects, trained: Subjects, ranges: Ranges
) -> None:
    verdicts, _ = judged(changed(fresh, fresh.images.roll(1, 0)), network, ("t1",), ranges, trained, CPU)
    expected, _ = judged(fresh, network, ("t1",), ranges, trained, CPU)
    wrong, right = (
        np.mean([row["value"] for row in rows if row["metric"] == "dice" and row["tissue"] == "white"])
        for rows in (verdicts, expected)
    )
    assert wrong < right - 0.05


@pytest.mark.long
def test_a_copy_of_a_training_subject_is_named(
    network: torch.nn.Module, fresh: Subjects, trained: Subjects, ranges: Ranges
) -> None:
    images = fresh.images.clone()
    images[3] = trained.images[5]
    verdicts, _ = judged(changed(fresh, images), network, ("t1",), ranges, trained, CPU)
    rows = [row for row in verdicts if row["metric"] == "nearest"]
    assert (rows[3]["within"], rows[3]["note"]) == (0, "head of seed 0, subject 5")
    assert rows[3]["value"] == pytest.approx(1, abs=1e-4)
    assert {row["note"] for row in verdicts if row["metric"] != "nearest"} == {None}


def test_tissues_agree_with_masks_and_with_what_a_head_is_made_of(fresh: Subjects) -> None:
    assert torch.equal(fresh.tissues > 0, fresh.masks > 0)
    assert torch.equal(fresh.tissues == TUMOUR, fresh.masks == 2)
    head = head_subject(0, SIZE, HELD_OUT)
    millilitres = float(fresh.voxel**3) / 1000
    white = float((fresh.tissues[0] == 4).sum()) * millilitres
    assert white == pytest.approx(float(head.shares[3].sum()) * millilitres, rel=0.15)


def test_a_stranger_fits_less_than_the_same_head(fresh: Subjects) -> None:
    alike = [n.value for n in strangers_dice(fresh.tissues[:1].expand(2, -1, -1, -1)) if np.isfinite(n.value)]
    assert min(alike) == 1
    rows = strangers_dice(fresh.tissues[:4])
    assert len(rows) == 16
    assert max(n.value for n in rows) < 0.95


@pytest.mark.long
def test_what_samples_are_good_for(network: torch.nn.Module, fresh: Subjects, trained: Subjects) -> None:
    samples = labelled_samples(fresh.images, fresh.masks, network)
    assert torch.equal(samples[1] == TUMOUR, fresh.masks == 2)
    assert torch.equal(samples[1] == 0, fresh.masks == 0)
    test = (trained.images[:4], trained.tissues[:4])
    heads = (trained.images, trained.tissues)
    table = use(samples, heads, test, steps=2, seeds=(0, 1), width=8, batch=1)
    assert table.groupby("trained_on")["volumes"].first().to_dict() == {"heads": 6, "samples": 8, "both": 14}
    assert set(table["seed"]) == {0, 1}
    alone = table[table["trained_on"] == "heads"]
    assert alone["ratio"].dropna().eq(1).all()


def test_samples_are_read_from_arrays_and_from_volumes_alike(tmp_path: Path, fresh: Subjects) -> None:
    write_samples(tmp_path / "set.npz", fresh.images[:2], fresh.names[:2])
    images, names = read_samples(tmp_path / "set.npz", SIZE, ("t1",))
    assert names == (HeadName(1, 0), HeadName(1, 1))
    assert (images - fresh.images[:2]).abs().max() < 1e-3
    folder = tmp_path / "volumes"
    folder.mkdir()
    for name, image in zip(names, fresh.images, strict=False):
        volume = ((image[0] + 1) / 2).numpy().transpose(2, 1, 0)
        nib.save(nib.Nifti1Image(volume, np.diag([5.0, 5, 5, 1])), folder / f"head-{name.seed}-{name.subject}.nii.gz")
    again, others = read_samples(folder, SIZE, ("t1",))
    assert others == names
    assert torch.allclose(again, fresh.images[:2], atol=1e-5)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"some words"])
def test_a_broken_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"set\.npz"):
        read_samples(tmp_path / "set.npz", SIZE, ("t1",))


def test_samples_of_another_size_or_contrast_are_refused(tmp_path: Path, fresh: Subjects) -> None:
    write_samples(tmp_path / "set.npz", fresh.images[:1], fresh.names[:1])
    for size, contrasts in (((16, 16, 16), ("t1",)), (SIZE, ("t1", "t2"))):
        with pytest.raises(BadInput, match="images of shape"):
            read_samples(tmp_path / "set.npz", size, contrasts)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no sample"):
        read_samples(tmp_path / "empty", SIZE, ("t1",))


TOY = ["--size", "16", "--width", "8", "--held-out", "5", "--trained", "3", "--device", "cpu"]


@pytest.mark.long
def test_the_command_makes_segmenter_and_ranges_and_later_judges_with_them(tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert main(["judge", *TOY, "--heads", "4", "--steps", "2", "--out", str(first)]) == 0
    network, description = segmenters.read(first / SEGMENTER_FILE)
    assert (description.heads, description.seed, description.steps) == (4, SEGMENTER, 2)
    assert next(network.parameters()).dtype == torch.float32
    assert not (first / "verdicts.csv").exists()
    known = subjects(2, (16, 16, 16), ("t1",), HELD_OUT, processes=1)
    write_samples(tmp_path / "good.npz", known.images, known.names)
    write_samples(tmp_path / "flat.npz", flat(known), known.names)
    given = ["--segmenter", str(first / SEGMENTER_FILE), "--ranges", str(first / RANGES_FILE), "--use-steps", "1"]
    sets = [word for name in ("good", "flat") for word in ("--samples", str(tmp_path / f"{name}.npz"))]
    out = tmp_path / "second"
    assert main(["judge", *TOY, *given, *sets, "--out", str(out)]) == 0
    verdicts = read_table(out / "verdicts.csv", schemas.VERDICTS)
    assert set(verdicts["samples"]) == {"good", "flat", CONTROL}
    assert {"volume", "surface", "dice", "texture", "spectrum", "nearest", "background"} <= set(verdicts["metric"])
    wholes = read_table(out / "wholes.csv", schemas.WHOLES)
    assert wholes[wholes["group"] == "image"]["samples"].value_counts().to_dict() == {"good": 2, "flat": 2, CONTROL: 32}
    compared = read_table(out / "sets.csv", schemas.SETS)
    assert {"heads for good", "good"} <= set(compared["samples"])
    assert {"diversity", "frechet", "frechet_segmenter", "mmd_segmenter"} <= set(compared["metric"])
    assert set(read_table(out / "use.csv", schemas.USE)["trained_on"]) == {"heads", "samples", "both"}


@pytest.mark.parametrize("interrupted", ["of_set", "use"])
def test_an_interrupted_call_leaves_the_tables_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    size, seeds = (16, 16, 16), list[int]()
    known = subjects(2, size, ("t1",), HELD_OUT, processes=1)
    write_samples(tmp_path / "set.npz", known.images, known.names)

    def noted(count: int, size: Size, contrasts: Sequence[Contrast], seed: int) -> Subjects:
        seeds.append(seed)
        return subjects(count, size, contrasts, seed, processes=1)

    monkeypatch.setattr(judging, "subjects", noted)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, interrupted, interrupt)
    options = Options(
        (tmp_path / "set.npz",), side=16, heads=2, tested=2, steps=1, width=8, batch=1, held_out=5, trained=2,
        use_steps=1, device="cpu",
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        judge(options, tmp_path / "out", ["judge"])
    written = {path.name for path in (tmp_path / "out").glob("*.csv")}
    assert written == {"verdicts.csv", "wholes.csv"} | ({"sets.csv"} if interrupted == "use" else set())
    assert seeds == [TEST, RANGES, TRAINED]  # the segmenter's own are drawn where it is trained


@pytest.mark.long
def test_a_segmenter_of_other_volumes_is_refused(tmp_path: Path, network: torch.nn.Module) -> None:
    description = segmenters.Description(("t1",), SIZE, 8, 16, SEGMENTER, 60, 0, 7002, {})
    file = tmp_path / "segmenter.safetensors"
    segmenters.write(network, description, file)
    assert segmenters.read(file)[1] == description
    options = Options(contrasts=("t2",), side=32, segmenter=file, device="cpu")
    with pytest.raises(BadInput, match="it was trained on t1 at 32 × 32 × 32"):
        judge(options, tmp_path / "out", ["judge"])
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(BadInput, match="damaged"):
        segmenters.read(file)
