"""Weights shared out over processes: the same training, half the weights on each of two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from torch.nn.utils import parameters_to_vector

from medddpm.data.phantom import Phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.errors import BadInput
from medddpm.measure.tables import read_table
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer
from study.records import schemas
from study.scaling import run, tables
from study.scaling.cases import Case, case, plan
from study.scaling.sharded import load_parts, save_parts

TRAIN = """
import json, sys, torch
from torch.distributed.tensor import DTensor
from medddpm.data.volumes import VolumeFolder
from medddpm.runtime.ranks import joined
from study.scaling.sharded import ShardedTrainer
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer
device = torch.device("cpu")
with joined(device):
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), learning_rate=1e-3, ema_start=2)
    volumes = VolumeFolder(sys.argv[1], (8, 8, 8))
    whole, parts = Trainer(config, volumes, device), ShardedTrainer(config, volumes, device)
    for trainer in (whole, parts):
        for _ in range(3):
            trainer.train_step()
    found = {}
    for name in ("unet", "ema"):
        pairs = list(zip(getattr(whole, name).parameters(), getattr(parts, name).parameters(), strict=True))
        assert all(isinstance(part, DTensor) for _, part in pairs)
        found[name] = max((weight - part.full_tensor()).abs().max().item() for weight, part in pairs)
    held = [part.to_local().numel() for part in parts.unet.parameters()]
    moments = [state["exp_avg"].to_local().numel() for state in parts.optimizer.state.values()]
    found["share"] = sum(held) / sum(weight.numel() for weight in whole.unet.parameters())
    found["moments"] = sum(moments) / sum(held)
    found["moved"] = (whole.unet.out[2].weight.abs().max() / 1e-3).item()
    found["losses"] = [whole.read_losses(), parts.ranks.sum_(torch.stack(parts._pending)).tolist()]
    print(json.dumps(found))
"""


@pytest.mark.long
def test_two_processes_end_with_the_weights_of_replicated_ones(head_folder: Path) -> None:
    for ended in run_ranks(2, TRAIN, head_folder):
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["moved"] > 1, "which starts at zero, and Adam moves by the learning rate"
        assert max(found["unet"], found["ema"]) < 1e-5
        assert found["share"] == pytest.approx(0.5, abs=0.01)
        assert found["moments"] == 1
        assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-5)


GO_ON = """
import sys, torch
from pathlib import Path
from medddpm.data.volumes import VolumeFolder
from medddpm.runtime.ranks import Ranks, joined
from study.scaling.sharded import ShardedTrainer, load_parts, save_parts
from medddpm.training.config import TrainConfig
device, data, before, after = torch.device("cpu"), *map(Path, sys.argv[1:])
with joined(device):
    shared = {"accumulation": 4 // Ranks().world, "ema_start": 2, "ema_every": 1, "learning_rate": 1e-3}
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), **shared)
    trainer = ShardedTrainer(config, VolumeFolder(data, (8, 8, 8)), device)
    if before.is_dir():
        load_parts(trainer, before)
    for _ in range(2):
        trainer.train_step()
    save_parts(trainer, after)
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_four_processes_checkpoint_goes_on_with_two_and_with_one(head_folder: Path, tmp_path: Path) -> None:
    """As a whole training of one process, but for the order in which gradients are summed."""
    for processes, before, after in ((4, "none", "four"), (2, "four", "two")):
        for ended in run_ranks(processes, GO_ON, head_folder, tmp_path / before, tmp_path / after):
            assert ended.returncode == 0, ended.stderr
    shared = {"accumulation": 4, "ema_start": 2, "ema_every": 1, "learning_rate": 1e-3}
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), **shared)
    volumes = VolumeFolder(head_folder, (8, 8, 8))
    resumed, whole, new = (Trainer(config, volumes, torch.device("cpu")) for _ in range(3))
    load_parts(resumed, tmp_path / "two")
    assert (resumed.step, len(resumed.losses)) == (4, 4)
    for trainer, steps in ((resumed, 2), (whole, 6)):
        for _ in range(steps):
            trainer.train_step()
        trainer.read_losses()
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-4)
    for model in ("unet", "ema"):
        found, right, before = (parameters_to_vector(getattr(t, model).parameters()) for t in (resumed, whole, new))
        # Biases that a norm takes away have gradients of rounding alone, which Adam makes as large as any.
        assert (found - right).norm() < 0.05 * (right - before).norm()
    for name in ("exp_avg", "exp_avg_sq"):
        found, right = (
            parameters_to_vector(state[name] for state in t.optimizer.state.values()) for t in (resumed, whole)
        )
        assert (found - right).norm() < 1e-3 * right.norm()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # as it is for one process
def test_a_folder_without_a_checkpoint_of_this_network_is_refused(tmp_path: Path) -> None:
    device, volumes = torch.device("cpu"), Phantom(1, (8, 8, 8))
    narrow, wide = (TrainConfig(image_size=8, model_channels=c, channel_mult=(1, 2)) for c in (32, 64))
    save_parts(Trainer(narrow, volumes, device), tmp_path / "narrow")
    for folder in (tmp_path / "narrow", tmp_path / "none"):
        with pytest.raises(BadInput) as refused:
            load_parts(Trainer(wide, volumes, device), folder)
        problem = "it holds no checkpoint of this network; give the folder of `save_parts`"
        assert str(refused.value) == f"{folder}: {problem}"


def test_they_are_planned_where_the_setting_leaves_weights_alone() -> None:
    rows = [row for launch in plan(["med-ddpm"], gpus=[1, 2], sharded=True) for row in launch]
    sharded = [row for row in rows if row.weights == "sharded"]
    assert {(row.setting, row.gpus, row.measure, row.gradient_dtype) for row in sharded} == {
        ("OPT1", 2, "step", "fp32"),
        ("OPT1", 2, "step", "bf16"),
    }
    assert len({row.key for row in rows}) == len(rows)
    assert [row for row in plan(["med-ddpm"], gpus=[1, 2])[-1] if row.weights == "sharded"] == []


@pytest.mark.long
def test_a_row_of_them(tmp_path) -> None:
    place = {"network": "med-ddpm", "setting": "OPT1", "gpus": 2, "side": 8, "channels": 32}
    row: Case = case("step:2:bf16:sharded", **place)
    out = tmp_path / "scaling.csv"
    assert run.measure_cases([[row]], out, run.Options(samples=2, limit=90, device="cpu"), command=["bench"]) == 0
    (found,) = read_table(out, schemas.SCALING).to_dict("records")
    assert (found["weights"], found["gradient_dtype"], found["micro_steps"]) == ("sharded", "bf16", 2)
    assert found["median_ms"] > 0
    (step,) = tables.efficiency(read_table(out, schemas.SCALING)).to_dict("records")
    assert step["weights"] == "sharded"
