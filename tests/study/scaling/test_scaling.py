"""The scaling bench: what is planned, two processes under torchrun, a launch that fails halfway, efficiencies."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.ranks import run_ranks
from helpers.scaling_records import META, record

from medddpm.measure import programs
from medddpm.measure.machine import MACHINE, of_machine
from medddpm.measure.store import rows_folder
from medddpm.measure.tables import read_meta, read_table, write_table
from study.cli.main import main
from study.records import schemas
from study.scaling import results, run, tables, worker
from study.scaling.cases import case, plan

KILLED = "killed by signal 9, SIGKILL"
PLACE: dict[str, Any] = {"network": "med-ddpm", "setting": "BASE", "side": 8, "channels": 32}


def test_weak_and_strong_scaling_are_planned() -> None:
    (one, four) = plan(["med-ddpm"], ["FAST"], [1, 4], ["step"])
    assert [row.micro_steps for row in one] == [1, 2, 4], "4 together on one, 1 each on four"
    found = {(row.micro_steps, row.gradient_dtype, row.bucket_mib) for row in four}
    assert found == {(n, d, b) for n in (1, 2) for d in ("fp32", "bf16") for b in (32, 0)}
    assert {row.gradient_dtype for row in one} == {None}
    everything = plan()
    assert len({row.key for rows in everything for row in rows}) == sum(map(len, everything))
    for rows in everything:
        assert len({(row.network, row.setting, row.gpus) for row in rows}) == 1, "which a launch has in common"
        place = {name: getattr(rows[0], name) for name in ("network", "setting", "gpus", "side", "channels")}
        assert [case(row.word, **place) for row in rows] == rows


@pytest.mark.long
def test_two_processes_under_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case(word, gpus=2, **PLACE) for word in ("step:1:bf16:32", "step:1:bf16:0", "all-reduce:1:fp32")]
    options = run.Options(samples=2, limit=60, device="cpu")
    out = tmp_path / "scaling.csv"
    assert run.measure_cases([cases], out, options, command=["bench"]) == 0
    table = read_table(out, schemas.SCALING)
    assert table["measure"].tolist() == ["step", "step", "all-reduce"]
    assert table["samples"].tolist() == [2, 2, 2]
    at_once, step, reduced = table.to_dict("records")
    assert (at_once["bucket_mib"], step["bucket_mib"]) == (0, 32)
    assert at_once["sent_mib"] == step["sent_mib"]
    assert step["alone_ms"] > 0
    assert 2 * step["sent_mib"] == pytest.approx(reduced["sent_mib"], rel=1e-3), "BF16 is half of FP32"
    assert table["peak_gib"].isna().all()
    assert table[list(MACHINE)].drop_duplicates().to_dict("records") == [of_machine(read_meta(out))], "each row says it"
    assert run.measure_cases([cases], out, options, command=["bench"]) == 0
    assert capsys.readouterr().out.count("there already") == 3


KEPT = """
import gc, sys, weakref, torch
from medddpm.runtime.ranks import joined
from study.scaling.worker import Bench
with joined(torch.device("cpu")):
    bench = Bench("med-ddpm", "BASE", 8, 32, torch.device("cpu"), 1)
    kept, build = [], bench._trainer
    def watched(*how):
        trainer = build(*how)
        kept.extend(map(weakref.ref, trainer.unet.parameters()))
        return trainer
    bench._trainer = watched
    bench._step(1, "fp32")
    bench._all_reduce("bf16")
    gc.collect()
    print(len(kept), sum(parameter() is not None for parameter in kept))
"""


@pytest.mark.long
def test_a_row_leaves_no_weights_behind() -> None:
    """They would stand in the next row's peak memory."""
    for ended in run_ranks(2, KEPT):
        assert ended.returncode == 0, ended.stderr
        held, left = map(int, ended.stdout.split())
        assert held > 100
        assert left == 0


def test_after_a_row_that_fails_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, calls, real = tmp_path / "s.csv", [], programs.start
    script = """
import json, sys
for word, path, found in json.loads(sys.argv[1]):
    if word == "step:2:":
        sys.exit(sys.argv[2])
    open(path, "w").write(json.dumps(found))
"""

    def played(command: list[str], *how: Any) -> Any:
        words = command[command.index("--rows") + 1 :]
        calls.append(words)
        left = []
        for word in words:
            row = case(word, gpus=1, **PLACE)
            found = {"ms": [2.0, 4.0], "peak_bytes": 2**30, "case": dataclasses.asdict(row), "date": "2026-01-01"}
            left.append((word, str(rows_folder(out) / f"{row.key}.json"), found))
        said = f"noise\n{worker.FAILED}out of memory\n=====\n"
        return real([sys.executable, "-c", script, json.dumps(left), said], *how)

    monkeypatch.setattr(run, "machine_meta", lambda command, device: META)
    monkeypatch.setattr(programs, "start", played)
    launches = plan(["med-ddpm"], ["BASE"], [1], side=8, channels=32)
    assert run.measure_cases(launches, out, run.Options(device="cpu"), command=["bench"]) == 1
    assert calls == [["step:1:", "step:2:", "sample:1:"], ["sample:1:"]]
    said = capsys.readouterr()
    assert said.err == "medddpm: [2/3] med-ddpm BASE, 1 GPU: step of 2 volumes a GPU: out of memory\n"
    assert "[3/3] med-ddpm BASE, 1 GPU: sample: 3 ms" in said.out
    assert read_table(out, schemas.SCALING)["measure"].tolist() == ["step", "sample"]
    assert list(read_meta(out)["failed"].values()) == ["out of memory"]


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        (f"[rank1] {worker.FAILED}cpu: it is full\n{worker.FAILED}rank 0 lost another\n===", "cpu: it is full"),
        ("Cause:\n  Signal 9 (SIGKILL) received by PID 7\n====", f"{KILLED} (out of memory?); use a smaller --size"),
        ("Cause:\n  Signal 11 (SIGSEGV) received by PID 7\n====", "killed by signal 11, SIGSEGV"),
        ("no module\n", "no module"),
    ],
)  # fmt: skip
def test_the_first_process_that_failed_says_why(printed: str, problem: str) -> None:
    assert run._problem(subprocess.CompletedProcess([], 1, printed)) == problem
    assert run._problem(subprocess.CompletedProcess([], 0, printed)) == ""


def test_a_process_alone_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    words = ["--network", "med-ddpm", "--setting", "BASE", "--side", "8", "--device", "cpu", "--folder", str(tmp_path)]
    try:
        assert worker.main([*words, "--channels", "40", "--rows", "step:1:"]) == 1
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().err.startswith(f"{worker.FAILED}--channels: ")
    assert list(tmp_path.iterdir()) == []


def test_efficiencies_are_against_one_gpu() -> None:
    table = record(
        step_1_1_none=40, step_1_2_none=80, step_2_1_fp32=50, step_2_2_bf16=100, sample_1_1_none=10, sample_2_1_none=20
    )
    found = tables.efficiency(table).set_index("micro_steps")
    assert found.loc[1, ["weak", "strong"]].tolist() == pytest.approx([80, 80]), "80 ms on one, 2 × 50 on two"
    assert found.loc[2, "weak"] == pytest.approx(80)
    assert pd.isna(found.loc[2, "strong"]), "4 volumes on one GPU were not measured"
    assert found["communication_pct"].tolist() == pytest.approx([5, 5])
    drawn = tables.sampling(table)
    assert drawn["volumes_an_hour"].tolist() == pytest.approx([360_000, 360_000])
    assert drawn["efficiency"].tolist() == pytest.approx([100, 50])


def test_published_rows_that_were_not_measured_again_stay(tmp_path: Path) -> None:
    folder = tmp_path / "figures" / "records" / "cpu"
    for out, table in (("a", record(step_1_1_none=40, step_2_1_fp32=50)), ("b", record(step_2_1_fp32=45))):
        path = tmp_path / out / tables.NAME
        write_table(table, path, schemas.SCALING, {**META, "failed": {}})
        results.publish(path, folder)
    assert tables.recorded(tmp_path)["cpu"]["median_ms"].tolist() == [40, 45]
    assert tables.recorded(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("words", [["--network", "monai-unet"], ["--setting", "norm"], ["--measure", "forward"]])
def test_what_is_not_measured_is_a_wrong_argument(words: list[str], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["scaling", *words, "--device", "cpu", "--out", str(tmp_path / "s.csv")])
    assert stopped.value.code == 2
    assert f"argument {words[0]}: '{words[1]}' is none of" in capsys.readouterr().err


def test_more_gpus_than_there_are_and_one_of_them_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.present(None, "cpu") == [1, 2]
    assert run.present([3], "cpu") == [3]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert run.present(None, "auto") == [1, 2, 4]
    with pytest.raises(run.BadInput, match="there are 4 GPUs here"):
        run.present([8], "auto")
    with pytest.raises(run.BadInput, match="each process takes a GPU of its own"):
        run.present(None, "cuda:1")


def test_a_dry_run_prints_torchruns_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--network", "med-ddpm", "--setting", "fast", "--measure", "step", "--gpus", "2", "--device", "cpu"]
    assert main(["scaling", *words, "--out", str(tmp_path / "s.csv"), "--dry-run"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("python -m torch.distributed.run --standalone --nproc-per-node 2 -m study.scaling.")
    assert "sample" not in line.partition("--rows")[2]
    assert not (tmp_path / "s.rows").exists()
