"""Command lines, what is measured again and what is not, ncu's failures, and the worker; a script plays ncu."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shlex
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from helpers.ncu_pages import Raw
from torch.profiler import ProfilerActivity

from medddpm.cli.main import main
from medddpm.measure import programs
from medddpm.measure.lease import LeftForLater
from medddpm.measure.machine import machine_meta, software
from medddpm.measure.profile import counters as profile_counters
from medddpm.measure.profile import ncu, run, trace, worker
from medddpm.measure.profile.records import is_finished
from medddpm.measure.profile.run import ProfileRun, Program, plan, profile
from medddpm.measure.profile.trace import PHASES
from medddpm.measure.schemas import KERNELS, TRACE, VIEWS
from medddpm.measure.store import Store
from medddpm.measure.tables import meta_path, read_table
from medddpm.switches import BASE, OPT12, SETTINGS
from medddpm.training.trainer import PHASES as TRAINED_PHASES
from medddpm.training.trainer import Trainer

TOY = Program(size=8, channels=32, warmup=1, device="cpu")
MANGLED = "_ZN2at6native13reduce_kernelILi512EEEvi"
SPELLED = "void at::native::reduce_kernel<512>(int)"

FAKE = r"""#!/bin/bash
# Plays ncu: writes a report when it profiles and a table, or PAGE, when it imports one; FAKE says how it fails.
echo "$@" >> "$FAKE_LOG"
for word in "$@"; do [ "$last" = -o ] && report="$word.ncu-rep"; last="$word"; done
case "$1 $FAKE" in
--version*) echo "Version 2025.3.1.0 (build 1)" ;;
*closed) echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1 ;;
*dies) echo "==PROF== Connected"; echo "==ERROR== Failed to profile a kernel" ; exit 9 ;;
*"program fails") echo "no room on the device"; echo "==ERROR== The application returned an error code (1)."; exit 1 ;;
*silent) echo "==WARNING== No kernels were profiled." ;;
--import*)
    if [[ "$FAKE" = old && "$*" = *--nvtx* ]]; then echo "==ERROR== unrecognised option '--nvtx'"; exit 1; fi
    echo "==PROF== a line of the log"
    [ -n "$PAGE" ] && exec cat "$PAGE"
    echo '"ID","Kernel Name","Grid Size","gpu__time_duration.sum"'
    echo '"","","","ns"'
    for id in $(seq 0 $((${LAUNCHES:-100} - 1))); do echo "\"$id\",\"MANGLED\",\"(1, 1, 1)\",\"1,000\""; done ;;
*) echo report > "$report" ;;
esac
""".replace("MANGLED", MANGLED)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the script on the PATH; the file it logs its arguments to."""
    script = tmp_path / "bin" / "ncu"
    script.parent.mkdir()
    script.write_text(FAKE)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    log = tmp_path / "calls.txt"
    log.touch()
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE", "")
    monkeypatch.setattr(ncu, "need_gpu", lambda _what: None)
    return log


def runs_of(calls: Path) -> int:
    """How often the script was told to profile."""
    return sum("profile.worker" in line for line in calls.read_text().splitlines())


def windows(*settings: str, repeat: int = 1) -> list[ProfileRun]:
    return [m for m in plan(settings, ["window"], repeat, program=TOY) if m.kind == "raw"]


# command lines


def test_the_window_is_the_papers() -> None:
    window, launches = plan(["OPT1"], ["window"])
    assert shlex.join(run.collection(window).collect_command(Path("r.ncu-rep"))) == (
        "ncu --clock-control none --import-source no --nvtx --target-processes all --launch-skip 10 --launch-count 100 "
        f"--metrics {','.join(profile_counters.COLLECTED)} -o r python -m medddpm.measure.profile.worker --setting "
        "opt1 --view window --size 128 --channels 64 --accumulation 1 --convert-on gpu --device auto --steps 2"
    )
    assert shlex.join(run.collection(window).export_command(Path("r.ncu-rep"))) == (
        "ncu --import r.ncu-rep --nvtx --page raw --csv --print-kernel-base mangled --print-units base "
        "--print-metric-instances details"
    )
    assert launches.table == "opt1_window_run1_trace.csv.gz"
    traced = shlex.join(run.trace_command(launches, Path("t.csv.gz")))
    assert "--setting opt1 --view window --size 128" in traced
    assert traced.endswith(" --steps 2 --trace t.csv.gz")


def test_the_windows_rules_are_those_of_the_full_set() -> None:
    details = plan(["BASE"], ["window"], details=True)[1]
    assert " --launch-count 100 --set full -o" in shlex.join(run.collection(details).collect_command(Path("r.ncu-rep")))


def test_the_step_profiles_each_distinct_launch_once_and_is_traced() -> None:
    raw, details, plain = plan(["BASE"], ["step"], details=True)
    chosen = "--profile-from-start off --filter-mode per-launch-config --launch-count 1 --kernel-name-base mangled"
    counters, rules = "--metrics gpu__time_duration.sum,", "--section SpeedOfLight --section LaunchStats "
    for one, counted in ((raw, counters), (details, rules)):
        assert f" {chosen} {counted}" in shlex.join(run.collection(one).collect_command(Path("r.ncu-rep")))
    assert "--page details --csv" in shlex.join(run.collection(details).export_command(Path("r.ncu-rep")))
    assert shlex.join(run.trace_command(plain, Path("t.csv.gz"))) == (
        "python -m medddpm.measure.profile.worker --setting base --view step --size 128 --channels 64 --accumulation 1 "
        "--convert-on gpu --device auto --warmup 3 --trace t.csv.gz"
    )


def test_a_moved_window_has_names_of_its_own_and_steps_enough() -> None:
    moved = replace(Program(), window_start=1200, convert_on="cpu")
    (window,) = plan(["OPT2"], ["window"], program=moved)
    command = shlex.join(run.collection(window).collect_command(Path("r.ncu-rep")))
    assert window.table == "opt2_window-1200-cpu_run1_raw.csv.gz"
    assert "--launch-skip 1200 " in command
    assert command.endswith("--convert-on cpu --device auto --steps 4")


def test_caches_that_are_not_flushed_have_tables_of_their_own(capsys) -> None:
    kept = replace(Program(), cache_control="none")
    for one in plan(["OPT1"], ["window", "step"], program=kept):
        if one.kind == "raw":
            command = shlex.join(run.collection(one).collect_command(Path("r.ncu-rep")))
            assert " --target-processes all --cache-control none --" in command
            assert one.table == f"opt1_{one.view}-cache-none_run1_raw.csv.gz"
    names = [one.name for one in plan(["OPT1"], ["window", "step"], program=kept)]
    traced = [name for name in names if name.endswith("trace")]
    assert traced == ["opt1_step-cache-none_run1_trace"], "a window's launches are those of the paper's"
    assert main(["profile", "--setting", "opt1", "--cache-control", "none", "--dry-run", "--out", "x"]) == 0
    assert capsys.readouterr().out.count("--cache-control none") == 2
    assert main(["profile", "--setting", "opt1", "--dry-run", "--out", "x"]) == 0
    assert "--cache-control" not in capsys.readouterr().out


def test_the_program_takes_what_it_is_given() -> None:
    for one in plan(SETTINGS, ["window", "step"], program=TOY):
        words = run.program_command(one)
        arguments = worker.parser().parse_args(words[3:])
        assert SETTINGS[arguments.setting.upper()].name == one.setting


def test_a_repetition_begins_when_every_setting_is_through() -> None:
    names = [m.name for m in plan(["BASE", "OPT1"], ["window", "step"], repeat=2, first=3)]
    third = [f"base_{view}_run3_{kind}" for view in ("window", "step") for kind in ("raw", "trace")]
    third += [name.replace("base", "opt1") for name in third]
    assert names == third + [name.replace("run3", "run4") for name in third]


# measuring


def stopped(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_what_is_there_is_left_alone_and_what_is_partial_is_made_again(
    tmp_path: Path, calls: Path, capsys, monkeypatch
) -> None:
    out = tmp_path / "a folder"
    runs = windows("BASE", "OPT1", repeat=2)
    assert profile(runs, out) == 0
    assert runs_of(calls) == 4
    assert capsys.readouterr().out.splitlines()[1].startswith("[2/4] opt1_window_run1_raw … 100 launches, ")
    table, unlike, torn = (out / m.table for m in runs[:3])
    text = gzip.decompress(table.read_bytes()).decode()
    assert SPELLED in text
    assert MANGLED not in text

    unlike_meta = json.loads(meta_path(unlike).read_text())
    meta_path(unlike).write_text(json.dumps(unlike_meta | {"commands": ["ncu of another kind"]}))
    with monkeypatch.context() as killed:
        killed.setattr(run, "is_finished", lambda *_: False)
        killed.setattr(run, "_counted", stopped)
        with pytest.raises(KeyboardInterrupt):
            profile(runs[2:3], out)
    assert torn.is_file()
    assert not is_finished(torn)
    assert profile(runs, out) == 0
    assert runs_of(calls) == 6
    assert [line.endswith("there already") for line in capsys.readouterr().out.splitlines()] == [
        True,
        False,
        False,
        True,
    ]
    assert json.loads(meta_path(unlike).read_text())["commands"] == unlike_meta["commands"]
    table.unlink()
    assert profile(runs, out) == 0
    assert runs_of(calls) == 7
    assert list(out.glob("*.ncu-rep")) == []


def test_a_lease_takes_no_profile_that_it_could_not_end(tmp_path: Path, calls: Path, monkeypatch, capsys) -> None:
    """As long as the longest before it: what is there costs no time, and a later call makes the rest."""
    left = iter([1000.0, 3.0])
    monkeypatch.setattr(run, "time_left", lambda: next(left))
    monkeypatch.setattr(run.time, "monotonic", itertools.count(0, 5.0).__next__)
    with pytest.raises(LeftForLater, match="1 of 2 profiles are left for a later call"):
        profile(windows("BASE", "OPT1"), tmp_path)
    assert "opt1_window_run1_raw: left for a later call" in capsys.readouterr().out
    monkeypatch.undo()
    assert [is_finished(tmp_path / each.table) for each in windows("BASE", "OPT1")] == [True, False]


def test_a_run_that_was_cut_short_before_its_table_is_made(tmp_path: Path, calls: Path, monkeypatch) -> None:
    runs = windows("BASE")
    with monkeypatch.context() as killed:
        killed.setattr(run, "_counted", stopped)
        with pytest.raises(KeyboardInterrupt):
            profile(runs, tmp_path / "out")
    assert profile(runs, tmp_path / "out") == 0
    assert is_finished(tmp_path / "out" / runs[0].table, runs[0].lines(Path()))


@pytest.mark.parametrize("name", ["base_window_run1_raw.csv.gz", "base_window_run1_raw.meta.json"])
def test_a_table_made_by_hand_is_not_replaced(tmp_path: Path, calls: Path, name: str, capsys) -> None:
    """By the commands that a dry run prints."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("hours of work")
    words = ["--setting", "opt1,base", "--view", "window", "--out", str(out)]
    assert main(["profile", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"medddpm: {out / name}: a file stands there that this command did not write")
    assert runs_of(calls) == 0
    assert [path.read_text() for path in out.iterdir()] == ["hours of work"]


def test_a_folder_that_cannot_be_is_said_before_any_work(tmp_path: Path, calls: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert main(["profile", "--setting", "base", "--view", "window", "--out", str(tmp_path / "file")]) == 1
    assert "a file stands where its folder should be" in capsys.readouterr().err
    assert runs_of(calls) == 0


def test_what_another_process_profiles_is_left_to_it(tmp_path: Path, calls: Path, capsys) -> None:
    with Store(tmp_path, {}).alone():
        assert main(["profile", "--setting", "base", "--view", "window", "--out", str(tmp_path)]) == 1
    said = f"process {os.getpid()} is measuring there; wait for it, or choose another --out"
    assert capsys.readouterr().err == f"medddpm: {tmp_path}: {said}\n"
    assert runs_of(calls) == 0


def test_the_description_says_how_it_was_measured(tmp_path: Path, calls: Path) -> None:
    (window,) = windows("OPT12")
    profile([window], tmp_path)
    meta = json.loads(meta_path(tmp_path / window.table).read_text())
    assert meta["command"].startswith("ncu --clock-control none ")
    assert meta["commands"] == window.lines(Path())
    assert str(tmp_path) not in json.dumps(meta)
    assert meta["measurement"]["setting"] == "OPT12"
    assert (meta["ncu"], meta["launches"]) == ("2025.3.1.0", 100)
    assert {"gpu", "driver", "torch", "date", "commit", "seconds"} <= set(meta)


@pytest.mark.parametrize(
    ("fake", "launches", "told"),
    [
        ("dies", "100", "base_window_run1_raw: ended with 9: Failed to profile a kernel; "),
        ("program fails", "100", "base_window_run1_raw: ended with 1: no room on the device; "),
        ("silent", "100", "base_window_run1_raw: ==WARNING== No kernels were profiled.; "),
        ("", "40", "base_window_run1_raw: ncu profiled 40 launches of 100; "),
        ("", "0", "base_window_run1_raw: "),
    ],
)
def test_a_failed_one_is_named_and_the_rest_go_on(
    tmp_path: Path, calls: Path, monkeypatch, capsys, fake: str, launches: str, told: str
) -> None:
    monkeypatch.setenv("FAKE", fake)
    monkeypatch.setenv("LAUNCHES", launches)
    runs = windows("BASE", "OPT1")
    assert profile(runs, tmp_path / "out") == 2
    complaints = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in complaints] == [m.name for m in runs]
    assert complaints[0].startswith(f"medddpm: {told}")
    assert list((tmp_path / "out").glob("*.meta.json")) == []
    monkeypatch.setenv("FAKE", "")
    monkeypatch.setenv("LAUNCHES", "100")
    assert profile(runs, tmp_path / "out") == 0


def test_an_ncu_that_prints_no_nvtx_is_asked_without(tmp_path: Path, calls: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE", "old")
    assert profile(windows("BASE"), tmp_path / "out") == 0
    assert runs_of(calls) == 1


COMMAND = ["profile", "--setting", "opt1,BASE", "--view", "window"]


def refused(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says on stderr where it cannot measure, and all that it says but for a line's beginning."""
    assert main([*COMMAND, "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "ncu --" not in said.out, "commands whose tables `medddpm profile` would not take for its own"
    (line,) = said.err.splitlines()
    return line


def test_closed_counters_end_it_at_once(tmp_path: Path, calls: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FAKE", "closed")
    assert "counters are closed (ERR_NVGPUCTRPERM); run as root" in refused(tmp_path / "out", capsys)
    assert runs_of(calls) == 1


def test_without_ncu(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(ncu, "need_gpu", lambda _what: None)
    monkeypatch.setattr(programs, "CUDA", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refused(tmp_path / "out", capsys)
    assert line.startswith("medddpm: ncu: it is neither on the PATH nor in ")
    assert line.endswith("or run the same on a machine that has it")


def test_without_a_gpu(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = refused(tmp_path / "out", capsys)
    assert "finds no NVIDIA GPU here; run the same on a machine with one" in line


def test_a_dry_run_prints_what_would_be_typed(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "a folder"
    assert main(["profile", "--dry-run", "--out", str(out)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"mkdir -p {shlex.quote(str(out))}"
    assert len(lines) == 5 * (2 + 1 + 2 + 1)
    assert f"gzip -9n > {shlex.quote(str(out / 'fast_step_run1_raw.csv.gz'))}" in lines[-2]
    assert not out.exists()


def test_what_a_dry_run_prints_can_be_typed_and_parsed(tmp_path: Path, calls: Path, monkeypatch, capsys) -> None:
    """It leaves tables without descriptions, which `medddpm parse` takes."""
    (raw,), out, page = windows("OPT1"), tmp_path / "a folder", tmp_path / "page.csv"
    page.write_text(Raw(kernels=[MANGLED]).text())
    monkeypatch.setenv("PAGE", str(page))
    assert profile([raw], out, dry_run=True) == 0
    subprocess.run(["bash", "-e"], input=capsys.readouterr().out, text=True, check=True)
    assert main(["parse", str(out / raw.table), "--setting", "opt1", "--out", str(tmp_path / "kernels.csv")]) == 0
    assert read_table(tmp_path / "kernels.csv", KERNELS)["kernel"].tolist() == [SPELLED]


@pytest.mark.parametrize("option", ["--setting=base,quick", "--view=trace", "--setting=", "--repeat=0"])
def test_unknown_names_are_refused(option: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--out", "x", option])
    assert ended.value.code == 2


def test_the_command_defaults_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ProfileRun] = []
    monkeypatch.setattr(run, "profile", lambda runs, _out, **_how: begun.extend(runs))
    assert main(["profile", "--out", "x"]) == 0
    assert list(dict.fromkeys(each.setting for each in begun)) == list(SETTINGS)
    assert tuple(dict.fromkeys(each.view for each in begun)) == VIEWS
    assert {each.program for each in begun} == {run.PUBLISHED}


# another Python

OLD = r"""#!/bin/bash
# Plays the Python of an environment with PyTorch 2.2.2; OLD_SAYS is what it answers instead of its versions.
case "$*" in
*--about) echo "UserWarning: an old PyTorch may say this first"; echo "${OLD_SAYS:-$VERSIONS}"; exit "${OLD_ENDS:-0}" ;;
*) exec "$REAL" "$@" ;;
esac
"""
VERSIONS = {"cuda": "12.1", "cudnn": 8902, "torch": "2.2.2+cu121", "triton": None, "python": "3.12.3"}


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a Python that says it has PyTorch 2.2.2."""
    script = tmp_path / "old" / "python"
    script.parent.mkdir()
    script.write_text(OLD)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VERSIONS", json.dumps(VERSIONS))
    monkeypatch.setenv("REAL", sys.executable)
    return str(script)


TOY_OLD = ["--view", "window", "--size", "8", "--channels", "32"]


@pytest.mark.long
def test_another_python_runs_the_program_and_names_the_tables(tmp_path: Path, calls: Path, old: str) -> None:
    out = tmp_path / "out"
    profiled = replace(TOY, torch="2.2.2")
    runs = plan(["OPT2"], ["window"], program=profiled)
    assert profile(runs, out, python=run.interpreter(old)) == 0
    raw, launches = (out / f"opt2_window-torch-2-2-2_run1_{kind}.csv.gz" for kind in ("raw", "trace"))
    assert read_table(launches, TRACE).empty
    for table in (raw, launches):
        meta = json.loads(meta_path(table).read_text())
        assert {name: meta[name] for name in VERSIONS} == VERSIONS
        assert meta["measurement"]["program"]["torch"] == "2.2.2"
        assert "--subject subject_8.pt" in meta["commands"][0]
        assert str(tmp_path) not in json.dumps(meta)
    (command,) = (line for line in calls.read_text().splitlines() if "profile.worker" in line)
    assert f" {old} -m medddpm.measure.profile.worker " in command
    assert sorted(path.name for path in out.glob("[!.]*")) == sorted(
        path.name for table in (raw, launches) for path in (table, meta_path(table))
    )


def test_the_commands_for_another_python_begin_with_the_subject(tmp_path: Path, old: str, capsys) -> None:
    words = ["profile", "--setting", "base", *TOY_OLD, "--python", old, "--dry-run", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    _, first, *others = capsys.readouterr().out.splitlines()
    assert first == "python -m medddpm.measure.profile.worker --prepare subject_8.pt --size 8"
    assert ["--subject subject_8.pt" in line for line in others] == [True, False, True]
    assert "base_window-torch-2-2-2_run1_raw" in others[0]


@pytest.mark.parametrize(
    ("says", "ends", "told"),
    [
        ("no module named torch", "1", "it cannot run the profiled program (no module named torch)"),
        ("Python 3", "0", "it is no Python that runs the profiled program"),
        ("[]", "0", "it is no Python that runs the profiled program"),
    ],
)
def test_a_python_that_cannot_run_the_program_is_refused(
    tmp_path: Path, old: str, monkeypatch, capsys, says: str, ends: str, told: str
) -> None:
    monkeypatch.setenv("OLD_SAYS", says)
    monkeypatch.setenv("OLD_ENDS", ends)
    for path in (old, str(tmp_path / "none")):
        assert main(["profile", *TOY_OLD, "--python", path, "--out", str(tmp_path / "out")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"medddpm: {path}: {told if path == old else 'it is no Python'}")


# the worker


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return worker.build(BASE, worker.subject(8), 32, 2, torch.device("cpu"))


def test_the_phases_cover_a_step_in_order(trainer: Trainer) -> None:
    trainer.phase = torch.profiler.record_function
    trainer.train_step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        trainer.train_step()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    marks = [event for event in events if event.name in PHASES]
    assert PHASES == TRAINED_PHASES
    assert [mark.name for mark in marks] == [*PHASES[:3], *PHASES[:3], PHASES[3]]
    spans = [(mark.time_range.start, mark.time_range.end) for mark in marks]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    work = [event for event in events if event.name.startswith("aten::")]
    outside = [e.name for e in work if not any(a <= e.time_range.start <= b for a, b in spans)]
    assert len(work) > 100
    assert outside == []


@pytest.mark.parametrize("view", ["window", "step"])
def test_a_view_makes_the_steps_it_is_told(view: str, trainer: Trainer, monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(worker, "build", lambda *_: trainer)
    monkeypatch.setattr(trainer, "train_step", lambda: made.append(view))
    assert worker.main(["--view", view, "--device", "cpu", "--steps", "3", "--warmup", "4"]) == 0
    assert len(made) == {"window": 3, "step": 4 + 1}[view]


def test_weights_laid_out_on_the_host_need_no_converting(trainer: Trainer) -> None:
    before = [parameter.clone() for parameter in trainer.unet.parameters()]
    worker.lay_out_on_host(trainer.unet, OPT12)
    laid_out = [parameter.data_ptr() for parameter in trainer.unet.parameters()]
    assert any(p.stride(1) == 1 and p.shape[2] == 3 for p in trainer.unet.parameters() if p.dim() == 5)
    with OPT12.on(trainer.unet):
        assert [parameter.data_ptr() for parameter in trainer.unet.parameters()] == laid_out
    worker.lay_out_on_host(trainer.unet, BASE)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.unet.parameters(), strict=True))


def test_a_trace_without_a_gpu_is_an_empty_table(trainer: Trainer, tmp_path: Path) -> None:
    path, done = tmp_path / "t.csv.gz", trainer.step
    trace.record(trainer.train_step, trainer.device, path, before=trainer.train_step)
    assert read_table(path, TRACE).empty
    assert trainer.step == done + 2


def test_a_trace_from_the_first_launch_on_needs_no_step_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr(Trainer, "train_step", lambda self: steps.append(self.step))
    words = ["--view", "window", "--steps", "3", "--size", "16", "--channels", "32", "--device", "cpu"]
    assert worker.main([*words, "--trace", str(tmp_path / "t.csv.gz")]) == 0
    assert len(steps) == 3
    assert read_table(tmp_path / "t.csv.gz", TRACE).empty


def test_the_program_says_what_it_runs_with(capsys) -> None:
    assert worker.main(["--about"]) == 0
    assert json.loads(capsys.readouterr().out) == software()
    assert software().items() <= machine_meta().items()


def test_a_subject_is_prepared_for_another_python(tmp_path: Path, capsys) -> None:
    path = tmp_path / "subject.pt"
    assert worker.main(["--prepare", str(path), "--size", "8"]) == 0
    here, there = worker.subject(8), worker.Prepared(8, path)
    assert (there.size, there.layout) == (here.size, here.layout)
    assert all(torch.equal(a, b) for a, b in zip(here[0], there[0], strict=True))
    there[0][0].zero_()  # an item is the caller's own
    assert torch.equal(here[0][0], there[0][0])
    words = ["--view", "window", "--device", "cpu", "--subject"]
    (tmp_path / "torn.pt").write_bytes(path.read_bytes()[:100])
    for file, size in ((path, "16"), (tmp_path / "none.pt", "8"), (tmp_path / "torn.pt", "8")):
        assert worker.main([*words, str(file), "--size", size]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{file}: it holds no subject of size {size}; write it ")


def test_fast_needs_the_packages_own_pytorch(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch, "__version__", "2.2.2+cu121")
    assert worker.main(["--view", "step", "--device", "cpu", "--setting", "fast"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--setting: fast needs PyTorch 2.10 or later, and this is 2.2.2+cu121; ")


def test_the_program_says_in_a_line_what_is_wrong(capsys) -> None:
    assert worker.main(["--view", "step", "--device", "abacus"]) == 1
    assert capsys.readouterr().err.startswith("--device: ")


# the trace


def event(cat: str, name: str, ts: float, dur: float = 1.0, **args: object) -> dict:
    """As kineto exports one; times in µs."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def launch(name: str, host: float, gpu: float, dur: float, correlation: int, stream: int = 7) -> list[dict]:
    """A kernel and the call that launched it."""
    shape = {"grid": [64, 2, 1], "block": [128, 1, 1]}
    return [
        event("cuda_runtime", "cudaLaunchKernel", host, correlation=correlation),
        event("kernel", name, gpu, dur, correlation=correlation, stream=stream, **shape),
    ]


def test_a_trace_lists_launches_in_order_with_the_phase_that_launched_them(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "args": {}},
        *launch(MANGLED, 250.0, 900.0, 0.5, 4),
        *launch("second", 110.0, 120.0, 700.0, 2),
        *launch("third", 190.0, 820.0, 1.2345, 3, stream=20),  # runs when the host is long past the backward pass
        event("cuda_runtime", "cudaMemcpyAsync", 11.0, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 12.0, 5.25, correlation=1, stream=7),
        event("user_annotation", "backward", 200.0, 40.0),
        event("user_annotation", "load", 10.0, 10.0),
        event("user_annotation", "forward", 100.0, 99.0),
        event("user_annotation", "ProfilerStep#1", 0.0, 1000.0),
        event("gpu_user_annotation", "backward", 0.0, 1000.0),
    ]
    rows = trace.launches(events)
    trace.write(rows, tmp_path / "a.csv.gz")
    trace.write(rows, tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert list(read_table(tmp_path / "a.csv.gz", TRACE).itertuples(index=False, name=None)) == [
        (0, "Memcpy HtoD (Pinned -> Device)", None, None, 5250, "load", 7, 0),
        (1, "second", "(64, 2, 1)", "(128, 1, 1)", 700_000, "forward", 7, 108_000),
        (2, "third", "(64, 2, 1)", "(128, 1, 1)", 1234, "forward", 20, 808_000),
        (3, SPELLED, "(64, 2, 1)", "(128, 1, 1)", 500, None, 7, 888_000),
    ]


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("sm80_xmma_wgrad_implicit_gemm_f32f32", "sm80_xmma_wgrad_implicit_gemm_f32f32"),
        (f'"0","{MANGLED}","(1, 1, 1)"', f'"0","{SPELLED}","(1, 1, 1)"'),
        ("_Znonsense", "_Znonsense"),
    ],
)
def test_names_are_spelled_out(text: str, spelled: str) -> None:
    assert trace.demangled(text) == spelled
