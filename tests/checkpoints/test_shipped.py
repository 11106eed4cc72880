"""The model that travels: small, told of truly, the same volumes from a seed everywhere, and a head with its lesion.

Samples are compared with `baseline/NAME.csv`. After new weights, run this file as a program to write that anew.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import judge
from helpers.repository import ROOT
from safetensors import safe_open

from medddpm.checkpoints import shipped
from medddpm.checkpoints.files import load_checkpoint, read_checkpoint
from medddpm.checkpoints.model_card import Terms
from medddpm.cli.main import main
from medddpm.data.heads import Heads
from medddpm.data.phantom import write_phantom
from medddpm.errors import BadInput
from medddpm.sampling import recommended
from medddpm.training.release import card_of
from study.brains.subjects import HELD_OUT, HeadName, of_names

BASELINE = ROOT / "tests" / "baseline"
HEAD = HeadName(HELD_OUT, 0)
MASK = BASELINE / "head-64-mask.nii.gz"
"""Of `HEAD`, which no training saw; kept as a file, so that every machine has it to the last voxel."""

CONTRASTS = ("t1", "t2", "flair")
PLAIN = {"format", "about", "digest"}  # metadata that is no JSON
SEED = 0
CLOSE = 1e-4  # of intensities in [0, 1]
OWN = Terms(license="apache-2.0", author="the authors of `medddpm`")
"""Of the models that travel, and of no others."""


def draw(out: Path, name: str) -> np.ndarray:
    """Samples for MASK with `medddpm sample` on a CPU, (3, H, W, D) in [0, 1]; the default model as a user would."""
    command = [sys.executable, "-m", "medddpm", "sample", "--mask", str(MASK), "--out", str(out), "--device", "cpu"]
    which = [] if name == shipped.DEFAULT else ["--checkpoint", str(shipped.weights(name))]
    subprocess.run([*command, *which, "--seed", str(SEED), "--quiet"], check=True)
    files = [out.with_stem(f"{out.stem}_{contrast}") for contrast in CONTRASTS]
    return np.stack([nibabel.load(file).get_fdata(dtype=np.float32) for file in files])


def coarse(volumes: np.ndarray) -> pd.DataFrame:
    """Of each block of 8 × 8 × 8 voxels its mean, and one voxel as it is."""
    blocks = volumes.reshape(3, 8, 8, 8, 8, 8, 8).transpose(0, 1, 3, 5, 2, 4, 6).reshape(3 * 512, 512)
    return pd.DataFrame({"mean": blocks.mean(axis=1, dtype=np.float64), "voxel": blocks[:, 292]})  # (4, 4, 4) in it


def verdicts(images: torch.Tensor) -> dict[str, bool]:
    """Returns whether volumes (3, D, W, H) in [-1, 1] drawn for MASK pass for a head, by the committed judge."""
    drawn = replace(of_names([HEAD], (64, 64, 64), CONTRASTS, processes=1), images=images[None])
    return {row["group"]: bool(row["passes"]) for row in judge.verdicts("all", drawn, CONTRASTS)}


def test_it_draws_for_a_brats_mask_of_smaller_voxels(tmp_path: Path) -> None:
    """On the mask's grid, in LPS with a wide field of view: dark outside the brain, a brain within."""
    head = nibabel.load(MASK)
    labels = np.asarray(head.dataobj).repeat(2, 0).repeat(2, 1).repeat(2, 2)[::-1, ::-1]
    half = float(head.affine[0, 0]) / 2
    prepared = np.pad(np.array([0, 4, 3], np.uint8)[labels], ((40, 0), (30, 0), (0, 0)))
    affine = np.diag([-half, -half, half, 1.0])
    nibabel.save(nibabel.Nifti1Image(prepared, affine), tmp_path / "case_seg.nii.gz")
    words = ["sample", "--mask", str(tmp_path / "case_seg.nii.gz"), "--out", str(tmp_path / "v.nii.gz")]
    assert main([*words, "--device", "cpu", "--sampler", "ddim", "--steps", "2", "--quiet"]) == 0
    drawn = nibabel.load(tmp_path / "v_t1.nii.gz")
    assert drawn.shape == prepared.shape
    assert np.allclose(drawn.affine, affine)
    volume, brain = drawn.get_fdata(dtype=np.float32), prepared > 0
    inside, outside = volume[brain], volume[~brain]
    assert np.median(outside) < 0.01
    assert np.percentile(inside, 5) > np.percentile(outside, 95)


def test_there_is_a_default_and_it_is_named_where_another_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert shipped.DEFAULT in shipped.names()
    assert shipped.weights() == shipped.weights(shipped.DEFAULT)
    with pytest.raises(Exception, match=f"no such model.*{shipped.DEFAULT}"):
        shipped.weights("nothing")


def test_a_damaged_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(shipped.weights().read_bytes())
    content[-1000] ^= 1
    (tmp_path / f"{shipped.DEFAULT}.safetensors").write_bytes(content)
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    with pytest.raises(BadInput, match="not the file that came with the package"):
        shipped.weights()


def test_the_package_is_built_with_all_that_travels() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["medddpm.checkpoints.shipped"]
    for name in shipped.names():
        for file in (shipped.weights(name), shipped.record(name), shipped.card(name)):
            assert any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns)


@pytest.fixture(params=shipped.names())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_it_is_small_and_says_what_it_is(name: str) -> None:
    path = shipped.weights(name)
    assert path.stat().st_size <= shipped.LARGEST
    with safe_open(path, framework="pt") as file:
        metadata = {key: json.loads(value) for key, value in file.metadata().items() if key not in PLAIN}
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"BF16"}  # noqa: SIM118
        assert file.metadata()["about"]
    described = {"config", "timesteps", "prediction", "layout", "size", "step", "training", "sampling", "evaluation"}
    assert set(metadata) == described
    assert metadata["size"] == [64, 64, 64]
    assert metadata["training"]["heads"]["contrast"] == "all"
    assert sum(p.numel() for p in load_checkpoint(path).parameters()) * 2 <= shipped.LARGEST
    steps = recommended(read_checkpoint(path))["steps"]
    assert 1 < steps <= 25, "more, and two cores take longer than a minute"


def test_its_card_says_what_the_file_and_the_record_say(name: str) -> None:
    """Word for word what is made of them now, and some of it by another way."""
    path, card = shipped.weights(name), shipped.card(name).read_text()
    assert card == card_of(path.stem, path, path.with_suffix(".csv"), OWN)
    record, content = pd.read_csv(shipped.record(name)), read_checkpoint(path)
    assert list(record) == ["step", "loss"]
    assert record["step"].iloc[-1] == content["step"]
    assert record["loss"].between(0, 2).all()
    assert record["loss"].tail(len(record) // 10).mean() < 0.25 * record["loss"].iloc[0]
    assert re.search(r"(\d+) bytes", card)[1] == str(path.stat().st_size)
    assert re.search(r"\| steps \| (\d+) \|", card)[1] == str(content["step"])
    dice = next(r["value"] for r in content["evaluation"]["rows"] if (r["metric"], r["tissue"]) == ("dice", "lesion"))
    assert re.search(r"\| dice \| lesion \| ([\d.]+) \|", card)[1] == f"{dice:.3f}"
    assert content["evaluation"]["seed"] != content["training"]["heads"]["seed"]


@pytest.fixture(scope="module", params=shipped.names())
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    return request.param, draw(tmp_path_factory.mktemp("drawn") / "volume.nii", request.param)


def test_a_seed_gives_the_volume_it_gave_elsewhere(sample: tuple[str, np.ndarray]) -> None:
    name, volume = sample
    expected, actual = pd.read_csv(BASELINE / f"{name}.csv"), coarse(volume)
    assert expected["voxel"].std() > 0.05, "something is in it"
    assert (actual - expected).abs().max().max() < CLOSE, "new weights? then run this file as a program"


def test_it_is_a_head_with_the_mask_s_lesion(sample: tuple[str, np.ndarray]) -> None:
    _, volumes = sample
    tensor = torch.from_numpy(volumes.transpose(0, 3, 2, 1).copy()) * 2 - 1
    assert verdicts(tensor) == {"anatomy": True, "image": True, "lesion": True, "cortex": True}
    mirrored = verdicts(tensor.flip(-1))
    assert not mirrored["lesion"], "the lesion is where the mask has it"


def test_neither_noise_nor_an_even_brain_passes_for_a_head() -> None:
    """Neither a sample of an untrained model, nor of one that learned the mean alone."""
    noise = torch.rand(3, 64, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    inside = torch.from_numpy(nibabel.load(MASK).get_fdata(dtype=np.float32).transpose(2, 1, 0).copy()) > 0
    even = torch.where(inside, 0.0, -1.0).expand(3, -1, -1, -1) + 0.03 * noise
    for images in (noise, even):
        assert not any(verdicts(images).values())


def test_a_mask_of_another_size_gets_a_volume_on_its_own_grid(tmp_path: Path) -> None:
    write_phantom(tmp_path, 1, (40, 44, 36), seed=3)
    mask, out = tmp_path / "mask" / "phantom_0000.nii.gz", tmp_path / "volume.nii.gz"
    assert main(["sample", "--mask", str(mask), "--out", str(out), "--steps", "1", "-q", "--device", "cpu"]) == 0
    grid = nibabel.load(mask)
    for contrast in CONTRASTS:
        volume = nibabel.load(tmp_path / f"volume_{contrast}.nii.gz")
        assert volume.shape == grid.shape
        assert np.array_equal(volume.affine, grid.affine)


def write_baseline() -> None:
    """Draws what is compared with anew: after new weights, and never to make a test pass."""
    mask = Heads(1, (64, 64, 64), "all", seed=HEAD.seed).reference(HEAD.subject)
    mask.header.set_xyzt_units("mm")
    nibabel.save(mask, MASK)
    for name in shipped.names():
        out = BASELINE / "drawn.nii"
        coarse(draw(out, name)).to_csv(BASELINE / f"{name}.csv", index=False, float_format="%.6f")
        for contrast in CONTRASTS:
            out.with_stem(f"{out.stem}_{contrast}").unlink()


if __name__ == "__main__":
    write_baseline()
