"""Faults of one of several processes: all processes go on correctly, or end with one message."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from helpers.forks import MODULE, start
from helpers.ranks import free_port, run_ranks
from helpers.runs import newest
from torch.distributed import TCPStore

from medddpm.checkpoints.files import checkpoints_of
from medddpm.cli.main import main
from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.training.run_folder import claim

COMMAND = "import sys; from medddpm.cli.main import main; sys.exit(main(sys.argv[1:]))"
TINY = ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--sample-every", "0", "--device", "cpu", "-q",
        "--no-check", "--seed", "0"]  # fmt: skip
AGENT = ["torch.distributed.run", "--nproc-per-node", "2", "--monitor-interval", "0.1", "--standalone"]


def words(data: Path, out: Path, steps: int, *more: object) -> list[str]:
    return ["train", "--data", str(data), "--out", str(out), "--steps", str(steps), *TINY, *map(str, more)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def until(done, process: BaseProcess, complaint: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert process.is_alive(), complaint.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_bad_volume_of_one_process_ends_all_with_its_name(head_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(head_folder, data)
    bad = sorted((data / "image").iterdir())[1]
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    out = tmp_path / "run"
    began = time.monotonic()
    first, *others = run_ranks(3, COMMAND, *words(data, out, 50))
    assert time.monotonic() - began < 60, "no time-out"
    assert [ended.returncode for ended in (first, *others)] == [1, 1, 1]
    (line,) = first.stderr.splitlines()
    assert bad.name in line
    assert [ended.stderr for ended in others] == ["", ""]


SECOND_ELSEWHERE = """
import os, sys
from medddpm.cli.main import main
data, elsewhere, *words = sys.argv[1:]
sys.exit(main([word.replace(data, elsewhere) if os.environ["RANK"] == "1" else word for word in words]))
"""


@pytest.mark.parametrize("case", ["all", "the second alone", "checked"])
def test_a_folder_that_is_wrong_is_told_once(case: str, head_folder: Path, tmp_path: Path) -> None:
    data, nowhere, out = tmp_path / "data", tmp_path / "nowhere", tmp_path / "run"
    shutil.copytree(head_folder, data)
    if case == "all":
        ended, bad = run_ranks(2, COMMAND, *words(nowhere, out, 5)), nowhere
    elif case == "checked":
        bad = sorted((data / "image").iterdir())[1]
        bad.write_bytes(b"damaged")
        checked = [word for word in words(data, out, 5) if word != "--no-check"]
        ended = run_ranks(2, COMMAND, *checked, "--cache", tmp_path / "cache")
    else:
        ended, bad = run_ranks(2, SECOND_ELSEWHERE, data, nowhere, *words(data, out, 5)), nowhere
    assert [each.returncode for each in ended] == [1, 1]
    (line,) = ended[0].stderr.splitlines()
    assert line.startswith(f"medddpm: {bad}: ")
    assert ended[1].stderr == ""
    assert not out.exists()


def test_what_only_the_first_process_finds_ends_all(head_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    first, second = run_ranks(2, COMMAND, *words(head_folder, tmp_path, 5))
    assert (first.returncode, second.returncode) == (1, 1)
    assert "no run of medddpm" in first.stderr
    assert second.stderr == ""


WAITING = """
import sys, time
from helpers.interruptible import interruptible
from medddpm.__main__ import run
from medddpm.runtime import ranks
interruptible()
ranks.MINUTES = float(sys.argv.pop(1))
sleep, time.sleep = time.sleep, lambda seconds: (print("waits", flush=True), sleep(seconds))
run()
"""
ABSENT = "; start all, or look for what ended one; unset it for one alone"


def waiting(rank: int, world: int, folder: Path, minutes: float, port: int, **more: str) -> BaseProcess:
    """Starts one of several processes, which says in `rank.out` that it waits for another."""
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    command = [str(minutes), *words(folder / "nowhere", folder / "run", 1)]
    files = (folder / f"{rank}.out", folder / f"{rank}.err")
    return start(WAITING, command, {**environment(), **place, **more}, *files)


@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1 did not come"), (1, "rank 0 did not come to 127.0.0.1:{}")])
def test_one_that_is_alone_says_who_did_not_come(tmp_path: Path, rank: int, missing: str) -> None:
    port = free_port()
    process = waiting(rank, 2, tmp_path, 0.01, port)
    process.join(60)
    assert process.exitcode == 1
    said = f"medddpm: WORLD_SIZE: it is 2, and {missing.format(port)} within 0.01 minutes{ABSENT}\n"
    assert (tmp_path / f"{rank}.err").read_text() == said


def test_all_that_came_say_who_did_not(tmp_path: Path) -> None:
    """In torchrun's store, which outlives them: none of them waits in PyTorch for what another one would tell it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    came = [waiting(rank, 5, tmp_path, 0.1, store.port, TORCHELASTIC_USE_AGENT_STORE="True") for rank in (0, 1, 3)]
    for process, rank in zip(came, (0, 1, 3), strict=True):
        process.join(60)
        assert process.exitcode == 1
        said = f"medddpm: WORLD_SIZE: it is 5, and ranks 2, 4 did not come within 0.1 minutes{ABSENT}\n"
        assert (tmp_path / f"{rank}.err").read_text() == said


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("rank", "store"), [(0, False), (1, False), (1, True)])
def test_a_signal_ends_one_that_waits_for_another(tmp_path: Path, sent: signal.Signals, rank: int, store: bool) -> None:
    """Before the first one's store is there, and where torchrun's is. As ever the first one alone says so."""
    port, place = free_port(), {}
    if store:
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port, place = server.port, {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    process = waiting(rank, 2, tmp_path, 1, port, **place)
    printed, complaint = tmp_path / f"{rank}.out", tmp_path / f"{rank}.err"
    until(lambda: printed.exists() and "waits" in printed.read_text(), process, complaint)
    os.kill(process.pid, sent)
    process.join(60)
    assert process.exitcode == 130
    line = "medddpm: interrupted; the same command goes on where it was\n"
    assert complaint.read_text() == ("" if rank else line)


LONG = """
import time
import torch
from medddpm.runtime import ranks
ranks.MINUTES = 0.1
with ranks.joined(torch.device("cpu")):
    group = ranks.Ranks()
    with group.unhurried("check"):
        time.sleep(7 if group.lead else 0)
    print(group.told("through"))
"""


def test_the_first_process_may_be_busy_for_longer_than_the_others_wait_for_one() -> None:
    for ended in run_ranks(2, LONG):
        assert (ended.returncode, ended.stdout) == (0, "through\n"), ended.stderr


SLOW = """
import sys, time, os
from pathlib import Path
import torch
from medddpm.data.volumes import VolumeFolder
from medddpm.training.config import TrainConfig
from medddpm.training.run import train

class Slow(VolumeFolder):
    def __getitem__(self, index):
        time.sleep(0.4 if os.environ["RANK"] == "1" else 0.0)
        return super().__getitem__(index)

config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), sample_every=0, accumulation=1)
train(config, Slow(sys.argv[1], (8, 8, 8)), Path(sys.argv[2]), 11, device="cpu", progress=False)
"""


def test_a_slow_process_is_named(head_folder: Path, tmp_path: Path) -> None:
    first, *others = run_ranks(2, SLOW, head_folder, tmp_path / "run")
    assert first.returncode == 0, first.stderr
    (line,) = [line for line in first.stderr.splitlines() if "takes" in line]
    assert line.startswith("rank 1 on ")
    assert "of them for loading" in line
    assert not any("takes" in ended.stderr for ended in others)


@pytest.mark.long
def test_four_processes_checkpoint_goes_on_with_two_and_with_one(head_folder: Path, tmp_path: Path) -> None:
    """The steps stay what they were, so that the weights do but for the order in which gradients are summed."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    for processes, steps in ((4, 2), (2, 4)):
        for ended in run_ranks(processes, COMMAND, *words(head_folder, out, steps, "--accumulation", 1)):
            assert ended.returncode == 0, ended.stderr
    assert main(words(head_folder, out, 6, "--accumulation", 1)) == 0
    assert main(words(head_folder, whole, 6, "--accumulation", 4)) == 0
    a, b = newest(out), newest(whole)
    torch.testing.assert_close(a["losses"], b["losses"], rtol=1e-4, atol=0)
    for name, weight in a["model"].items():
        torch.testing.assert_close(weight, b["model"][name], rtol=1e-3, atol=3e-5)


def test_steps_that_processes_cannot_share_are_refused(tmp_path: Path) -> None:
    config, volumes = TrainConfig(image_size=8, accumulation=2), Phantom(1, (8, 8, 8))
    assert claim(tmp_path, config, volumes, 4) == 2
    (tmp_path / "checkpoints" / "step-0000001.pt").touch()
    assert [claim(tmp_path, config, volumes, n) for n in (4, 2, 1, 8)] == [2, 4, 8, 1]
    assert claim(tmp_path, replace(config, accumulation=8), volumes, 1) == 8
    with pytest.raises(BadInput, match="of 8 micro-steps, which 3 processes cannot share; start one of 1, 2, 4, 8 pro"):
        claim(tmp_path, config, volumes, 3)
    with pytest.raises(BadInput, match=r"begun with --accumulation 2 \(not 3\)"):
        claim(tmp_path, replace(config, accumulation=3), volumes, 4)


def children(process: BaseProcess) -> dict[int, int]:
    """The processes that torchrun started, by rank."""
    processes = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks = [int(v[5:]) for v in variables if v.startswith(b"RANK=")]
        processes |= dict.fromkeys(ranks, int(pid))
    return processes


@pytest.mark.long
def test_a_killed_process_is_started_again_and_the_weights_are_the_same(head_folder: Path, tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    out, whole = tmp_path / "run", tmp_path / "whole"
    printed, complaint = tmp_path / "printed", tmp_path / "complaint"
    command = [*AGENT, "--max-restarts", "1", "-m", "medddpm", *words(head_folder, out, 12, "--save-every", 3)]
    process = start(MODULE, command, environment(), printed, complaint)
    until(lambda: checkpoints_of(out), process, complaint)
    os.kill(children(process)[1], signal.SIGKILL)  # while the first one may still write
    process.join(120)
    assert process.exitcode == 0, complaint.read_text()
    assert "finished at step 12" in printed.read_text()
    for ended in run_ranks(2, COMMAND, *words(head_folder, whole, 12, "--save-every", 3)):
        assert ended.returncode == 0, ended.stderr
    a, b = newest(out), newest(whole)
    assert a["model"].keys() == b["model"].keys()
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert torch.equal(a["losses"], b["losses"])


def test_sigterm_to_all_saves_once(head_folder: Path, tmp_path: Path) -> None:
    """As a batch system sends it: to torchrun and to all that it started."""
    out, files = tmp_path / "run", (tmp_path / "printed", tmp_path / "complaint")
    command = [*AGENT, "-m", "medddpm", *words(head_folder, out, 100_000, "--save-every", 0)]
    process = start(f"import os; os.setsid(); {MODULE}", command, environment(), *files)
    until(lambda: (out / "tensorboard").exists(), process, files[1])
    time.sleep(1)
    os.killpg(process.pid, signal.SIGTERM)
    process.join(60)
    printed, complaint = (file.read_text() for file in files)
    (path,) = checkpoints_of(out)
    step = newest(out)["step"]
    assert path.name == f"step-{step:07d}.pt"
    assert printed.count(f"stopped at step {step} of 100000") == 1
    assert complaint.count("stopping after this step") == 1
    assert "lost another process" not in complaint
