"""The throughput's levers: what each lets one expect, and a row from its process to the table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from medddpm.data.phantom import Phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import MACHINE, of_machine
from medddpm.measure.store import Store, Table, rows_folder
from medddpm.measure.tables import read_meta, read_table
from medddpm.training import trainer as trainer_module
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer
from study.cli.main import main
from study.records import schemas
from study.throughput import run, sources, tables, worker
from study.throughput.levers import BY_KEY, LEVERS, Lever
from study.throughput.results import check_place, predicted, rows_of

META = {"gpu": "cpu", "driver": None, "cudnn": None, "torch": "2", "commit": "c", "command": "test"}


def of(out: Path, **meta: str) -> Store:
    """The store of a table."""
    return Store(rows_folder(out), META | meta, [Table(out, schemas.THROUGHPUT, rows_of)])


def kept(rate: float, **more: Any) -> dict[str, Any]:
    """What a process leaves."""
    waits = {"device": 0.9, "copy": 0.02, "loader": 0.03, "host": 0.05}
    return {
        "volumes_a_second": rate, "step_ms": 1e3 / rate, "steps": 5, "waits": waits, "sm_active_pct": None,
        "peak_bytes": 2**31, "reserved_bytes": None, "prepare_seconds": 0.5, "size": "8x8x8", "date": "2026-01-01",
        **more,
    }  # fmt: skip


def test_each_lever_has_a_name_of_its_own() -> None:
    assert len(BY_KEY) == len(LEVERS)
    assert {lever.group for lever in LEVERS} > {"batch", "precision", "recompute", "recompute BraTS", "loading"}


@pytest.mark.parametrize(
    ("key", "own", "expected"),
    [
        ("batch-4", {}, 20.0),
        ("recompute-all", {"again": 1.0}, 15.0),
        ("recompute-1", {"again": 0.6}, 20 * 3 / 3.6),
        ("loading-phantom-2-processes", {}, 4.0),
        ("loading-disk-2-processes", {"prepare_seconds": 0.01}, 20.0),
        ("loading-phantom-0-processes", {}, 1 / (0.05 + 0.5)),
        ("augmentation-by-2-loading-processes", {}, 4.0),
        ("augmentation-by-the-gpu", {}, 20.0),
        ("recompute-brats-all", {"again": 1.0}, 3.0),
        ("recompute-brats-none", {}, None),
        ("reference-fast", {}, None),
        ("precision-tf32", {}, None),
    ],
)
def test_what_is_expected_of_a_lever(key: str, own: dict, expected: float | None) -> None:
    found = {"reference-fast": kept(20.0), "recompute-brats-none": kept(4.0)}
    assert predicted(BY_KEY[key], kept(1.0, **own), found) == (None if expected is None else pytest.approx(expected))
    assert predicted(BY_KEY[key], kept(1.0, **own), {}) is None


def test_the_share_that_is_computed_again_is_of_the_convolutions() -> None:
    """All but the first and last convolution and those between levels are inside blocks."""
    shares = {
        what: worker.again(TrainConfig(model_channels=32, recompute=what), (32, 32, 32), False)
        for what in ("1", "2", "all")
    }
    assert 0.3 < shares["1"] < shares["2"] < shares["all"] < 1


@pytest.mark.long
def test_a_row_goes_from_its_process_to_the_table(tmp_path: Path) -> None:
    store = of(tmp_path / "throughput.csv")
    store.folder.mkdir()
    words = ["--side", "8", "--channels", "32", "--subjects", "2", "--seconds", "0", "--device", "cpu"]
    threads = torch.get_num_threads()
    try:
        for key in ("reference-fast", "recompute-1"):
            assert worker.main(["--lever", key, *words, "--folder", str(store.folder)]) == 0
            store.stamp(key)
    finally:
        torch.set_num_threads(threads)
    (table,) = store.collect()
    assert table["choice"].tolist() == ["fast", "1"]
    machine = table[list(MACHINE)].drop_duplicates().to_dict("records")
    assert machine == [of_machine(META)], "each row says what measured it"
    check_place(store, 8, 32)
    with pytest.raises(BadInput, match="its rows are of --size 8 --channels 32;"):
        check_place(store, 8, 64)
    pd.testing.assert_frame_equal(table, read_table(store.out, schemas.THROUGHPUT), check_dtype=False)
    shares = table[["device_pct", "copy_pct", "loader_pct", "host_pct"]].sum(axis=1)
    assert shares.tolist() == pytest.approx([100, 100], abs=0.05)
    assert 0 < table["ratio"][1] == pytest.approx(table["volumes_a_second"][1] / table["predicted"][1], rel=1e-2)
    assert table["peak_gib"].isna().all()
    read = tables.group(table, "recompute")
    assert read.index.tolist() == ["fast", "1"]
    assert tables.group(table, "recompute BraTS").empty


@pytest.mark.parametrize("name", ["CacheDataset", "PersistentDataset"])
def test_monais_caches_hand_out_what_the_files_hold(name: str, tmp_path: Path, monkeypatch) -> None:
    size = (8, 8, 8)
    cached = sources.source(Lever("loading", name, source=name), size, 3, tmp_path)
    read = VolumeFolder(tmp_path, size, cache_gib=0)
    assert (len(cached), cached.names(), cached.layout) == (3, read.names(), read.layout)
    monkeypatch.setattr(VolumeFolder, "__getitem__", lambda self, index: pytest.fail("it is kept"))
    kept = [cached[index] for index in range(3)]
    monkeypatch.undo()
    for index, (image, mask) in enumerate(kept):
        torch.testing.assert_close((image, mask), read[index], rtol=0, atol=0)


def test_a_loader_augments_anew_each_time(tmp_path: Path) -> None:
    """The mask goes with its image and keeps its values; the reference's volumes stay as they are."""
    lever = BY_KEY["augmentation-by-2-loading-processes"]
    plain = sources.source(dataclasses.replace(lever, augments=""), (16, 16, 16), 2, tmp_path)
    augmented = sources.source(lever, (16, 16, 16), 2, tmp_path)
    assert (len(augmented), augmented.names(), augmented.layout) == (2, plain.names(), plain.layout)
    torch.testing.assert_close(plain[1], plain[1], rtol=0, atol=0)
    drawn = [augmented[1] for _ in range(3)]
    for image, mask in drawn:
        assert (image.shape, mask.shape) == (plain[1][0].shape, plain[1][1].shape)
        assert not torch.equal(image, plain[1][0])
        assert set(mask.unique().tolist()) == set(plain[1][1].unique().tolist())
        inside = (mask > 0).any(dim=0)
        assert image[:, inside].mean() > image[:, ~inside].mean() + 0.3
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_a_ram_disk_holds_what_the_disk_cache_does(tmp_path: Path) -> None:
    kept = sources.source(Lever("loading", "x", source="RAM disk"), (8, 8, 8), 2, tmp_path)
    assert any(tmp_path.iterdir())
    torch.testing.assert_close(
        kept[1], sources.source(Lever("loading", "y"), (8, 8, 8), 2, tmp_path)[1], rtol=0, atol=0
    )


@pytest.mark.parametrize(("key", "same"), [("reference-fast", True), ("optimizer-adam-not-fused", False)])
@pytest.mark.long
def test_only_one_lever_trains_with_an_optimizer_of_its_own(key: str, same: bool, monkeypatch) -> None:
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), workers=0, accumulation=1)
    trainer = Trainer(config, Phantom(2, (8, 8, 8)), torch.device("cpu"))
    own, before = trainer.optimizer, trainer.unet.out[2].weight.detach().clone()
    monkeypatch.setattr(worker, "Trainer", lambda *_, **__: trainer)
    worker.trained(BY_KEY[key], config, trainer.volumes, trainer.device, 0.0)
    assert (trainer.optimizer is own) is same
    assert not trainer.optimizer.defaults["fused"]
    assert not torch.equal(trainer.unet.out[2].weight, before)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.long
def test_each_forward_pass_has_an_autocast_of_its_own(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One around them all would keep the first step's cast weights; what loaders have ready is no volume of theirs."""
    lever = dataclasses.replace(BY_KEY["precision-bf16-autocast"], workers=workers, source="phantom")
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), workers=workers, accumulation=1)
    trainer = Trainer(config, Phantom(3, (8, 8, 8)), torch.device("cpu"))
    monkeypatch.setattr(worker, "Trainer", lambda *_, **__: trainer)
    entered, steps = [], []
    made, stepped = torch.autocast, trainer.train_step
    monkeypatch.setattr(torch, "autocast", lambda *given: entered.append(given) or made(*given))
    monkeypatch.setattr(trainer, "train_step", lambda: steps.append(None) or stepped())
    found = worker.trained(lever, config, trainer.volumes, trainer.device, 0.0)
    assert entered == [("cpu", torch.bfloat16)] * len(steps)
    recorded = len(steps) - found["steps"] - (2 + worker.WARMUP)
    assert recorded - workers * lever.prefetch == min(found["steps"], worker.RECORDED)


def test_a_loader_of_its_own_trains_on_the_same_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    lever = BY_KEY["loading-disk-2-processes-8-batches-ahead"]
    assert lever.loads_otherwise
    assert not BY_KEY["loading-disk-2-processes"].loads_otherwise
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), workers=2, accumulation=1)
    trainer = Trainer(config, Phantom(3, (8, 8, 8)), torch.device("cpu"))
    made, asked = trainer_module.DataLoader, []
    monkeypatch.setattr(trainer_module, "DataLoader", lambda *a, **k: asked.append(made(*a, **k)) or asked[-1])
    with contextlib.closing(trainer):
        ahead = next(trainer.batches(lever.pinned, lever.prefetch))
        (own,) = asked
        assert (own.prefetch_factor, own.pin_memory, own.num_workers) == (8, False, 2)
        torch.testing.assert_close(ahead, list(trainer._next()), rtol=0, atol=0)


def test_a_table_of_several_calls_names_each_command(tmp_path: Path) -> None:
    for key, command in (("reference-fast", "first"), ("batch-2", "second")):
        store = of(tmp_path / "t.csv", command=command)
        store.folder.mkdir(exist_ok=True)
        store.path(key).write_text(json.dumps(kept(20.0)))
        store.stamp(key)
    store.collect()
    assert sorted(read_meta(store.out)["command"].split("; ")) == ["first", "second"]


def plays(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
    """A script in the place of each lever's program."""
    script = """
import json, sys
words, found, fails = dict(zip(sys.argv[5::2], sys.argv[6::2])), json.loads(sys.argv[1]), sys.argv[2]
if words["--lever"] == fails:
    sys.exit("out of memory")
found |= {"lever": words["--lever"], "side": int(words["--side"]), "channels": int(words["--channels"])}
open(f"{words['--folder']}/{words['--lever']}.json", "w").write(json.dumps(found))
"""
    real = programs.start

    def played(command: list[str], *how: Any) -> Any:
        return real([sys.executable, "-c", script, json.dumps(kept(20.0)), fails, *command[1:]], *how)

    monkeypatch.setattr("study.throughput.run.machine_meta", lambda command, device: META)
    monkeypatch.setattr(programs, "start", played)


def test_a_lever_that_fails_is_named_and_the_others_are_measured(tmp_path: Path, monkeypatch, capsys) -> None:
    plays(monkeypatch, fails="batch-2")
    levers = [BY_KEY["reference-fast"], BY_KEY["batch-2"], BY_KEY["batch-4"]]
    options = run.Options(device="cpu")
    assert run.measure_levers(levers, tmp_path / "t.csv", options, command=["bench"]) == 1
    said = capsys.readouterr()
    assert "[2/3] batch: 2: out of memory" in said.err
    assert "[3/3] batch: 4: 20 volumes/s" in said.out
    assert read_table(tmp_path / "t.csv", schemas.THROUGHPUT)["ratio"].tolist()[1] == 1.0
    assert run.measure_levers(levers[:1], tmp_path / "t.csv", options, command=["bench"]) == 0
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize("other", [{"side": 8}, {"channels": 32}])
def test_rows_of_another_size_or_width_are_not_taken_for_these(
    other: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lever names its row: at another size it would be there already, or be divided by another size's reference."""
    out, first = tmp_path / "t.csv", BY_KEY["reference-fast"]
    plays(monkeypatch)
    options = run.Options(**other, device="cpu")
    assert run.measure_levers([first], out, options, command=["bench"]) == 0
    before = out.read_bytes()
    for levers in ([first], [BY_KEY["batch-2"]]):
        with pytest.raises(BadInput) as refused:
            run.measure_levers(levers, out, run.Options(device="cpu"), command=["bench"])
        size = f"--size {other.get('side', 128)} --channels {other.get('channels', 64)}"
        assert str(refused.value) == f"{out}: its rows are of {size}; give the same, or another --out"
    assert out.read_bytes() == before
    assert run.measure_levers([BY_KEY["batch-2"]], out, options, command=["bench"]) == 0


def test_the_command_shows_what_it_would_run(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "t.csv")
    command = ["throughput", "--lever", "batch-2,recompute-all", "--out", out, "--dry-run", "--device", "cpu"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines] == ["batch-2", "recompute-all"]
    assert main(["throughput", "--out", out, "--dry-run", "--device", "cpu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(LEVERS)


def test_a_share_is_of_the_references_row_also_where_another_reference_was_measured() -> None:
    groups = ["reference", "batch", "recompute BraTS", "recompute BraTS"]
    table = pd.DataFrame(
        {
            "group": groups,
            "choice": ["fast", "2", "none", "1"],
            "volumes_a_second": [20.0, 22.0, 5.0, 4.0],
            "of_reference": [1.0, 0.9, 1.0, 0.7],
        }
    )
    assert tables.of_the_row(table).tolist() == [1.0, 1.1, 1.0, 0.8]
    assert tables.of_the_row(table.iloc[1:2]).isna().all(), "no reference, no share"


def test_a_repository_without_a_record_is_no_error(tmp_path: Path) -> None:
    assert tables.recorded(tmp_path) == {}
