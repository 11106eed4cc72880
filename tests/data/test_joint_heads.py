"""Heads in three contrasts at once: each channel is the head's image under that contrast, and its anatomy is one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_folders import SIZE, head_labels, image, save

from medddpm.data import heads
from medddpm.data.disk_cache import DiskCache
from medddpm.data.heads import Heads
from medddpm.data.layouts import BRATS, HEAD, JOINT
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.readers import read_folder
from medddpm.data.synthetic import origin_of
from medddpm.data.tissues import CONTRASTS
from medddpm.data.volumes import condition, write_sample_volumes
from medddpm.errors import BadInput

SIDES = (16, 20, 12)


def test_a_channel_is_the_image_of_its_contrast_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [Heads(2, SIDES, contrast, seed=3)[1] for contrast in CONTRASTS]
    made, inner = [], heads._anatomy
    monkeypatch.setattr(heads, "_anatomy", lambda index, *known: made.append(index) or inner(index, *known))
    joint = Heads(2, SIDES, "all", seed=3)
    channels, mask = joint[1]
    assert made == [1], "the anatomy is computed once"
    assert channels.shape == (3, 12, 20, 16)
    for channel, (single, of_single) in zip(channels, alone, strict=True):
        assert torch.equal(channel, single[0])
        assert (float(channel.min()), float(channel.max())) == (-1, 1)
        assert torch.equal(mask, of_single)
    assert joint.layout is JOINT
    assert joint.layout.image_folders == CONTRASTS


def test_names_tell_joint_heads_from_others() -> None:
    joint = Heads(2, SIDES, "all", seed=7)
    assert joint.names() == joint.digests() == ["head all, seed 7, subject 0", "head all, seed 7, subject 1"]
    assert origin_of(joint.names()) == ("head", "all", 7)
    assert origin_of([*joint.names(), "head t1, seed 7, subject 0"]) is None
    assert origin_of(["phantom all, seed 7, subject 0"]) is None


def test_a_phantom_has_one_contrast(tmp_path: Path) -> None:
    for make in (lambda: Phantom(1, SIDES, "all"), lambda: write_phantom(tmp_path, 1, SIDES, "all")):
        with pytest.raises(ValueError, match=r"contrast 'all' is none of t1, t2, flair$"):
            make()
    with pytest.raises(ValueError, match=r"contrast 'pd' is none of t1, t2, flair, all$"):
        Heads(contrast="pd")


def test_a_folder_of_prepared_volumes_keeps_them_apart(tmp_path: Path) -> None:
    joint, single = (DiskCache(Heads(1, SIDES, contrast), tmp_path) for contrast in ("all", "t2"))
    first = joint[0]
    assert single.missing() == [0], "another contrast's file is no joint head's"
    assert joint.missing() == []
    assert all(map(torch.equal, joint[0], first))
    assert torch.equal(single[0][0][0], first[0][1])


def test_a_joint_model_takes_the_masks_of_whole_heads(tmp_path: Path) -> None:
    write_phantom(tmp_path / "heads", 1, SIDES)
    mask = tmp_path / "heads" / "mask" / "phantom_0000.nii.gz"
    assert torch.equal(condition(mask, JOINT, (8, 8, 8)), condition(mask, HEAD, (8, 8, 8)))
    # In nnU-Net's folders labels go by their names.
    save(tmp_path / "imagesTr" / "case_0000.nii.gz", image())
    named = save(tmp_path / "labelsTr" / "case.nii.gz", head_labels())
    content = {"channel_names": {"0": "T1"}, "labels": {"background": 0, "tumor": 1, "brain": 2}, "numTraining": 1}
    (tmp_path / "dataset.json").write_text(json.dumps({**content, "file_ending": ".nii.gz"}))
    assert torch.equal(condition(named, JOINT, SIZE), condition(named, HEAD, SIZE))
    assert not torch.equal(
        condition(named, JOINT, SIZE), condition(save(tmp_path / "m.nii.gz", head_labels()), JOINT, SIZE)
    )
    with pytest.raises(BadInput, match="its labels are those of whole head data, the model takes BraTS data"):
        condition(named, BRATS, SIZE)


def test_a_sample_has_a_file_a_contrast(tmp_path: Path) -> None:
    joint = Heads(1, SIDES, "all")
    files = write_sample_volumes(joint[0][0], tmp_path / "v.nii.gz", joint.reference(0), joint.layout, SIDES)
    assert [file.name for file in files] == ["v_t1.nii.gz", "v_t2.nii.gz", "v_flair.nii.gz"]


def test_data_folders_are_read_as_the_published_layouts(tmp_path: Path) -> None:
    """A folder with the joint layout's names lacks a channel of BraTS."""
    for name in ("t1", "t2", "flair"):
        save(tmp_path / name / "case.nii.gz", np.asarray(image()))
    save(tmp_path / "seg" / "case.nii.gz", head_labels())
    with pytest.raises(BadInput, match="lacks t1ce/ of the BraTS layout"):
        read_folder(tmp_path).complete()
