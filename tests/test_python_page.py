"""The scripts of site/python.md, as a reader pastes them: each in a process and a folder of its own."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.pages import page_block, page_blocks

from medddpm.checkpoints.files import load_checkpoint, save_checkpoint
from medddpm.data.nifti import note_of, read_image
from medddpm.data.phantom import phantom_subject, write_phantom
from medddpm.diffusion import GaussianDiffusion
from medddpm.unet import UNet3D

PAGE = "site/python.md"


def run(folder: Path, holding: str) -> str:
    """Runs the page's script that holds a text, to the letter, and returns what it prints."""
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", page_block(PAGE, "python", holding)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(value) for value in re.findall(r"^epoch \d+: .*?([\d.]+)$", printed, re.MULTILINE)]


def turned(folder: Path, size: tuple[int, int, int]) -> tuple[Path, Path]:
    """A case's mask and image whose axes point to the left, back and down, with the first two swapped."""
    write_phantom(folder, 1, size)
    files = folder / "mask" / "phantom_0000.nii.gz", folder / "image" / "phantom_0000.nii.gz"
    for file in files:
        image = nib.load(file)
        codes = nib.orientations.axcodes2ornt("PLI")
        nib.save(image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(image.affine), codes)), file)
    return files


def test_there_are_five_short_scripts() -> None:
    scripts = page_blocks(PAGE, "python")
    assert len(scripts) == 5
    assert max(len([line for line in script.splitlines() if line]) for script in scripts) <= 36


@pytest.mark.long
def test_volume_files_for_a_mask_file(tmp_path: Path) -> None:
    mask, _ = turned(tmp_path / "data", (40, 48, 44))
    mask.rename(tmp_path / "mask.nii.gz")
    printed = run(tmp_path, "sample_to_files")
    assert printed == "volume_t1.nii.gz volume_t2.nii.gz volume_flair.nii.gz\n"
    volume, mask = nib.load(tmp_path / "volume_t1.nii.gz"), nib.load(tmp_path / "mask.nii.gz")
    assert volume.shape == mask.shape
    assert np.array_equal(volume.affine, mask.affine)
    assert nib.aff2axcodes(volume.affine) == ("P", "L", "I")
    assert note_of(tmp_path / "volume_t1.nii.gz").startswith("seed 7, sde-dpm++ 3, of ")
    data, labels = volume.get_fdata(), np.asarray(mask.dataobj)
    assert 0 <= data.min() < data.max() <= 1
    assert data[labels == 1].mean() > data[labels == 0].mean() + 0.1, "the brain is brighter than the air"


@pytest.mark.long
def test_tensors_from_a_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = UNet3D(16, 3, 1, 32, channel_mult=(1, 1), attention_rates=())
    torch.nn.init.normal_(network.out[2].weight, std=0.1)
    state = GaussianDiffusion(network, timesteps=20).state_dict()
    save_checkpoint(tmp_path / "model.pt", {"model": state, "ema": state, "config": network.config})
    printed = run(tmp_path, 'load_checkpoint("model.pt"')
    assert "timesteps: 20\n" in printed
    assert printed.endswith("torch.Size([2, 1, 16, 16, 16])\n")
    one, other = torch.load(tmp_path / "volumes.pt")
    assert -1 <= min(one.min(), other.min()) < max(one.max(), other.max()) <= 1
    assert not torch.equal(one, other)


@pytest.mark.long
def test_training_on_a_data_set_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for index in range(4):
        subject = phantom_subject(index, (16, 16, 16))
        labels = subject.labels.transpose(2, 1, 0)
        np.savez(tmp_path / "scans" / f"{index}.npz", image=1000 * subject.t1.transpose(2, 1, 0), labels=labels)
    printed = run(tmp_path, "save_checkpoint")
    found = losses(printed)
    assert len(found) == 10
    assert all(map(math.isfinite, found))
    assert found[-1] < 0.8 * found[0]
    assert printed.endswith("torch.Size([2, 1, 16, 16, 16])\n")
    average, last = (load_checkpoint(tmp_path / "mine.pt", weights).state_dict() for weights in ("ema", "model"))
    weight = "denoise_fn.out.2.weight"
    assert 0 < average[weight].abs().mean() != last[weight].abs().mean()


@pytest.mark.long
def test_a_network_of_monais(tmp_path: Path) -> None:
    printed = run(tmp_path, "DiffusionModelUNet(")
    found = losses(printed)
    assert len(found) == 5
    assert all(map(math.isfinite, found))
    assert found[-1] < 0.8 * found[0]
    assert printed.endswith("torch.Size([2, 1, 16, 16, 16])\n")
    state = torch.load(tmp_path / "monai.pt", weights_only=True)
    assert "denoise_fn.conv_in.conv.weight" in state


@pytest.mark.long
def test_volumes_into_tensors_and_back(tmp_path: Path) -> None:
    mask_file, image_file = turned(tmp_path / "my_data", (32, 32, 24))
    printed = run(tmp_path, "VolumeFolder(")
    assert printed == "1 cases, whole head (1, 24, 32, 32) (2, 24, 32, 32)\nagain.nii.gz\n"
    again, original = read_image(tmp_path / "again.nii.gz"), read_image(image_file)
    assert np.array_equal(again.affine, nib.load(mask_file).affine)
    data = original.get_fdata()
    wanted = (data - data.min()) / np.ptp(data)  # the folder's shape is the model's: no voxel is resampled
    np.testing.assert_allclose(again.get_fdata(), wanted, atol=2e-3)
