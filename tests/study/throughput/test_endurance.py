"""A training that is watched: its rows, its end, and what its memory's slope is made of."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import forks

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import MACHINE, of_machine
from medddpm.measure.store import Store
from medddpm.measure.tables import read_meta, read_table
from medddpm.runtime.locks import LOCK
from study.cli.main import main
from study.records import schemas
from study.throughput import endurance, tables

TOY = {"side": 8, "channels": 32, "device": "cpu", "every": 0.2}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watching program, so that tests can change what it does."""

    def start(command: list[str], _stdin: int, printed: IO[bytes], _environment: object) -> forks.Here:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = endurance.main(command[3:])
        printed.write(said.getvalue().encode())
        return forks.Here(status)

    monkeypatch.setattr(programs, "start", start)


@pytest.fixture(autouse=True)
def few_subjects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(endurance, "SUBJECTS", 2)
    monkeypatch.setenv("MEDDDPM_CACHE", str(tmp_path / "cache"))


@pytest.mark.long
def test_a_training_is_watched_and_ended_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over after four rows in which it trained, on any machine."""
    out, trained, watched, row = tmp_path / "endurance.csv", list[bool](), endurance._watched, endurance._row

    def until_four(options: endurance.Options, run: Path) -> tuple[list[dict[str, Any]], int]:
        def counted(*words: Any) -> dict[str, Any]:
            found = row(*words)
            trained.append((run / "tensorboard").is_dir() and len(endurance.logged_steps(run / "tensorboard")) > 0)
            if trained.count(True) == 4:
                object.__setattr__(options, "seconds", 0.0)
            return found

        monkeypatch.setattr(endurance, "_row", counted)
        return watched(options, run)

    monkeypatch.setattr(endurance, "_watched", until_four)
    endurance.watch(out, endurance.Options(100_000, seconds=300, **TOY), command=["medddpm", "bench"])
    table = read_table(out, schemas.ENDURANCE)
    assert len(table) > 3
    assert table["step"].is_monotonic_increasing
    assert 0 < table["step"].iloc[-1] < 100_000
    assert table["seconds"].diff().dropna().round(2).min() >= 0.2
    assert (table["host_mib"] > 50).any()  # a Python with torch in it
    assert table[["busy_pct", "card_mib"]].isna().all(axis=None)
    meta = read_meta(out)
    assert table[list(MACHINE)].drop_duplicates().to_dict("records") == [of_machine(meta)], "each row says it"
    assert meta["torch"] == torch.__version__
    assert read_meta(out)["command"] == "medddpm bench"
    assert tables.endured(table).loc[("8x8x8", "phantom"), "steps"] == table["step"].iloc[-1]


def test_what_was_seen_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGTERM, here after the second row; the same command then watches anew."""
    out, row, rows, began = tmp_path / "e.csv", endurance._row, list[object](), list[list[str]]()
    training = endurance.Options.training

    def interrupted(*words: Any) -> dict[str, Any]:
        rows.append(words)
        if len(rows) == 3:
            signal.raise_signal(signal.SIGTERM)
        return row(*words)

    def noted(options: endurance.Options, run: Path) -> list[str]:
        began.append(training(options, run))
        return began[-1]

    monkeypatch.setattr(endurance, "_row", interrupted)
    monkeypatch.setattr(endurance.Options, "training", noted)
    options = endurance.Options(100_000, seconds=300, **TOY)
    with pytest.raises(KeyboardInterrupt):
        endurance.watch(out, options, command=["x"])
    assert len(read_table(out, schemas.ENDURANCE)) == 2
    monkeypatch.setattr(endurance, "_row", row)
    endurance.watch(out, dataclasses.replace(options, seconds=0.5), command=["x"])
    assert len(began) == 2
    assert len(read_table(out, schemas.ENDURANCE)) <= 3, "rows of a fifth of a second each, of half a second"
    endurance.watch(out, dataclasses.replace(options, seconds=0.5), command=["x"])
    assert len(began) == 2, "there already"


def test_a_training_that_outlives_a_killed_watch_keeps_others_out(tmp_path: Path, monkeypatch) -> None:
    looks = ["sh", "-c", f"ls -l /proc/$$/fd | grep -q {tmp_path}/{LOCK}"]
    monkeypatch.setattr(endurance.Options, "training", lambda *_: looks)
    for held, status in ((Store(tmp_path, {}).alone(), 0), (contextlib.nullcontext(), 1)):
        with held:
            assert endurance._watched(endurance.Options(9, **TOY), tmp_path) == ([], status)


@pytest.mark.long
def test_a_training_from_files_reads_those_written_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = list[list[str]]()

    def watched(options: endurance.Options, run: Path) -> tuple[list[dict[str, object]], int]:
        began.append(sorted(str(path.relative_to(run.parent)) for path in run.parent.rglob("*.nii.gz")))
        done = forks.run(options.training(run))
        assert done.returncode == 0, done.stdout
        return [{"at": 1e12, "seconds": 1.0, "busy_pct": None, "host_mib": 9.0, "card_mib": None, "date": "d"}], 0

    monkeypatch.setattr(endurance, "_watched", watched)
    out = tmp_path / "e.csv"
    endurance.watch(out, endurance.Options(2, files=True, **TOY), command=["medddpm"])
    names = [f"data/{kind}/phantom_000{number}.nii.gz" for kind in ("image", "mask") for number in (0, 1)]
    assert began == [names]
    table = read_table(out, schemas.ENDURANCE)
    assert table[["size", "source", "step"]].to_numpy().tolist() == [["8x8x8", "nii.gz", 2]]


def test_a_training_that_was_watched_is_kept_and_one_of_another_size_joins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trained = tmp_path / "e.csv", []

    def watched(options: endurance.Options, _run: Path) -> tuple[list[dict[str, object]], int]:
        trained.append(options.side)
        at = float(len(trained))
        row = {"at": at, "seconds": at, "busy_pct": 99.0, "host_mib": 9.0, "card_mib": None, "date": "2026-01-01"}
        return [row], 0

    def bench(*words: str) -> int:
        return main(["endurance", "--steps", "9", "--device", "cpu", "--out", str(out), *words])

    def seen() -> list[tuple[str, float]]:
        table = read_table(out, schemas.ENDURANCE)
        return list(zip(table["size"], table["seconds"], strict=True))

    monkeypatch.setattr(endurance, "_watched", watched)
    monkeypatch.setattr(endurance, "logged_steps", lambda _folder: [(0.0, 5)])
    assert bench("--size", "16") == bench("--size", "16") == 0
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "[1/1] 16x16x16 from phantom: step 5 after 1 s", f"{out}: 1 row",
        "[1/1] 16x16x16 from phantom: there already", f"{out}: 1 row",
    ]  # fmt: skip
    assert bench("--size", "8") == 0
    assert seen() == [("16x16x16", 1.0), ("8x8x8", 2.0)]
    before = out.read_bytes()
    assert bench("--size", "8", "--channels", "32") == 1
    (line,) = capsys.readouterr().err.splitlines()
    problem = "it holds another training of 8x8x8 from phantom, of 9 steps"
    assert line == f"medddpm: {out}: {problem}; give --again to replace it, or choose another name"
    assert out.read_bytes() == before
    assert bench("--size", "8", "--channels", "32", "--again") == 0
    assert seen() == [("16x16x16", 1.0), ("8x8x8", 3.0)]
    assert trained == [16, 8, 8]


@pytest.mark.long
def test_a_training_that_fails_is_named(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(endurance, "check_cube", lambda *_: None)  # which would refuse it before
    with pytest.raises(BadInput, match="nothing was measured"):
        endurance.watch(tmp_path / "e.csv", endurance.Options(9, **TOY | {"side": 9}), command=["x"])
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "9x9x9 from phantom: medddpm train: ended with 1; try the command by hand" in said
    assert not (tmp_path / "e.csv").exists()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-9, "killed by signal 9, SIGKILL (out of memory?); use a smaller --size"),
        (-11, "killed by signal 11, SIGSEGV; try the command by hand"),
    ],
)
def test_a_training_that_a_signal_ended_is_told_from_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    monkeypatch.setattr(endurance, "_watched", lambda _options, _run: ([], status))
    with pytest.raises(BadInput, match="nothing was measured"):
        endurance.watch(tmp_path / "e.csv", endurance.Options(9, **TOY), command=["x"])
    assert capsys.readouterr().err == f"medddpm: [1/1] 8x8x8 from phantom: medddpm train: {said}\n"


def test_memory_of_processes_started_is_counted() -> None:
    code = "import subprocess, sys; held = bytes(200 << 20); subprocess.Popen([sys.executable, '-c', {!r}]).wait()"
    inner = "import sys; held = bytearray(b'x') * (100 << 20); print(flush=True); sys.stdin.read()"
    outer = code.format(inner).replace("bytes(", "bytearray(b'x') * (")
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = endurance.memory_of(process.pid)
        process.communicate()
    assert 300 << 20 < taken < 400 << 20
    assert endurance.memory_of(process.pid) == 0


def test_the_step_of_a_moment() -> None:
    steps = [(10.0, 10), (20.0, 20)]
    assert [endurance.step_at(moment, steps) for moment in (9.0, 10.0, 19.0, 99.0)] == [0, 10, 10, 20]
    assert endurance.step_at(1.0, []) == 0


def test_a_training_that_logged_nothing_made_no_step(tmp_path: Path) -> None:
    assert endurance.logged_steps(tmp_path / "tensorboard") == []


def test_the_slope_is_of_the_second_half_of_the_steps() -> None:
    step = np.arange(0, 20_001, 500)
    host = 1000 + 2.0 * step / 1000 + np.where(step < 10_000, 400, 0)  # settles, then two MiB every 1000 steps
    name = {"size": "8x8x8", "source": "phantom", "date": "2026-01-01"}
    busy = np.where(step < 2000, 0.0, 99.0)
    seen = {**name, "step": step, "seconds": step / 10, "busy_pct": busy, "host_mib": host, "card_mib": 5e3}
    found = tables.endured(pd.DataFrame(seen)).loc["8x8x8", "phantom"]
    assert found["host_slope"] == pytest.approx(2)
    assert found["host_slope_within"] == pytest.approx(0, abs=1e-6)
    assert (found["card_slope"], found["card_slope_within"]) == pytest.approx((0, 0), abs=1e-9)
    assert found["busy_pct"] == found["busy_least_pct"] == 99
    few = tables.endured(pd.DataFrame(seen).tail(2)).loc["8x8x8", "phantom"]
    assert np.isnan(few["host_slope"])


def test_the_command_prints_what_it_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["endurance", "--steps", "9", "--size", "64", "--out", str(tmp_path / "e.csv"), "--dry-run"]) == 0
    assert "study.throughput.endurance --steps 9 --side 64 --channels 64" in capsys.readouterr().out
    assert main(["endurance", "--steps", "9", "--files", "--out", str(tmp_path / "e.csv"), "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("--files\n")


def test_what_is_watched_is_the_default_training(tmp_path: Path) -> None:
    words = "-m medddpm train {} --size 64 --channels 64 --setting fast --steps 9 --device auto --out"
    for files, data in ((False, "--phantom 2"), (True, f"--data {tmp_path / 'data'}")):
        command = endurance.Options(9, side=64, files=files).training(tmp_path / "run")
        assert " ".join(command[1:-1]) == words.format(data)
