"""Weights shared out over processes: the same training, half the weights on each of two."""

from __future__ import annotations

import json

import pytest
from helpers.ranks import run_ranks

from medddpm.study.records import schemas
from medddpm.study.records.tables import read_table
from medddpm.study.scaling import run, tables
from medddpm.study.scaling.cases import Case, case, plan

TRAIN = """
import json, torch
from torch.distributed.tensor import DTensor
from medddpm.data.phantom import Phantom
from medddpm.runtime.ranks import joined
from medddpm.study.scaling.sharded import ShardedTrainer
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer
device = torch.device("cpu")
with joined(device):
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), learning_rate=1e-3, ema_start=2)
    volumes = Phantom(3, (8, 8, 8))
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


def test_two_processes_end_with_the_weights_of_replicated_ones() -> None:
    for ended in run_ranks(2, TRAIN):
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["moved"] > 1, "which starts at zero, and Adam moves by the learning rate"
        assert max(found["unet"], found["ema"]) < 1e-5
        assert found["share"] == pytest.approx(0.5, abs=0.01)
        assert found["moments"] == 1
        assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-5)


def test_they_are_planned_where_the_setting_leaves_weights_alone() -> None:
    rows = [row for launch in plan(["med-ddpm"], gpus=[1, 2], sharded=True) for row in launch]
    sharded = [row for row in rows if row.weights == "sharded"]
    assert {(row.setting, row.gpus, row.measure, row.gradient_dtype) for row in sharded} == {
        ("OPT1", 2, "step", "fp32"),
        ("OPT1", 2, "step", "bf16"),
    }
    assert len({row.key for row in rows}) == len(rows)
    assert [row for row in plan(["med-ddpm"], gpus=[1, 2])[-1] if row.weights == "sharded"] == []


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
