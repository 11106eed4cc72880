"""`medddpm convnext`: what its parts leave, the tables of them, training and its data, what is refused."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import forks
from helpers.gpu import DEVICE
from helpers.ncu_pages import page

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import ncu
from medddpm.measure.store import Store
from medddpm.measure.tables import read_meta, read_table
from study.cli.convnext import PARTS
from study.cli.main import main
from study.convnext import counted, counters, results, run, training, worker
from study.convnext.operators import OPERATORS
from study.convnext.versions import CASES, Case, problem

CPU = torch.device("cpu")


def test_the_commands_parts_are_the_packages() -> None:
    assert set(PARTS) == set(run.PARTS)


def test_two_parts_make_their_tables_and_are_not_measured_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = programs.start

    def only_one_process(command: list[str], *how: Any) -> Any:
        """Starting a process takes longer than a part of toys: one part has its own, as in use."""
        return start(command, *how) if "training" not in command else forks.Here(worker.main(command[3:]))

    monkeypatch.setattr(programs, "start", only_one_process)
    words = ["convnext", "--toy", "--device", "cpu", "--steps", "3", "--out", str(tmp_path)]
    assert main([*words, "--part", "operators,training"]) == 0
    tables = {name: read_table(tmp_path / f"{name}.csv", schema) for name, schema in results.TABLES.items()
              if (tmp_path / f"{name}.csv").is_file()}  # fmt: skip
    assert set(tables) == {"convnext_operators", "convnext_kernels", "convnext_training", "convnext_samples"}
    rows = tables["convnext_operators"]
    assert rows["variant"].unique().tolist() == ["CPU, one thread", "CPU, all cores"]
    for _, own in rows.groupby("variant"):
        assert own["operator"].tolist() == [*OPERATORS, "total"]
        seconds = own.set_index("operator")["seconds"]
        assert seconds.drop("total").sum() < seconds["total"]
    blocks = tables["convnext_kernels"]
    assert blocks["how"].unique().tolist() == ["processor"]
    assert (blocks["error"] < 1e-5).all()
    (window,) = tables["convnext_training"].to_dict("records")
    assert (window["data"], window["first"], window["steps"]) == ("digits", 1, 3)
    assert 0 < window["loss"] < 2
    assert len(tables["convnext_samples"]) == 2 * 8 * 8
    meta = read_meta(tmp_path / "convnext_training.csv")
    assert meta["packages"]["numba"]
    assert meta["training_seconds"] > 0
    capsys.readouterr()
    assert main([*words, "--part", "training"]) == 0
    assert capsys.readouterr().out.startswith("[1/1] training: there already")
    copies = run.publish(tmp_path, tmp_path / "published")
    assert len(copies) == 2 * len(tables)


def test_what_another_process_measures_is_left_to_it(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(programs, "start", lambda *_: pytest.fail("begun"))
    with Store(tmp_path, {}).alone():
        assert main(["convnext", "--toy", "--device", "cpu", "--part", "training", "--out", str(tmp_path)]) == 1
    said = f"process {os.getpid()} is measuring there; wait for it, or choose another --out"
    assert capsys.readouterr().err == f"medddpm: {tmp_path}: {said}\n"


@pytest.mark.parametrize("name", ["training.json", "convnext_training.csv", "convnext_kernels.meta.json"])
def test_a_file_of_somebody_elses_is_not_replaced(tmp_path: Path, name: str, capsys) -> None:
    (tmp_path / name).write_text('{"my": "own"}')
    assert main(["convnext", "--toy", "--device", "cpu", "--part", "training", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    problem = "a file stands there that this command did not write; give the output another name"
    assert (said.out, said.err) == ("", f"medddpm: {tmp_path / name}: {problem}\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"my": "own"}']


def test_a_page_of_ncus_is_replaced_and_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path, machine_meta(["medddpm"]), results.tables(tmp_path))
    raw_page(tmp_path, ["one"]).rename(tmp_path / results.PAGE)
    results.check(store, [results.COUNTERS])
    (tmp_path / results.PAGE).write_text("patient,age\n")
    with pytest.raises(BadInput, match="a file stands there that this command did not write"):
        results.check(store, [results.COUNTERS])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cuda"], "--device: there is no cuda here"),
        ([], "--part kernels: there is no NVIDIA GPU here"),
        (["--toy"], "--part transfers: there is no NVIDIA GPU here"),
        (["--part", "operators,counters"], "--part counters: there is no NVIDIA GPU here"),
        (["--part", "operators,training", "--data", "{tmp}/none"], "data_batch_1.bin: there is no such file"),
        (["--part", "training", "--out", "{tmp}/file"], "a file stands where its folder should be"),
        (["--part", "operators,training", "--out", "{tmp}/dirs"], "training.json: a folder stands there"),
    ],
)
def test_what_cannot_be_measured_is_said_before_any_work(
    tmp_path: Path, words: list[str], said: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "file").touch()
    (tmp_path / "dirs" / "training.json").mkdir(parents=True)
    given = [word.replace("{tmp}", str(tmp_path)) for word in words]
    assert main(["convnext", "--out", str(tmp_path / "out"), *given]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("part", ["kernels", "transfers"])
def test_a_part_that_needs_a_gpu_says_so(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if DEVICE == "cuda":
        pytest.skip("what is refused without a GPU")
    assert worker.main(["--part", part, "--folder", str(tmp_path), "--device", "cpu"]) == 1
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_a_command_for_each_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convnext", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PARTS)
    assert lines[-1].startswith("python -m study.convnext.counters --folder ")
    assert not (tmp_path / "out").exists()


def test_work_is_what_the_block_computes() -> None:
    """A block of 64 channels at 32²: 49 multiply-adds a value, and 8 · 64 · 64 a pixel."""
    block = next(case for case in CASES if case.operator == "block")
    assert block.flop == 2 * (49 * 64 + 8 * 64 * 64) * 32 * 32
    convolution = next(case for case in CASES if case.operator == "conv2d")
    assert convolution.flop == 2 * 9 * 64 * 64 * 32 * 32
    assert convolution.least_bytes == 4 * (2 * 32 * 32 * 64 + 9 * 64 * 64 + 64)


def test_pytorchs_versions_compute_the_case() -> None:
    for case in (Case("conv2d", 2, 6, 8, 2), Case("layer_norm", 1, 4, 16), Case("block", 2, 5, 16)):
        given = problem(case, CPU)
        known = [version for version in given.versions if "PyTorch" in version.name or "cuDNN" in version.name]
        assert known
        for version in known:
            found = worker.within(version.settings[0], version.run)
            assert given.error(version.output(found)) < (2e-2 if "BF16" in version.name else 1e-5)


@pytest.mark.parametrize("searched", [10.0, 30.0])
def test_a_library_has_the_faster_of_its_own_choice_and_its_search(
    searched: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(Case("conv2d", 1, 4, 8), CPU)
    (version,) = [version for version in given.versions if version.name == "cuDNN FP32"]
    medians, threads = {False: [20.0], True: [searched]}, list[threading.Thread]()

    def graphed(*_: object) -> list[float]:
        threads.append(threading.current_thread())
        return medians[torch.backends.cudnn.benchmark]

    monkeypatch.setattr(worker, "graphed", graphed)
    settings = worker.fastest(version, torch.device("cuda"))
    assert worker.within(settings, lambda: torch.backends.cudnn.benchmark) is (searched < 20)
    assert not torch.backends.cudnn.benchmark
    threads.append(worker.within(settings, threading.current_thread))
    assert len({threading.current_thread(), *threads}) == 4, "a thread keeps the first algorithm that it took"


# what ncu counted


def raw_page(folder: Path, kernels: list[str]) -> Path:
    header = ["ID", "Kernel Name", *counted.METRICS]
    units = ["", "", *("ns" if "time" in m else "byte" if "byte" in m else "%" if "pct" in m else "inst"
                       for m in counted.METRICS)]  # fmt: skip
    rows = [[str(n), name, *("1,000" if "pct" not in m else str(10 * n) for m in counted.METRICS)]
            for n, name in enumerate(kernels)]  # fmt: skip
    path = folder / "raw.csv"
    path.write_text("==PROF== Connected\n" + page([header, units, *rows]))
    return path


def test_launches_between_separators_are_one_versions(tmp_path: Path) -> None:
    path = raw_page(tmp_path, ["_between_versions_1", "one", "_between_versions_1", "two", "three"])
    first, second = counted.counted(path, 2)
    assert (first["launches"], second["launches"]) == (1, 2)
    assert first["duration_us"] == 1
    assert second["dram_mb"] == pytest.approx(4e-3)  # two launches, read and written
    assert second["instructions"] == 2000
    assert second["sm_pct"] == pytest.approx(35)
    with pytest.raises(BadInput, match="2 versions where 3 ran"):
        counted.counted(path, 3)


def test_counters_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program that runs ncu, which a script plays."""
    order = [(CASES[0], "direct"), (CASES[0], "tiled")]
    page = raw_page(tmp_path, ["_between_versions_", "a", "_between_versions_", "b"]).read_text()
    asked: list[list[str]] = []
    monkeypatch.setattr(ncu.Collection, "text", lambda self: asked.append(list(self.program)) or page)
    monkeypatch.setattr(counters, "in_order", lambda *_: order)
    assert counters.main(["--folder", str(tmp_path), "--device", "cpu"]) == 0
    assert (asked[0][2], asked[0][-1]) == ("study.convnext.worker", "cpu")
    assert "--mark" in asked[0]
    store = Store(tmp_path, machine_meta(["medddpm"]), results.tables(tmp_path))
    store.stamp(results.COUNTERS)
    (table,) = store.collect()
    written = read_table(tmp_path / "convnext_counters.csv", results.TABLES["convnext_counters"])
    pd.testing.assert_frame_equal(table, written, check_dtype=False)
    assert table["version"].tolist() == ["direct", "tiled"]
    assert table["size"].unique().tolist() == ["32x32x64"]


# training


def test_training_on_digits_lowers_the_loss() -> None:
    images = training.digits(8)
    assert images.shape == (1797, 3, 8, 8)
    assert (images.min(), images.max()) == (-1, 1)
    diffusion, losses = training.train(images, 30, CPU, batch=16, rate=3e-3, widths=(16, 16), timesteps=10)
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:3])
    drawn = training.draw(diffusion, 2, 8)
    assert drawn.shape == (2, 3, 8, 8)
    assert drawn.abs().max() <= 1
    assert torch.equal(drawn, training.draw(diffusion, 2, 8))


def test_cifar_is_read_from_its_binary_files(tmp_path: Path) -> None:
    for place, name in enumerate(training.CIFAR_FILES):
        row = np.full(training.CIFAR_ROW, 51 * place, np.uint8)
        row[0] = 9  # the label
        row.tofile(tmp_path / name)
    images = training.cifar(tmp_path)
    assert images.shape == (5, 3, 32, 32)
    assert torch.allclose(images[:, 0, 0, 0], torch.tensor([-1.0, -0.6, -0.2, 0.2, 0.6]))
    (tmp_path / training.CIFAR_FILES[2]).write_bytes(b"short")
    with pytest.raises(BadInput, match=r"data_batch_3.bin: its 5 bytes are no rows of 3073"):
        training.cifar(tmp_path)
    (tmp_path / training.CIFAR_FILES[0]).unlink()
    with pytest.raises(BadInput, match="there is no such file; give the folder cifar-10-batches-bin"):
        training.cifar(tmp_path)
