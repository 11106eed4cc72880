"""Samples that are there: kept where they are whole and drawn alike, and never mixed with others."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.attack import limited

from medddpm import sampling
from medddpm.checkpoints.files import save_checkpoint
from medddpm.data.nifti import note_of, read_image
from medddpm.data.phantom import write_phantom
from medddpm.data.volumes import write_sample_volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.sampling import sample_to_files
from medddpm.switches import OPT2
from medddpm.unet import UNet3D

COUNT = 5
Sampled = Callable[..., list[Path]]


def save_model(path: Path, seed: int, channels: tuple[int, int] = (3, 1), size: object = (8, 8, 8)) -> None:
    torch.manual_seed(seed)
    unet = UNet3D(8, *channels, model_channels=32, channel_mult=(1, 1), num_res_blocks=1)
    state = GaussianDiffusion(unet, timesteps=6).state_dict()
    save_checkpoint(path, {"step": 1, "model": state, "ema": state, "config": unet.config, "size": size})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and two masks."""
    folder = tmp_path_factory.mktemp("with space")
    write_phantom(folder, 2, (10, 10, 10))
    for seed in (0, 1):
        save_model(folder / f"{seed}.pt", seed)
    return folder


@pytest.fixture
def sampled(inputs: Path, tmp_path: Path) -> Sampled:
    """Draws `COUNT` volumes of three steps into a folder of the test's."""
    mask = inputs / "mask" / "phantom_0000.nii.gz"
    how: dict[str, Any] = {"sampler": "sde-dpm++", "steps": 3, "count": COUNT, "batch": 2, "device": "cpu"}
    return lambda name="v.nii.gz", checkpoint="0.pt", mask=mask, **other: sample_to_files(
        inputs / checkpoint, mask, tmp_path / name, **how | other
    )


def contents(files: list[Path]) -> list[bytes]:
    return [file.read_bytes() for file in files]


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Lets so many volumes be written."""
    written: list[Path] = []

    def write(sample: torch.Tensor, path: Path, *more: Any) -> list[Path]:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        return write_sample_volumes(sample, path, *more)

    monkeypatch.setattr(sampling, "write_sample_volumes", write)


@pytest.mark.parametrize("size", [[8, "a", None], [8, 8], "888", 8, [8.5, 8, 8], [1, 8, 8], [float("inf"), 8, 8]])
def test_a_checkpoint_whose_size_is_none_is_named(tmp_path: Path, sampled: Sampled, size: object) -> None:
    save_model(tmp_path / "odd.pt", 0, size=size)
    with pytest.raises(BadInput, match=r"odd\.pt: its metadata is damaged: size is not what it should be"):
        sampled(checkpoint=tmp_path / "odd.pt")


def test_after_interruptions_the_same_call_draws_what_is_missing(sampled: Sampled, monkeypatch, caplog) -> None:
    """Twice, within a batch and after one, and a file is damaged: the result is the undisturbed one's, to the bit."""
    caplog.set_level("INFO", "medddpm")
    undisturbed = contents(sampled("whole/v.nii.gz"))
    for after in (1, 2):
        interrupt(monkeypatch, after)
        with pytest.raises(KeyboardInterrupt):
            sampled()
    monkeypatch.undo()
    assert "1 of 5 volumes kept" in caplog.text
    caplog.clear()
    first = sampled(count=1, name="v_1.nii.gz")[0]
    first.write_bytes(first.read_bytes()[:-20])
    files = sampled()
    assert [file.name for file in files] == [f"v_{number}.nii.gz" for number in range(1, COUNT + 1)]
    assert contents(files) == undisturbed
    (line,) = [record.getMessage() for record in caplog.records if "2 of 5" in record.getMessage()]
    assert line == f"{files[0].with_name('v.nii.gz')}: 2 of 5 volumes kept, which were there already and drawn alike"


def test_volumes_that_are_all_there_are_not_drawn_again_but_with_force(sampled: Sampled, monkeypatch) -> None:
    before = contents(files := sampled())
    counts: list[int] = []
    sample = GaussianDiffusion.sample
    monkeypatch.setattr(
        GaussianDiffusion, "sample", lambda *how, **more: counts.append(len(how[1])) or sample(*how, **more)
    )
    assert sampled() == files
    assert not counts
    assert contents(sampled(force=True)) == before
    assert counts == [2, 2, 1]


def test_names_may_be_strings(inputs: Path, tmp_path: Path) -> None:
    checkpoint, mask = str(inputs / "0.pt"), str(inputs / "mask" / "phantom_0000.nii.gz")
    files = sample_to_files(checkpoint, mask, str(tmp_path / "v.nii.gz"), count=2, device="cpu")
    assert files == [tmp_path / "v_1.nii.gz", tmp_path / "v_2.nii.gz"]
    with pytest.raises(BadInput, match=r"^none\.nii: no such file"):
        sample_to_files(checkpoint, mask, str(tmp_path / "v.nii.gz"), images=["none.nii"])


def test_more_volumes_go_on_from_those_that_are_there(sampled: Sampled) -> None:
    few, undisturbed = sampled(count=2), sampled("whole/v.nii.gz")
    before = contents(few)
    assert contents(sampled()) == contents(undisturbed)
    assert contents(few) == before


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"seed": 1}, "it was drawn with seed 0, sde-dpm++ 3, not seed 1, sde-dpm++ 3"),
        ({"steps": 4}, "it was drawn with seed 0, sde-dpm++ 3, not seed 0, sde-dpm++ 4"),
        ({"sampler": "ddim"}, "it was drawn with seed 0, sde-dpm++ 3, not seed 0, ddim 3"),
        ({"checkpoint": "1.pt"}, "it was drawn from another checkpoint or mask, or under another setting"),
        ({"mask": "phantom_0001.nii.gz"}, "it was drawn from another checkpoint or mask, or under another setting"),
        ({"setting": OPT2}, "it was drawn from another checkpoint or mask, or under another setting"),
    ],
    ids=["seed", "steps", "sampler", "checkpoint", "mask", "setting"],
)
def test_volumes_drawn_otherwise_are_not_mixed(
    sampled: Sampled, inputs: Path, other: dict[str, Any], problem: str
) -> None:
    files = sampled(count=2)
    before = contents(files)
    if "mask" in other:
        other = {"mask": inputs / "mask" / other["mask"]}
    with pytest.raises(BadInput) as refused:
        sampled(**other)
    remedy = "give --force to replace it, or choose another name"
    assert str(refused.value) == f"{files[0]}: {problem}; {remedy}"
    assert contents(files) == before
    assert not files[0].with_name("v_3.nii.gz").exists()
    assert contents(sampled(**other, force=True))[:2] != before


def test_a_file_without_a_note_is_kept_from_being_replaced(sampled: Sampled, monkeypatch) -> None:
    """An earlier version wrote none."""
    with monkeypatch.context() as patched:
        patched.setattr(sampling, "write_sample_volumes", lambda *how: write_sample_volumes(*how[:5]))
        (file,) = sampled(count=1)
    assert note_of(file) == ""
    with pytest.raises(BadInput, match=r"it exists already; give --force"):
        sampled(count=1)


def test_each_process_keeps_its_own(sampled: Sampled, monkeypatch, caplog) -> None:
    caplog.set_level("INFO", "medddpm")
    undisturbed = contents(sampled("whole/v.nii.gz"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    as_rank = functools.partial(monkeypatch.setenv, "RANK")
    as_rank("1")
    assert [file.name for file in sampled()] == ["v_3.nii.gz", "v_4.nii.gz"]
    as_rank("0")
    files = sampled()
    assert [file.name for file in files] == ["v_1.nii.gz", "v_2.nii.gz", "v_5.nii.gz"]
    files[1].unlink()
    sampled()
    assert "2 of 3 volumes kept" in caplog.text
    monkeypatch.delenv("WORLD_SIZE")
    assert contents(sampled()) == undisturbed


def test_of_a_volume_of_several_channels_all_files_count(inputs: Path, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "medddpm")
    save_model(tmp_path / "four.pt", 0, (8, 4))
    mask, image = (inputs / folder / "phantom_0000.nii.gz" for folder in ("mask", "image"))
    draw = functools.partial(
        sample_to_files, tmp_path / "four.pt", mask, tmp_path / "v.nii", images=[image], sampler="ddim", steps=2,
        device="cpu",
    )  # fmt: skip
    files = draw()
    assert [file.name for file in files] == [f"v_{channel}.nii" for channel in ("t1", "t1ce", "t2", "flair")]
    lines = [record.message for record in caplog.records]
    assert lines == [f"{tmp_path / 'v.nii'}: a file for each of t1, t1ce, t2, flair, v_t1.nii and so on"]
    before = contents(files)
    files[2].unlink()
    assert contents(draw()) == before


def alone(inputs: Path, tmp_path: Path, name: str, seed: int = 0) -> bytes:
    """The volume of one mask, drawn by itself."""
    how: dict[str, Any] = {"sampler": "sde-dpm++", "steps": 3, "device": "cpu", "seed": seed}
    (file,) = sample_to_files(inputs / "0.pt", inputs / "mask" / name, tmp_path / "alone" / name, **how, force=True)
    return file.read_bytes()


NAMES = ["phantom_0000.nii.gz", "phantom_0001.nii.gz"]


def test_a_folder_s_masks_have_each_the_volume_that_it_has_alone(
    sampled: Sampled, inputs: Path, tmp_path: Path, monkeypatch, caplog
) -> None:
    """With one loading of the model; a volume drawn alone is kept among them."""
    loaded: list[Path] = []
    read = sampling.read_checkpoint
    monkeypatch.setattr(sampling, "read_checkpoint", lambda path: loaded.append(path) or read(path))
    reported: list[Path] = []
    files = sampled("out", mask=inputs / "mask", count=1, batch=1, on_file=reported.append)
    assert loaded == [inputs / "0.pt"]
    assert files == reported == [tmp_path / "out" / name for name in NAMES]
    assert contents(files) == [alone(inputs, tmp_path, name) for name in NAMES]
    together = sampled("together", mask=inputs / "mask", count=1, batch=2)
    for file, other in zip(together, files, strict=True):
        np.testing.assert_allclose(read_image(file).get_fdata(), read_image(other).get_fdata(), atol=1e-5)
    files[0].unlink()
    caplog.set_level("INFO", "medddpm")
    assert sampled("out", mask=inputs / "mask", count=1, batch=2) == files
    assert "1 of 2 volumes kept" in caplog.text


def test_a_table_says_each_mask_s_volume_and_seed(sampled: Sampled, inputs: Path, tmp_path: Path) -> None:
    table = inputs / "masks.csv"
    table.write_text(f"mask,out,seed\nmask/{NAMES[1]},,\nmask/{NAMES[0]},b/again.nii.gz,7\n")
    files = sampled("out", mask=table, count=1, batch=1)
    assert files == [tmp_path / "out" / NAMES[1], tmp_path / "out" / "b" / "again.nii.gz"]
    assert contents(files) == [alone(inputs, tmp_path, NAMES[1]), alone(inputs, tmp_path, NAMES[0], seed=7)]


def test_several_volumes_of_several_masks_go_on_after_an_interruption(
    sampled: Sampled, inputs: Path, monkeypatch
) -> None:
    """A batch goes over the masks."""
    how: dict[str, Any] = {"mask": inputs / "mask", "count": 3, "batch": 2}
    undisturbed = sampled("whole", **how)
    names = [f"{name.removesuffix('.nii.gz')}_{number}.nii.gz" for name in NAMES for number in (1, 2, 3)]
    assert [file.name for file in undisturbed] == names
    interrupt(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt, match="interrupted, and 3 of 6 volumes are kept"):
        sampled("out", **how)
    monkeypatch.undo()
    assert contents(sampled("out", **how)) == contents(undisturbed)


def test_several_processes_divide_the_masks(sampled: Sampled, inputs: Path, monkeypatch) -> None:
    undisturbed = contents(sampled("whole", mask=inputs / "mask", count=2, batch=1))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, number in (("1", "2"), ("0", "1")):
        monkeypatch.setenv("RANK", rank)
        files = sampled("out", mask=inputs / "mask", count=2, batch=1)
        assert [file.name for file in files] == [f"phantom_0000_{number}.nii.gz", f"phantom_0001_{number}.nii.gz"]
    monkeypatch.delenv("WORLD_SIZE")
    assert contents(sampled("out", mask=inputs / "mask", count=2, batch=1)) == undisturbed


def test_all_bad_masks_are_named_before_any_volume_is_drawn(
    sampled: Sampled, inputs: Path, tmp_path: Path, caplog
) -> None:
    masks = tmp_path / "masks"
    shutil.copytree(inputs / "mask", masks)
    files = sampled("out", mask=masks, count=1)
    before = contents(files)
    (masks / "a.nii.gz").write_bytes(b"damaged")
    (masks / "b.nii").write_bytes(b"")
    shutil.copy(masks / NAMES[0], masks / "c.nii.gz")
    with pytest.raises(BadInput) as refused:
        sampled("out", mask=masks, count=1)
    remedy = "mend them or take them out; no volume was drawn"
    assert str(refused.value) == f"{masks}: 2 of its 5 masks cannot be drawn for; {remedy}"
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.split(": ")[0] for line in lines] == [str(masks / "a.nii.gz"), str(masks / "b.nii")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == NAMES
    assert contents(files) == before


def test_no_mask_is_replaced_by_a_volume(sampled: Sampled, inputs: Path, tmp_path: Path) -> None:
    """By its name in the table, or by a link to it."""
    for name in NAMES:
        (tmp_path / "out").mkdir(exist_ok=True)
        shutil.copy(inputs / "mask" / name, tmp_path / "out" / name)
    (tmp_path / "out" / "link.nii.gz").hardlink_to(tmp_path / "out" / NAMES[1])
    before = contents([tmp_path / "out" / name for name in NAMES])
    for out in (NAMES[1], "link.nii.gz"):
        (tmp_path / "masks.csv").write_text(f"mask,out\nout/{NAMES[0]},a.nii.gz\nout/{NAMES[1]},{out}\n")
        with pytest.raises(BadInput, match=f"{out}: it is also read, and would be replaced"):
            sampled("out", mask=tmp_path / "masks.csv", count=1, force=True)
    assert contents([tmp_path / "out" / name for name in NAMES]) == before


def test_masks_whose_volumes_would_be_one_file_are_refused(sampled: Sampled, inputs: Path, tmp_path: Path) -> None:
    for name in ("a_seg.nii.gz", "a_mask.nii.gz"):
        (tmp_path / "masks").mkdir(exist_ok=True)
        shutil.copy(inputs / "mask" / NAMES[0], tmp_path / "masks" / name)
    with pytest.raises(BadInput, match=r"out/a\.nii\.gz: it would be the volume of .*a_mask.* and of .*a_seg"):
        sampled("out", mask=tmp_path / "masks", count=1)
    assert not (tmp_path / "out").exists()


def test_four_modalities_of_the_masks_of_a_table_with_their_images(inputs: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "four.pt", 0, (8, 4))
    table = inputs / "cases.csv"
    table.write_text("".join(["Mask,T1\r\n", *(f"mask/{name},image/{name}\r\n" for name in NAMES)]))
    draw = functools.partial(sample_to_files, tmp_path / "four.pt", sampler="ddim", steps=2, device="cpu")
    files = draw(table, tmp_path / "out", batch=2)
    channels = ("t1", "t1ce", "t2", "flair")
    assert [file.name for file in files] == [f"phantom_000{i}_{channel}.nii.gz" for i in (0, 1) for channel in channels]
    one = draw(inputs / "mask" / NAMES[1], tmp_path / NAMES[1], images=[inputs / "image" / NAMES[1]])
    np.testing.assert_allclose(read_image(files[5]).get_fdata(), read_image(one[1]).get_fdata(), atol=1e-5)


@pytest.mark.parametrize("force", [False, True])
def test_a_fifo_in_the_place_of_a_sample_is_named_and_left_alone(sampled: Sampled, tmp_path: Path, force: bool) -> None:
    for name in ("v.nii.gz", "v.nii"):
        os.mkfifo(tmp_path / name)
        with limited(), pytest.raises(BadInput, match=rf"{name}: a FIFO stands there; give a file's name"):
            sampled(name, count=1, force=force)
        assert (tmp_path / name).is_fifo()


def test_a_fifo_is_no_model_and_no_mask(sampled: Sampled, inputs: Path, tmp_path: Path) -> None:
    for name in ("m.pt", "m.safetensors", "m.nii.gz"):
        os.mkfifo(tmp_path / name)
    for name in ("m.pt", "m.safetensors"):
        with limited(), pytest.raises(BadInput, match=f"{name}: no such checkpoint"):
            sampled(checkpoint=tmp_path / name)
    with limited(), pytest.raises(BadInput, match=r"m\.nii\.gz: not a file"):
        sampled(mask=tmp_path / "m.nii.gz")
