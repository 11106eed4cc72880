"""The command on heads in three contrasts: trained, resumed, sampled and released as one model."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from medddpm.checkpoints.files import read_checkpoint
from medddpm.cli.main import main
from medddpm.data.heads import Heads

TINY = ["--size", "16", "--channels", "32", "--channel-mult", "1", "2", "--sample-every", "0"]
TINY += ["--device", "cpu", "--quiet"]


def test_a_joint_model_from_heads_to_volumes_of_one_brain(head_folder: Path, tmp_path: Path, capsys) -> None:
    run, released, mask = tmp_path / "run", tmp_path / "r.safetensors", head_folder / "mask" / "phantom_0000.nii.gz"
    command = ["train", "--heads", "2", "--contrast", "all", "--holdout", "1", "--out", str(run), *TINY]
    assert main([*command, "--steps", "1"]) == 0
    known = json.loads((run / "run.json").read_text())
    assert known["volumes"] == Heads(2, (16, 16, 16), "all").names()
    assert (known["layout"], known["held_out"]) == ("three-contrast head", ["head all, seed 1, subject 0"])
    assert main(["train", "--heads", "2", "--contrast", "t1", *command[5:], "--steps", "2"]) == 1
    assert "--contrast all (not t1)" in capsys.readouterr().err
    release = ["release", str(run), "--out", str(released), "--steps", "2", "--held-out", "2"]
    assert main([*release, "--device", "cpu", "-q"]) == 0
    for model, name in ((run, "a"), (released, "b")):
        drawn = ["sample", "--checkpoint", str(model), "--mask", str(mask), "--sampler", "ddim", "--steps", "2"]
        assert main([*drawn, "--out", str(tmp_path / name / "v.nii.gz"), "--device", "cpu", "-q"]) == 0
        there = sorted(path.name for path in (tmp_path / name).iterdir())
        assert there == ["v_flair.nii.gz", "v_t1.nii.gz", "v_t2.nii.gz"]
        volumes = [np.asarray(nibabel.load(tmp_path / name / file).dataobj) for file in there]
        assert {volume.shape for volume in volumes} == {(16, 16, 16)}
        assert not np.array_equal(volumes[0], volumes[1])
    evaluation = read_checkpoint(released)["evaluation"]["rows"]
    channels = {row["channel"] for row in evaluation if row["metric"] == "wasserstein"}
    assert channels == {"t1", "t2", "flair"}
    card = released.with_suffix(".md").read_text()
    assert "2 synthetic subjects (`medddpm.data.heads`, t1, t2 and flair, seed 0)" in card
    assert "a brain volume (T1, T2 and FLAIR heads, 16×16×16)" in card
    assert "The mask labels brain 1 and lesion 2" in card
    for contrast in ("t1", "t2", "flair"):
        assert card.count(f"| wasserstein | brain in {contrast} |") == 1
    assert card.count("| dice | brain |") == 1


def test_all_contrasts_are_the_heads_alone(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--phantom", "--contrast", "all", "--steps", "1", "--out", "run"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: argument --contrast: all only with --heads")
