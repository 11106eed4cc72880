"""nnU-Net's own commands with our trainer: planned, preprocessed, trained and predicted on a CPU, in half a minute."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet
from helpers.networks import distance, nnunet
from helpers.nnunet import run, write_stubs
from helpers.repository import ROOT
from nnunet_benchmark import PLANNERS, TRAINERS, plan, table
from nnunet_benchmark import write_dataset as write_benchmark

from medddpm.data.phantom import phantom_subject
from medddpm.fast.clients.nnunet import FOLDER
from medddpm.measure.machine import MACHINE
from medddpm.measure.tables import read_table
from study.records import schemas

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: pip install nnunetv2")

DATASET = "Dataset901_Phantom"
SIZE = (24, 28, 24)  # three levels: of two nnU-Net weighs the loss 0 / 0
# Found by nnU-Net in a reader's own folder; combined with one of nnU-Net's variants, as readers do.
SHORT = """
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import nnUNetTrainerNoMirroring

from medddpm.fast.clients.nnunet.nnUNetTrainerAccelerated import nnUNetTrainerAccelerated


class Short(nnUNetTrainerAccelerated, nnUNetTrainerNoMirroring):
    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 1, 2, 1
"""


def write_dataset(folder: Path) -> None:
    """Five subjects, for five folds, and one to predict, by nnU-Net's names."""
    for name in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / name).mkdir(parents=True)
    for i in range(6):
        subject = phantom_subject(i, SIZE)
        image = nib.Nifti1Image(subject.flair, subject.affine)
        nib.save(image, folder / ("imagesTr" if i < 5 else "imagesTs") / f"phantom_{i:03d}_0000.nii.gz")
        if i < 5:
            labels = nib.Nifti1Image(subject.labels, subject.affine)
            nib.save(labels, folder / "labelsTr" / f"phantom_{i:03d}.nii.gz")
    described = {
        "channel_names": {"0": "FLAIR"},
        "labels": {"background": 0, "brain": 1, "lesion": 2},
        "numTraining": 5,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(described))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `raw`, `preprocessed`, `results` and `predicted`, after nnU-Net's three commands."""
    work = tmp_path_factory.mktemp("nnunet")
    write_dataset(work / "raw" / DATASET)
    (work / "mine").mkdir()
    (work / "mine" / "short_trainer.py").write_text(textwrap.dedent(SHORT))
    write_stubs(work / "stubs", "timm")
    trainers = os.pathsep.join((str(FOLDER), str(work / "mine")))
    chosen = ("-tr", "Short", "-device", "cpu")
    images, predicted = str(work / "raw" / DATASET / "imagesTs"), str(work / "predicted")
    where = ("-i", images, "-o", predicted, "-d", "901", "-c", "3d_fullres", "-f", "0", "-npp", "1", "-nps", "1")
    run(
        work,
        ("nnUNetv2_plan_and_preprocess", "-d", "901", "-c", "3d_fullres", "-npfp", "1", "-np", "1"),
        ("nnUNetv2_train", "901", "3d_fullres", "0", *chosen),
        ("nnUNetv2_predict", *where, *chosen),
        trainers=trainers,
    )
    return work


def fold(work: Path) -> Path:
    return work / "results" / DATASET / "Short__nnUNetPlans__3d_fullres" / "fold_0"


@pytest.mark.long
def test_nnunet_trains_the_accelerated_network(work: Path) -> None:
    (log,) = [path.read_text() for path in fold(work).glob("training_log_*.txt")]
    assert log.count("fast path: bf16") == 1
    assert "left alone: nothing" in log
    losses = [float(line.rsplit(None, 1)[1]) for line in log.splitlines() if "train_loss" in line]
    assert len(losses) == 1
    assert np.isfinite(losses).all()


@pytest.mark.long
def test_nnunet_validates_and_predicts_with_it(work: Path) -> None:
    summary = json.loads((fold(work) / "validation" / "summary.json").read_text())
    assert summary["foreground_mean"]["Dice"] > 0
    predicted: Any = nib.load(work / "predicted" / "phantom_005.nii.gz")
    image: Any = nib.load(work / "raw" / DATASET / "imagesTs" / "phantom_005_0000.nii.gz")
    assert predicted.shape == SIZE
    np.testing.assert_allclose(predicted.affine, image.affine, atol=1e-4)
    assert set(np.unique(predicted.get_fdata())) <= {0, 1, 2}


@pytest.mark.long
def test_its_network_computes_what_nnunets_does_from_one_checkpoint(work: Path) -> None:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    from medddpm.fast.clients.nnunet.nnUNetTrainerAccelerated import nnUNetTrainerAccelerated

    weights = torch.load(fold(work) / "checkpoint_final.pth", weights_only=False)["network_weights"]
    plans = PlansManager(json.loads((work / "preprocessed" / DATASET / "nnUNetPlans.json").read_text()))
    made = []
    for trainer in (nnUNetTrainer, nnUNetTrainerAccelerated):
        network = trainer.build_network_architecture(plans, plans.get_configuration("3d_fullres"), 1, 3, False)
        network.load_state_dict(weights)
        made.append(network)
    assert not hasattr(made[0], "acceleration")
    assert made[1].acceleration.replaced
    x = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(made[1](x), made[0](x)) < 1e-5


def test_a_network_that_is_built_for_prediction_alone_is_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    from medddpm.fast.clients.nnunet.nnUNetTrainerAccelerated import nnUNetTrainerAccelerated

    monkeypatch.setattr(nnUNetTrainer, "build_network_architecture", lambda *_: nnunet(PlainConvUNet))
    network = nnUNetTrainerAccelerated.build_network_architecture(None)
    assert network.acceleration.replaced


@pytest.mark.parametrize("name", ["nnUNetTrainerAccelerated", TRAINERS[1]])
def test_nnunet_finds_the_trainers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    write_stubs(tmp_path, "timm")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("nnUNet_extTrainer", str(FOLDER))
    found = recursive_find_trainer_class_by_name(name)
    order = [each.__name__ for each in found.__mro__]
    assert order[0] == name
    own = order.index("nnUNetTrainerAccelerated")
    assert all(own < order.index(each) for each in order if each.startswith("nnUNetTrainerBenchmark"))
    assert not found._do_i_compile(None)


@pytest.mark.long
def test_the_benchmark_plans_what_it_says_and_what_is_on_record(tmp_path: Path) -> None:
    write_benchmark(tmp_path)
    write_stubs(tmp_path / "stubs", "timm")
    plans = plan(tmp_path, PLANNERS)
    assert plans["ExperimentPlanner"]["patch_size"] == [128, 160, 112]  # nnU-Net's own for BraTS
    origin = {name: name for name in ("date", *MACHINE, "nnunetv2")}
    ended = [
        {"planner": planner, "trainer": trainer, "fastest_epoch": 10.0, **origin}
        for planner in PLANNERS
        for trainer in TRAINERS
    ]
    made = table(ended, plans)
    assert (made[list(origin)] == list(origin)).all(axis=None)
    recorded = read_table(ROOT / "figures" / "records" / "H100" / "nnunet.csv", schemas.NNUNET)
    assert recorded["network"].unique().tolist() == ["PlainConvUNet", "ResidualEncoderUNet"]
    assert recorded[["date", "gpu", "torch", "commit", "nnunetv2"]].notna().all(axis=None)
    same = [one.drop(columns=["fastest_s", *origin]) for one in (made, recorded)]
    pd.testing.assert_frame_equal(*same, check_dtype=False)
