"""Several machines: the line that all files of `site/cluster/` hold, run by two agents on this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.ranks import free_port
from helpers.repository import ROOT

from medddpm.checkpoints.files import checkpoints_of, read_checkpoint

CLUSTER = ROOT / "site" / "cluster"
FILES = ("train.slurm", "Dockerfile", "medddpm.def")
TRAIN = ("--steps", "3", "--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--sample-every", "0",
         "--accumulation", "1", "--device", "cpu", "-q", "--no-check")  # fmt: skip
# More names than a pipe holds: a reader that leaves after the first would end the script by SIGPIPE.
SCONTROL = '#!/bin/bash\n[ "$*" = "show hostnames here" ] && echo 127.0.0.1 && seq -f "other%g" 20000\n'
# On each "node" the command, all at once; it fails where one does.
SRUN = """#!/bin/bash
[ "$1" = "--kill-on-bad-exit=1" ] && shift
agents=()
for ((node = 0; node < SLURM_NNODES; node++)); do
    "$@" > "$SAID/agent$node" 2>&1 &
    agents+=($!)
done
for agent in "${agents[@]}"; do wait "$agent" || exit 1; done
"""


def line_of(name: str) -> str:
    """The torchrun line of a file of `site/cluster/`."""
    (line,) = re.findall(r"^ *(torchrun .*)$", (CLUSTER / name).read_text(), re.MULTILINE)
    return line


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    place = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**inherited, **place, **more}


def test_every_file_holds_the_same_line() -> None:
    assert len({line_of(name) for name in FILES}) == 1
    assert line_of(FILES[0]).endswith('-m medddpm "$@"')


def test_both_images_hold_the_same_packages() -> None:
    """What is copied into them, and what is installed, in the same order."""
    docker, apptainer = ((CLUSTER / name).read_text() for name in FILES[1:])
    (base,) = re.findall(r"^FROM (.+)$", docker, re.MULTILINE)
    assert re.findall(r"^From: (.+)$", apptainer, re.MULTILINE) == [base]
    installed = [re.findall(r"pip install .+?(?= \\|$)", text, re.MULTILINE) for text in (docker, apptainer)]
    assert installed[0] == installed[1]
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", docker, re.MULTILINE)
    names = re.findall(r"^    (\S+) /opt/medddpm/(\S+)$", apptainer, re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(name for name, _ in names)
    assert all(name == there and (ROOT / name).exists() for name, there in names)


@pytest.mark.parametrize("name", FILES)
def test_every_shell_script_in_them_parses(name: str) -> None:
    text = (CLUSTER / name).read_text()
    inside = {"Dockerfile": r"<<'END'.*?\n(.+?)^END$", "medddpm.def": r"%runscript\n(.+)"}
    script = re.search(inside[name], text, re.MULTILINE | re.DOTALL)[1] if name in inside else text
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_two_agents_end_with_the_weights_of_one(head_folder: Path, tmp_path: Path) -> None:
    """The Slurm script as it is, with stand-ins for Slurm's two programs: a process on each of two nodes, against two
    processes on one."""
    for name, script in (("scontrol", SCONTROL), ("srun", SRUN)):
        program = tmp_path / name
        program.write_text(script)
        program.chmod(0o755)
    found = []
    for nodes, processes in ((2, 1), (1, 2)):
        out, said = tmp_path / f"run{nodes}", tmp_path / f"said{nodes}"
        said.mkdir()
        slurm = {
            "SLURM_NNODES": nodes, "SLURM_GPUS_ON_NODE": processes, "SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "here",
            "PORT": free_port(), "SAID": said, "PATH": f"{tmp_path}{os.pathsep}{environment()['PATH']}",
        }  # fmt: skip
        command = ["bash", str(CLUSTER / "train.slurm"), "train", "--data", str(head_folder), "--out", str(out), *TRAIN]
        done = subprocess.run(
            command, env=environment(**{name: str(value) for name, value in slurm.items()}), timeout=90,
            capture_output=True, text=True,
        )  # fmt: skip
        agents = [path.read_text() for path in sorted(said.iterdir())]
        assert done.returncode == 0, (done.stderr, agents)
        assert len(agents) == nodes
        assert sum("finished at step 3" in printed for printed in agents) == 1
        found.append(read_checkpoint(checkpoints_of(out)[-1]))
    two, one = found
    assert torch.equal(two["losses"], one["losses"])
    assert two["model"].keys() == one["model"].keys()
    assert all(torch.equal(two["model"][name], one["model"][name]) for name in one["model"])
