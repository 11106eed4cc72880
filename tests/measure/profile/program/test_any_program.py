"""`medddpm profile FILE` and `-- COMMAND` from outside: tables and descriptions, what is resumed, what is refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.ncu_pages import Raw

from medddpm.cli.main import main
from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.profile import ncu, trace
from medddpm.measure.profile.parse import parse
from medddpm.measure.profile.program import any_program, hooked_run, program_trace
from medddpm.measure.profile.program.any_program import AnyProgram, ProgramRun
from medddpm.measure.profile.program.observer import STEP, Order
from medddpm.measure.profile.records import is_finished
from medddpm.measure.schemas import TRACE
from medddpm.measure.tables import meta_path, read_meta, read_table

TRAIN = """
import pathlib, sys
import torch
import beside
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
pathlib.Path(sys.argv[1]).write_text(" ".join([*sys.argv[2:], beside.WORD, sys.modules["sitecustomize"].WORD]))
for step in range(40):
    optimizer.zero_grad()
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""
NCU = r"""#!/bin/bash
# Plays ncu: runs the program behind -o REPORT and leaves a report, or prints PAGE; FAKE says how it fails.
echo "$@" >> "$FAKE_LOG"
case "$1 $FAKE" in
--version*) echo "Version 2025.3.1.0 (build 1)"; exit ;;
--import*) exec cat "$PAGE" ;;
*closed) echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1 ;;
*dies) echo "==ERROR== Failed to profile a kernel"; exit 9 ;;
esac
while [ "$1" != -o ]; do shift; done
report="$2.ncu-rep"; shift 2
"$@" && echo report > "$report"
"""
STEP_FILE = """
import torch
def build():
    return torch.nn.Linear(4, 4), lambda model, x: model(x).square().mean(), torch.randn(2, 4)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script that plays ncu on the PATH, and acts as if there were a GPU; the file it logs its arguments to."""
    script, log = tmp_path / "bin" / "ncu", tmp_path / "calls.txt"
    script.parent.mkdir()
    script.write_text(NCU)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "page.csv").write_text(Raw().text())
    log.touch()
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PAGE", str(tmp_path / "page.csv"))
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE", "")
    monkeypatch.setattr(ncu, "need_gpu", lambda _what: None)
    return log


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training program in a folder with a blank in its name, with a module beside; and a sitecustomize elsewhere."""
    folder, site = tmp_path / "a folder", tmp_path / "site"
    for path in (folder, site):
        path.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "beside.py").write_text("WORD = 'imported'")
    (site / "sitecustomize.py").write_text("WORD = 'chained'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    return folder / "train.py"


def test_a_program_is_profiled_as_it_is(tmp_path: Path, train: Path, calls: Path, capsys) -> None:
    command = [sys.executable, "a folder/train.py", str(tmp_path / "said"), "--lr", "1"]
    words = ["profile", "--out", "an out", "--warmup", "1", "--", *command]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("[1/2] own_step_run1_trace … 0 launches, ")
    assert printed[1].startswith("A step, told by the calls of Adam, takes ")
    assert any(line.startswith("[2/2] own_step_run1_raw … 3 launches, ") for line in printed)
    assert (tmp_path / "said").read_text() == "--lr 1 imported chained"

    table, raw = (tmp_path / "an out" / f"own_step_run1_{kind}.csv.gz" for kind in ("trace", "raw"))
    assert read_table(table, TRACE).empty
    meta, counted = read_meta(table), read_meta(raw)
    assert {"gpu", "driver", "torch", "ncu", "date", "commit", "command", "seconds"} <= set(meta)
    known = meta["program"]
    assert known["name"] == f"{Path(sys.executable).name} a folder/train.py said --lr 1"
    assert (known["processes"], known["gpus"], known["graphs"], known["varies"]) == (1, None, False, False)
    assert (len(known["step_ms"]), known["steps_seen"], known["loading_ms"]) == (5, 1 + 5 + 1 + 2, None)
    assert counted["program"] == known
    assert str(tmp_path) not in json.dumps([meta, counted])
    (collected,) = (line for line in calls.read_text().splitlines() if "-o" in line.split())
    assert "--target-processes all --profile-from-start off --filter-mode per-launch-config" in collected
    assert "--graph-profiling" not in collected

    assert main(words) == 0
    assert capsys.readouterr().out.count("there already") == 2
    train.write_text(TRAIN + "# changed\n")
    assert not ProgramRun(any_program.any_program(command, warmup=1), 1, "trace").is_there(tmp_path / "an out")


@pytest.mark.parametrize(("fake", "told"), [("closed", "counters are closed (ERR_NVGPUCTRPERM); "), ("", "")])
def test_without_counters_the_trace_is_all(
    fake: str, told: str, tmp_path: Path, train: Path, calls: Path, monkeypatch, capsys
) -> None:
    """The trace is there already; what is left is said in a line, and is no failure."""
    program = any_program.any_program([sys.executable, str(train)])
    trace_there(program, tmp_path / "out")
    monkeypatch.setenv("FAKE", fake)
    if not fake:
        monkeypatch.setattr(programs, "CUDA", str(tmp_path / "cuda"))
        (tmp_path / "bin" / "ncu").unlink()
    assert main(["profile", "--out", "out", "--", sys.executable, str(train)]) == 0
    printed, errors = capsys.readouterr()
    line = printed.splitlines()[-1]
    assert errors == ""
    assert line.startswith("The trace is all: times, families, phases and idle time, but no counters. ncu: ")
    assert (told or "it is neither on the PATH nor in ") in line
    assert not list((tmp_path / "out").glob("*raw*"))


def trace_there(program: AnyProgram, out: Path, **known: object) -> None:
    """Leaves the trace of a program, as it is after a first run."""
    run = ProgramRun(program, 1, "trace")
    out.mkdir()
    trace.write([(0, "k", "(1, 1, 1)", "(1, 1, 1)", 9, "forward", 7, 0)], run.path(out))
    told = {"processes": 1, "graphs": False, **known}
    meta_path(run.path(out)).write_text(json.dumps({"measurement": run.measurement(), "program": told}))
    assert run.is_there(out)


def test_counters_cut_short_are_kept_until_there_is_more_time(tmp_path: Path, train: Path, calls: Path, capsys) -> None:
    command = [sys.executable, str(train), str(tmp_path / "said")]
    program = any_program.any_program(command)
    trace_there(program, tmp_path / "out")
    table = ProgramRun(program, 1, "trace").path(tmp_path / "out")
    trace.write([(k, f"k{k}", "(1, 1, 1)", "(1, 1, 1)", 9, "forward", 7, 0) for k in range(9)], table)
    words = ["profile", "--out", "out", "--seconds", "{}", "--", *command]
    for seconds, printed in (("2", "3 launches"), ("1", "there already")):
        assert main([word.format(seconds) for word in words]) == 0
        out = capsys.readouterr().out
        assert printed in out.splitlines()[1]
        said = f"note: ncu profiled 3 of 9 distinct launches in {seconds} s, the first of the step"
        assert (said in out) == (printed == "3 launches")
    del words[3:5]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "3 launches" in out.splitlines()[1], "there is more time"
    assert "note: ncu profiled" not in out, "nothing cut it short"
    assert main(words) == 0
    assert capsys.readouterr().out.count("there already") == 2


def test_counters_of_several_processes_are_not_tried(tmp_path: Path, train: Path, calls: Path, capsys) -> None:
    program = any_program.any_program([sys.executable, str(train)])
    trace_there(program, tmp_path / "out", processes=2)
    assert any_program.profile(program, tmp_path / "out") == 0
    assert "2 processes make its step and wait for each other" in capsys.readouterr().out
    assert calls.read_text() == ""


def test_launches_of_cuda_graphs_are_asked_for() -> None:
    run = ProgramRun(AnyProgram(("python", "train.py")), 1, "raw")
    assert "--graph-profiling node" in " ".join(run.collection(Path("x"), graphs=True).options)


def test_a_failure_of_ncu_is_one_and_the_trace_stands(
    tmp_path: Path, train: Path, calls: Path, monkeypatch, capsys
) -> None:
    program = any_program.any_program([sys.executable, str(train)])
    trace_there(program, tmp_path / "out")
    monkeypatch.setenv("FAKE", "dies")
    assert any_program.profile(program, tmp_path / "out") == 1
    assert capsys.readouterr().err == (
        "medddpm: own_step_run1_raw: ended with 9: Failed to profile a kernel; see `medddpm profile --dry-run` for the "
        "command, and try it by hand\n"
    )
    assert is_finished(ProgramRun(program, 1, "trace").path(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*raw*"))


def test_a_step_file_is_profiled_under_a_tool(tmp_path: Path, calls: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_step.py").write_text(STEP_FILE)
    words = ["profile", "my_step.py", "--tool", "autocast-benchmark", "--no-counters", "--out", "out"]
    assert main(words) == 0
    assert "A step, told by medddpm.measure.step(), takes " in capsys.readouterr().out
    known = read_meta(tmp_path / "out" / "own_step_run1_trace.csv.gz")["program"]
    assert (known["name"], known["loading_ms"]) == ("my_step.py, autocast-benchmark", None)
    assert calls.read_text().count("-o") == 0
    assert main(words) == 0
    assert capsys.readouterr().out.count("there already") == 1


FAILING = """
import torch
def build():
    raise ValueError("no data here")
"""


def test_a_step_file_at_fault_is_named(tmp_path: Path, calls: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_step.py").write_text(FAILING)
    assert main(["profile", "my_step.py", "--out", "out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "medddpm: own_step_run1_trace: the program failed after 0 whole steps: my_step.py:4: build() "
    )
    assert not list((tmp_path / "out").glob("own*"))
    assert main(["profile", "none.py", "--out", "out"]) == 1
    assert "none.py: there is no such file" in capsys.readouterr().err


HANGING = """
import threading, time
threading.Thread(target=lambda: time.sleep(600)).start()
"""


@pytest.mark.long
def test_a_program_that_does_not_end_is_ended(tmp_path: Path, train: Path, calls: Path, monkeypatch) -> None:
    monkeypatch.setattr(hooked_run, "ENDING", 0.5)
    train.write_text(HANGING + TRAIN)
    program = any_program.any_program([sys.executable, str(train), str(tmp_path / "said")], warmup=0)
    assert any_program.profile(program, tmp_path / "out", with_counters=False) == 0


BEGUN = ("python", "hooked", "process-1.json")


@pytest.mark.parametrize(
    ("files", "code", "said", "told"),
    [
        ((), 0, "", "no Python in the program loaded the hooks; start Python without -I, -E and -S"),
        (("python",), 0, "", "the program never imported torch; "),
        (("python", "unhooked"), 0, "", "RuntimeError: PyTorch 2.3 or later is needed; "),
        (("python", "hooked"), 0, "", "no step was seen: it called no optimizer of torch.optim; put `with medddpm."),
        (
            ("python", "hooked", "process-1.json", "status.json"),
            0,
            "",
            "ended after 4 whole steps, and 11 are needed; ",
        ),
        ((*BEGUN, "status.json"), 1, "no room", "failed after 4 whole steps: no room; "),
        (
            ("python", "hooked", "process-1.json", "status.json"),
            -9,
            "",
            "failed after 4 whole steps: killed by signal 9",
        ),
        ((), 1, "python: can't open file", "the program failed after 0 whole steps: python: can't open file; "),
    ],
)
def test_why_no_step_was_recorded_is_said(
    files: tuple[str, ...], code: int, said: str, told: str, tmp_path: Path
) -> None:
    for name in files:
        text = {"unhooked": "RuntimeError: PyTorch 2.3 or later is needed"}.get(name, '{"steps_seen": 4}')
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as raised:
        hooked_run.answer(Order(tmp_path, "trace", 3), subprocess.CompletedProcess([], code, said), "a run")
    assert told in str(raised.value)


def test_another_profiler_in_the_program_is_said(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"problem": "RuntimeError: profiler is already enabled", "steps_seen": 11}')
    with pytest.raises(BadInput, match="recording failed: RuntimeError: profiler is already enabled"):
        hooked_run.answer(Order(tmp_path, "trace", 3), subprocess.CompletedProcess([], 0, ""), "a run")


def test_without_a_gpu_a_line_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["profile", "--out", str(tmp_path / "out"), "--", sys.executable, "train.py"]) == 1
    assert "PyTorch finds no NVIDIA GPU here; run the same on a machine with one" in capsys.readouterr().err
    assert main(["profile", "--out", str(tmp_path / "out"), "--", "no-such-program"]) == 1
    assert "no-such-program: there is no such program; " in capsys.readouterr().err


def test_a_dry_run_prints_what_would_be_typed(tmp_path: Path, train: Path, calls: Path, capsys) -> None:
    words = ["--warmup", "0", "--dry-run", "--out", "an out", "--", sys.executable, "a folder/train.py", "said"]
    assert main(["profile", *words]) == 0
    first, typed, second, under_ncu = capsys.readouterr().out.splitlines()
    assert (first, second) == ("mkdir -p 'an out/own_step_run1_trace'", "mkdir -p 'an out/own_step_run1_raw'")
    program = f"{shlex.quote(sys.executable)} 'a folder/train.py' said"
    assert f" MEDDDPM_PROFILE_KIND=trace MEDDDPM_PROFILE_WARMUP=0 {program}" in typed
    assert " -o 'an out/own_step_run1_raw' env " in under_ncu
    assert "PYTHONPATH=" in under_ncu
    assert not Path("an out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--"], "a command is missing after --"),
        (["x.py", "--", "python"], "give either FILE or a command after --"),
        (["--tool", "accelerate", "--", "python"], "argument --tool: only with FILE"),
        (["x.py", "--nvtx", "step"], "argument --nvtx: only with a command after --"),
        (["--no-counters"], "argument --no-counters: only with FILE or a command after --"),
        (["--warmup", "1"], "argument --warmup: only with FILE or a command after --"),
        (["x.py", "--setting", "base"], "argument --setting: only of the published network"),
        (["--size", "64", "--", "python"], "argument --size: only of the published network"),
        (["x.py", "--tool", "quick"], "argument --tool: invalid choice"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], told: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--out", "x", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


# what the trace tells


def event(cat: str, name: str, ts: float, dur: float = 1.0, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def events(*steps: list[tuple[str, int]], graph: bool = False) -> list[dict[str, object]]:
    """A trace of steps of 100 µs; each launches kernels (name, device), which run 500 µs later, in the other order."""
    made: list[dict[str, object]] = []
    for number, kernels in enumerate(steps):
        first = 100.0 * number
        made.append(event("user_annotation", STEP, first, 90.0))
        made.append(event("user_annotation", "forward", first, 90.0))
        for place, (name, device) in enumerate(kernels):
            known = {"correlation": 10 * number + (0 if graph else place)}
            if not graph or not place:
                how = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
                made.append(event("cuda_runtime", how, first + place, **known))
            began = first + 500 - 10 * place
            made.append(
                event("kernel", name, began, 5.0, grid=[1, 1, 1], block=[32, 1, 1], device=device, stream=7, **known)
            )
    return made


STATUS = {"step_ms": [1.0, 3.0, 2.0], "loading_ms": [0.5, 0.4, 0.6], "steps_seen": 11, "by": "the calls of Adam"}


def told(
    made: list[dict[str, object]], folder: Path, processes: int = 1
) -> tuple[Sequence[trace.Launch], dict[str, object], list[str]]:
    """What is read of a trace and said of its program."""
    (folder / "trace.json").write_text(json.dumps({"traceEvents": made}))
    traced = program_trace.read_program_trace(folder / "trace.json", "a run")
    return (traced.steps[-1], *program_trace.described(traced, STATUS, [{"world": processes}]))


def test_the_trace_is_of_the_last_whole_step(tmp_path: Path) -> None:
    made = [*events([("a", 0), ("b", 0)], [("a", 0), ("b", 0)]), event("cuda_runtime", "cudaLaunchKernel", 300)]
    step, known, lines = told(made, tmp_path)
    assert [row[1] for row in step] == ["a", "b"], "in the order in which the host launched them"
    assert [row[-1] for row in step] == [10_000, 0], "ns from the first begin on the GPU"
    assert [row[0] for row in step] == [0, 1]
    assert known == {
        "step_ms": [1.0, 3.0, 2.0], "processes": 1, "gpus": 1, "graphs": False, "varies": False, "differing": 0,
        "loading_ms": [0.5, 0.4, 0.6], "steps_seen": 11, "by": "the calls of Adam",
    }  # fmt: skip
    assert lines == [
        "A step, told by the calls of Adam, takes 2 ms (1 to 3, 3 steps, not profiled); its launches take 0.01 ms",
        "The host waits 0.5 ms of each step for its batch",
    ]


def test_what_is_not_straightforward_is_said(tmp_path: Path) -> None:
    _, known, lines = told(events([("a", 0)], [("a", 0), ("b", 1)]), tmp_path, processes=2)
    assert (known["varies"], known["differing"], known["gpus"], known["processes"]) == (True, 1, 2, 2)
    text = "\n".join(lines)
    assert "the step varies: 2 launches after 1 in the step before, 1 of them different" in text
    assert "2 processes make steps" in text
    assert "launches on 2 GPUs" in text


def test_launches_of_a_graph_are_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    step, known, lines = told(events([("a", 0), ("b", 0)], [("a", 0), ("b", 0)], graph=True), tmp_path)
    assert known["graphs"]
    assert [row[1] for row in step] == ["b", "a"]
    assert "CUDA graphs make launches" in "\n".join(lines)


def test_a_trace_without_its_steps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="the trace holds 1 of 2 steps"):
        told(events([("a", 0)]), tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(BadInput, match="CUPTI saw no kernel launch in the step; move the network"):
        told(events([("a", 0)], []), tmp_path)
    for text in ("", "{", "[]", '{"traceEvents": 5}', '{"traceEvents": [5]}'):
        (tmp_path / "trace.json").write_text(text)
        with pytest.raises(BadInput, match="missing, cut short or damaged"):
            program_trace.read_program_trace(tmp_path / "trace.json", "a run")


DDP = """
import os, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_processes_that_train_together_end_together(tmp_path: Path, calls: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ddp.py").write_text(DDP)
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent)) or "torchrun"
    words = [torchrun, "--nproc-per-node", "2", "--master-port", "29581", "ddp.py"]
    assert main(["profile", "--warmup", "0", "--out", "out", "--", *words]) == 0
    assert read_meta(tmp_path / "out" / "own_step_run1_trace.csv.gz")["program"]["processes"] == 2
    assert "2 processes make its step and wait for each other" in capsys.readouterr().out


ON_GPU = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Conv3d(4, 32, 3, padding=1), nn.ReLU(), nn.Conv3d(32, 4, 3, padding=1)).cuda()
optimizer = torch.optim.Adam(net.parameters())
data = TensorDataset(torch.randn(64, 4, 24, 24, 24))
for epoch in range(9):
    for (batch,) in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        net(batch.cuda()).square().mean().backward()
        optimizer.step()
"""
GRAPHED = """
import torch
import medddpm.measure
x = torch.randn(1024, 1024, device="cuda")
y = x @ x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x @ x).relu().sum()
for step in range(100):
    with medddpm.measure.step():
        graph.replay()
"""


def profiled_on_gpu(text: str, folder: Path, *options: str) -> tuple[pd.DataFrame, dict[str, object]]:
    (folder / "train.py").write_text(text)
    words = ["profile", "--out", str(folder / "out"), *options, "--", sys.executable, str(folder / "train.py")]
    assert main(words) == 0
    table = folder / "out" / "own_step_run1_trace.csv.gz"
    return read_table(table, TRACE), read_meta(table)["program"]


def test_what_a_program_prints_is_followed_while_it_runs(tmp_path: Path) -> None:
    code = "import time; print('==PROF== Profiling a', flush=True); time.sleep(2); print('b')"
    pieces: list[str] = []
    done = hooked_run.run_program([sys.executable, "-c", code], Order(tmp_path, "trace", 2), pieces.append)
    assert "".join(pieces).startswith(any_program.PROFILING)
    assert done.stdout.endswith("b\n")


@pytest.mark.gpu
def test_a_program_on_a_gpu_is_traced_in_phases(tmp_path: Path) -> None:
    table, known = profiled_on_gpu(ON_GPU, tmp_path, "--no-counters")
    assert {"forward", "backward", "update"} <= set(table["phase"].dropna())
    assert table.loc[table["kernel"].str.contains("Memcpy HtoD"), "phase"].unique().tolist() == ["forward"]
    kernels = table[table["grid"].notna()]
    assert kernels.loc[kernels["phase"] == "backward", "kernel"].str.contains("grad|wgrad|bgrad|backward").any()
    assert kernels["phase"].notna().all(), "a launch of no phase"
    assert table["start_ns"].min() == 0
    assert (table["start_ns"].diff().dropna() >= 0).all(), "one stream runs in the order of its launches"
    assert (known["gpus"], known["graphs"], known["varies"], len(known["loading_ms"])) == (1, False, False, 5)
    assert min(known["step_ms"]) > 0


@pytest.mark.gpu
def test_a_cuda_graphs_launches_are_in_the_trace(tmp_path: Path) -> None:
    table, known = profiled_on_gpu(GRAPHED, tmp_path, "--no-counters")
    assert known["graphs"]
    assert len(table[table["grid"].notna()]) >= 3
    assert table["phase"].unique().tolist() == ["forward"]


@pytest.mark.gpu
@pytest.mark.parametrize("text", [ON_GPU, GRAPHED], ids=["plain", "graphed"])
def test_where_counters_are_open_most_of_the_step_has_them(text: str, tmp_path: Path, capsys) -> None:
    profiled_on_gpu(text, tmp_path)
    if "The trace is all" in (printed := capsys.readouterr().out):
        pytest.skip("counters are closed, or there is no ncu")
    raw, trace_ = (tmp_path / "out" / f"own_step_run1_{kind}.csv.gz" for kind in ("raw", "trace"))
    parsed = parse(raw, "OWN", "step", trace=trace_)
    assert str(parsed) in printed
    assert parsed.matched is not None
    assert parsed.matched > 0.9


@pytest.mark.gpu
def test_on_a_gpu_counting_stops_after_the_seconds_given(tmp_path: Path, capsys) -> None:
    """The program makes its step to the end all the same, and ncu writes the report."""
    layers = "\n".join(f"net.append(torch.nn.Linear(1024, {width}).cuda())" for width in range(64, 1024, 8))
    wide = f"import torch\nnet = []\n{layers}\n"
    loop = """
x = torch.randn(64, 1024, device="cuda")
optimizer = torch.optim.SGD([p for layer in net for p in layer.parameters()], lr=1e-6, foreach=False)
for step in range(40):
    sum(layer(x).square().mean() for layer in net).backward()
    optimizer.step()
"""
    profiled_on_gpu(wide + loop, tmp_path, "--seconds", "5")
    if "The trace is all" in (printed := capsys.readouterr().out):
        pytest.skip("counters are closed, or there is no ncu")
    (said,) = re.findall(r"note: ncu profiled (\d+) of (\d+) distinct launches in 5 s", printed)
    assert 0 < int(said[0]) < int(said[1])


@pytest.mark.gpu
def test_a_step_under_accelerate_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "my_step.py").write_text(ON_GPU_STEP)
    words = ["profile", str(tmp_path / "my_step.py"), "--no-counters", "--out"]
    for tool in ("pytorch", "accelerate"):
        assert main([*words, str(tmp_path / tool), "--tool", tool]) == 0
    kernels = [set(read_table(tmp_path / tool / "own_step_run1_trace.csv.gz", TRACE)["kernel"]) for tool in
               ("pytorch", "accelerate")]  # fmt: skip
    assert kernels[0] != kernels[1]


ON_GPU_STEP = """
import torch
from torch import nn
def build():
    net = nn.Sequential(nn.Conv3d(4, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv3d(32, 4, 3, padding=1))
    return net, lambda model, x: model(x).square().mean(), torch.randn(2, 4, 32, 32, 32)
"""
