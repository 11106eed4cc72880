"""torch and numpy are enough for `accelerate`; a command that needs more says in one line which extra brings it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

from helpers.profiles import Launch, write_profile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WITHOUT = """
import json, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Without())
"""
ACCELERATE = """
import torch
from torch import nn
from medddpm import FAST, GaussianDiffusion, UNet3D, accelerate, restore

net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv3d(8, 1, 3, padding=1))
x = torch.randn(1, 1, 8, 8, 8)
plain = net(x)
fast = accelerate(net, report=None)(x)
torch.testing.assert_close(fast, plain)
fast.square().mean().backward()
assert all(parameter.grad is not None for parameter in net.parameters())
restore(net)

diffusion = GaussianDiffusion(UNet3D(image_size=8, model_channels=32, channel_mult=(1, 2), attention_rates=(2,)), 10)
with FAST.on(diffusion.denoise_fn):
    diffusion.loss(torch.zeros(1, 1, 8, 8, 8), torch.zeros(1, 2, 8, 8, 8)).backward()
    print(tuple(diffusion.sample(torch.zeros(1, 2, 8, 8, 8), 3, "dpm++").shape))
"""
NAMES = """
from medddpm import BASE, FAST, OPT1, OPT2, OPT12, GaussianDiffusion, UNet3D
from medddpm import accelerate, graphed_step, load_checkpoint, restore
"""
COMMANDS = """
from medddpm.cli.main import main

for words in (["train", "--phantom", "1", "--out", "run", "--steps", "1"], ["check", "."], ["profile", "--out", "p"],
              ["compare", "a.py", "--out", "c"], ["window", "."], ["report", ".", "--out", "r.html"]):
    print(main(words))
"""
COMPARE = """
from medddpm.cli.main import main

print(main(["compare", "a.py", "--tools", "pytorch", "--device", "cpu", "--samples", "1", "--out", "c"]))
"""
READ = """
from medddpm.cli.main import main

print(main(["window", "p", "--start", "0", "--count", "2", "--out", "curve.png"]))
print(main(["report", "p", "--out", "report.html"]))
"""
STEP = """
import torch
from torch import nn

def build():
    return nn.Conv3d(1, 1, 3), lambda model, x: model(x).square().mean(), torch.randn(1, 1, 4, 4, 4)
"""


def required(*names: str) -> set[str]:
    """The distributions that installing these brings."""
    imported: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        if (name := waiting.pop()) not in imported:
            imported.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or [])
            waiting += [canonicalize_name(r.name) for r in needs if not r.marker or r.marker.evaluate({"extra": ""})]
    return imported


def run_without_the_rest(code: str, folder: Path, *also: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` where nothing but torch, numpy, `also`, what they require and this package can be imported."""
    there = required("torch", "numpy", *also) | {"medddpm"}
    distributions = importlib.metadata.packages_distributions()
    blocked = [module for module, of in distributions.items() if there.isdisjoint(map(canonicalize_name, of))]
    assert {"nibabel", "pandas", "safetensors", "scipy", "tqdm"} - set(also) <= set(blocked)
    command = [sys.executable, "-c", WITHOUT + code, json.dumps(blocked)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_accelerate_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    done = run_without_the_rest(ACCELERATE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(1, 1, 8, 8, 8)\n"


def test_every_name_of_the_package_needs_only_what_it_requires(tmp_path: Path) -> None:
    done = run_without_the_rest(NAMES, tmp_path, "safetensors", "tqdm")
    assert done.returncode == 0, done.stderr


def test_compare_needs_what_its_extra_brings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STEP)
    done = run_without_the_rest(COMPARE, tmp_path, "pandas", "matplotlib", "nvidia-ml-py")
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    assert (tmp_path / "c" / "compare.png").is_file()


def test_window_and_report_need_what_their_extra_brings(tmp_path: Path) -> None:
    write_profile(tmp_path / "p", [Launch(), Launch("my_sum", 20.0, "backward")])
    done = run_without_the_rest(READ, tmp_path, "pandas", "matplotlib")
    assert [line for line in done.stdout.splitlines() if line in ("0", "1")] == ["0", "0"], done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"p", "curve.png", "report.html"}


def test_a_command_says_which_extra_brings_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STEP)
    done = run_without_the_rest(COMMANDS, tmp_path)
    assert done.stdout.split() == ["1"] * 6
    assert done.stderr.splitlines() == [
        "medddpm: train needs safetensors; pip install 'medddpm[train]'",
        "medddpm: check needs nibabel; pip install 'medddpm[train]'",
        "medddpm: profile needs pandas; pip install 'medddpm[measure]'",
        "medddpm: compare needs pandas; pip install 'medddpm[measure]'",
        "medddpm: window needs pandas; pip install 'medddpm[measure]'",
        "medddpm: report needs pandas; pip install 'medddpm[measure]'",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]
