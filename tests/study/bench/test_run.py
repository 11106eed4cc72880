"""`medddpm bench`: what is planned, measured once, kept, compared with BASE; a script plays ncu."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import forks, recordings
from torch import Tensor, nn
from torch.nn import functional

from medddpm import accelerate, graphed_step, switches
from medddpm.errors import BadInput
from medddpm.fast import layers
from medddpm.fast.graphs import nested
from medddpm.fast.patch import FEATURES
from medddpm.measure import harness, programs, subject
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store, check_beside, rows_folder
from medddpm.measure.tables import read_meta, read_table, write_table
from medddpm.measure.tools import CAPTURED, INFERENCE, OPPONENTS, ORDINARY, TOOLS
from study.bench import results, run, settings, tables, worker
from study.bench.fits import fits
from study.bench.networks import NETWORKS, Problem, build, flops
from study.bench.run import plan
from study.bench.settings import BASE, BENCH_SETTINGS, BESIDE, BY_SLUG, LADDER, OF_A_LOOP, default_settings
from study.bench.worker import Case, Row
from study.cli.main import main, parser
from study.records import schemas

CPU = torch.device("cpu")
SMALL = ["--size", "8", "--channels", "32", "--device", "cpu"]
TOY = [*SMALL, "--samples", "2"]
COMMANDS = [["bench"], ["coverage"], ["throughput"], ["endurance", "--steps", "9"], ["scaling"]]
WAIT = "wait for it, or choose another --out"


def names(jobs: list[run.Row]) -> list[str]:
    return [job.setting.name for job in jobs]


# networks


LARGEST = ("monai-swinunetr", "maisi-autoencoder", "monai-diffusion-attention", "monai-unetr", "monai-vnet")
THERE = [name for name in NETWORKS if name != "torchvision-video" or importlib.util.find_spec("torchvision")]
EVERY = [pytest.param(name, marks=pytest.mark.long) if name in LARGEST else name for name in THERE]


@pytest.mark.parametrize("name", EVERY)
def test_a_network_and_its_batch_are_the_same_in_every_process(name: str) -> None:
    network = NETWORKS[name]
    torch.manual_seed(7)
    side = network.least
    first, second = build(network, side, 32), build(network, side, 32)
    for (known, ours), theirs in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=known)
    silent = [n for n, m in first.named_modules() if isinstance(m, (nn.Conv1d, nn.Conv3d)) and not m.weight.any()]
    assert silent == [], "a layer that starts at zero hides what lies before it"
    problem, again = (Problem(network, side, network.batch, CPU) for _ in range(2))
    for ours, theirs in zip(problem.inputs, again.inputs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    loss, output = problem.loss(first, *problem.inputs)
    with torch.no_grad():
        forward = next(nested.tensors(first(*problem.forward_inputs())))
    torch.testing.assert_close(output.detach(), forward)
    assert forward.shape[-3:] == network.sides(side) or not network.pictures
    assert forward.abs().max() > 0.01
    assert float(loss.detach()) > 0


def test_work_is_that_of_the_published_network() -> None:
    """5.537 TFLOP a forward pass, as its layers add up; a backward pass counts the first layer's input gradient out."""
    work = flops(NETWORKS["med-ddpm"], 128, 1, 64)
    assert work["forward"] == pytest.approx(5.5366631424e12)
    first_layer = 2 * 27 * 3 * 64 * 128**3
    assert work["step"] == pytest.approx(3 * work["forward"] - first_layer, rel=1e-4)
    blocks = {4096: (192, 3), 512: (256, 1)}  # positions: channels, attention blocks of that size
    products = sum(count * 4 * positions**2 * channels for positions, (channels, count) in blocks.items())
    assert work["attention"] == 3 * products, "two products forward, four backward"
    assert NETWORKS["med-ddpm-brats"].sides(192) == (144, 192, 192)
    assert NETWORKS["med-ddpm-brats"].size(192) == "144x192x192"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dynamic_network_architectures.architectures.unet", None)
    with pytest.raises(BadInput, match=r"^--network: PlainConvUNet needs the package dynamic-network-architectures"):
        build(NETWORKS["nnunet-plain"], 16, 32)


# settings


def test_the_ladder_changes_one_thing_a_row() -> None:
    grown = [setting.switches.features for setting in LADDER if setting.switches.features is not None]
    assert [len(features) for features in grown] == list(range(1, len(FEATURES)))
    assert all(before < after for before, after in itertools.pairwise(grown))
    assert set(FEATURES) - grown[-1] == {"hopper"}, "FAST adds the last"
    plain, graphed = (LADDER[place] for place in (4, 5))
    assert (plain.graph, graphed.graph) == (False, True)
    assert (plain.switches.precision, plain.autocast) == (graphed.switches.precision, graphed.autocast)
    assert all((s.graph, s.fused_adam) == (True, True) for s in LADDER[5:])
    assert LADDER[-1].switches == switches.FAST
    for name, setting in switches.SETTINGS.items():
        assert BENCH_SETTINGS[name].switches == setting
    assert len(BY_SLUG) == len(BENCH_SETTINGS) == sum(map(len, (LADDER, BESIDE, OPPONENTS, CAPTURED, INFERENCE)))
    assert set(ORDINARY) < set(BENCH_SETTINGS)


def test_portable_settings_do_without_the_kernels_of_one_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for by each call of the convolution: no other feature differs."""
    asked: list[bool] = []

    def convolved(x, weight, bias, stride, padding, hopper=True):
        asked.append(hopper)
        return functional.conv3d(x, weight, bias, stride, padding)

    monkeypatch.setattr(layers, "conv3d", convolved)
    volume = torch.rand(1, 1, 16, 16, 16)
    features: dict[str, set[str]] = {}
    for name in ("accelerate", "graphed_step"):
        for suffix in ("", " portable"):
            setting = BENCH_SETTINGS[name + suffix]
            network = build(NETWORKS["monai-unet"], 16, 32)
            with setting.on(network) as called:
                features[suffix] = set(network.acceleration.features)
                asked.clear()
                called(volume)
            assert set(asked) == {suffix == ""}
            assert not hasattr(network, "acceleration")
            assert (setting.reader, setting.search, setting.fused_adam) == (name, True, True)
        assert features[""] - features[" portable"] == {"hopper"}
        assert features[" portable"] == BENCH_SETTINGS["+ casts"].switches.features
    assert run.plan(["monai-unet"], ["accelerate-portable"])[0].setting is BENCH_SETTINGS["accelerate portable"]


def test_a_setting_is_put_back() -> None:
    network = build(NETWORKS["med-ddpm"], 8, 32)
    before = {n: p.stride() for n, p in network.named_parameters()}
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    for setting in (BENCH_SETTINGS[name] for name in ("OPT12", "FAST", "+ norm", "cudnn.benchmark")):
        with setting.on(network) as called:
            assert called is network
            assert torch.backends.cuda.matmul.allow_tf32
            assert torch.backends.cudnn.benchmark == setting.search
            assert hasattr(network, "acceleration") == setting.switches.fast
            if setting.switches.features:
                assert set(network.acceleration.features) == setting.switches.features
        assert {n: p.stride() for n, p in network.named_parameters()} == before
        assert not hasattr(network, "acceleration")
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == flags
        assert not torch.backends.cudnn.benchmark


@pytest.mark.long
def test_as_it_comes_nothing_is_set(tmp_path: Path) -> None:
    """A fresh process: cuDNN may round to TF32, products may not, and no algorithm is searched for."""
    asked = """
import torch
from study.bench.settings import BENCH_SETTINGS
network = torch.nn.Conv3d(1, 1, 3)
with BENCH_SETTINGS["PyTorch"].on(network) as called:
    assert called is network and not network._forward_pre_hooks
    cudnn = torch.backends.cudnn
    print(cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark)
"""
    process = forks.start(asked, [], os.environ, tmp_path / "printed", tmp_path / "complaint")
    process.join()
    assert process.exitcode == 0, (tmp_path / "complaint").read_text()
    assert (tmp_path / "printed").read_text().split() == ["True", "False", "False"]


def test_opponents_have_what_their_best_users_give_them() -> None:
    asked = OPPONENTS[1:]
    assert OPPONENTS[0].untouched
    assert all(s.search and s.fused_adam and not s.switches.fast and not s.graph for s in asked)
    compiled = {(s.compiled, s.switches.channels_last) for s in asked if s.compiled}
    modes = ("default", "reduce-overhead", "max-autotune")
    assert compiled == {(mode, last) for mode in modes for last in (False, True)}
    assert all(s.autocast for s in asked if s.compiled)
    assert {s.switches.channels_last for s in asked if s.autocast and not s.compiled} == {False, True}
    assert {s.name for s in OPPONENTS} < set(ORDINARY), "FAST is compared with the best of these"


def test_inference_with_bf16_weights_is_a_rival_of_the_forward_pass_alone() -> None:
    network = NETWORKS["monai-unet-batch"]
    assert {row.measures for row in run.plan(["monai-unet"], [tool.slug for tool in INFERENCE])} == {("forward",)}
    model = build(network, 16, 32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with BENCH_SETTINGS["BF16 weights channels-last"].on(model) as called:
        assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {torch.bfloat16}
        row = Row(INFERENCE[1], Problem(network, 16, 1, CPU), model, called, Case(network.name, 16, 1, 32))
        assert row.work("forward")().dtype == torch.bfloat16
        assert not model.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, msg=name)


def test_a_compiled_step_that_replays_is_told_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop keeps the last output: without the mark, `torch.compile` would record one more graph each step."""
    told: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: told.append("step"))
    network = NETWORKS["monai-unet"]
    model = build(network, 16, 32)
    counts = {}
    for name in ("compile benchmark", "reduce-overhead", "max-autotune channels-last"):
        told.clear()
        row = Row(BENCH_SETTINGS[name], Problem(network, 16, 1, CPU), model, model, Case("monai-unet", 16, 1, 32))
        for measure in ("forward", "step"):
            work = row.work(measure)
            work()
            work()
        counts[name] = len(told)
    assert counts == {"compile benchmark": 0, "reduce-overhead": 4, "max-autotune channels-last": 4}


@pytest.mark.parametrize("name", ["reduce-overhead", "reduce-overhead channels-last", "compile channels-last"])
def test_what_is_compiled_has_no_hook_and_gets_its_inputs_in_the_layout(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.compile` would make the hook a graph of its own, which `accelerate` has not."""
    seen: list[tuple[int, ...]] = []

    class Compiled(nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> None:
            seen.append(x.stride())

    monkeypatch.setattr(torch, "compile", lambda module, mode: Compiled())
    network, setting = build(NETWORKS["monai-mednext"], 32, 8), BENCH_SETTINGS[name]
    with setting.on(network) as called:
        assert not network._forward_pre_hooks
        strides = {p.stride()[1] for p in network.parameters() if p.dim() == 5 and p.shape[1] == 1 < p.shape[2]}
        called(x := torch.zeros(1, 1, 4, 4, 4), torch.zeros(1))
    last = setting.switches.channels_last
    assert strides == ({1} if last else {343}), "depthwise too"
    assert seen == [(x.to(memory_format=torch.channels_last_3d) if last else x).stride()]


def test_a_compiled_step_is_captured_as_a_whole() -> None:
    """Beside what its best user sets, as for the other opponents."""
    modes = ("default", "max-autotune-no-cudagraphs")
    assert {(s.compiled, s.switches.channels_last) for s in CAPTURED} == set(itertools.product(modes, (False, True)))
    assert all(s.graph and s.compiled and s.autocast and s.search and s.fused_adam for s in CAPTURED)
    assert not any(s.replays or s.reader or s.switches.fast for s in CAPTURED)
    assert {s.name for s in CAPTURED}.isdisjoint(ORDINARY), "accelerate stands in an ordinary loop"


@pytest.mark.gpu
def test_a_captured_compiled_step_gives_the_gradients_of_an_ordinary_one(tmp_path: Path) -> None:
    setting, network, device = BENCH_SETTINGS["compile graph"], NETWORKS["monai-unet-batch"], torch.device("cuda")
    model = build(network, 16, 32).to(device)
    with setting.on(model) as called:
        row = Row(setting, Problem(network, 16, 1, device), model, called, Case(network.name, 16, 1, 32))
        assert row.graphed
        worker.repeated(row, "step", 2, tmp_path)
        captured = row.gradient()
        row.drop()
        row.ordinary_step()(*row.problem.inputs)
        torch.testing.assert_close(captured, row.gradient(), rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_accelerated_network_is_compiled_when_asked(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, compiled = build(NETWORKS["med-ddpm"], 8, 32), []

    def compile_(module: torch.nn.Module, mode: str) -> torch.nn.Module:
        compiled.append((module, mode, hasattr(module, "acceleration")))
        return module

    monkeypatch.setattr(torch, "compile", compile_)
    setting = BY_SLUG["fast-compile" if mode == "default" else "fast-reduce-overhead"]
    with setting.on(network):
        pass
    assert compiled == [(network, mode, True)]
    assert setting.fused_adam
    assert setting.search
    assert not setting.autocast, "the fast path sets its own"
    assert setting.replays == (mode == "reduce-overhead")
    assert setting.name not in ORDINARY


# the plan


def test_by_default_the_papers_settings_and_fast() -> None:
    jobs = plan(["med-ddpm"])
    assert names(jobs) == ["BASE", "OPT1", "OPT2", "OPT12", "FAST"]
    assert [job.measures for job in jobs if "sample" in job.measures] == [("forward", "step", "sample")] * 2
    assert [job.setting.name for job in jobs if "sample" in job.measures] == ["BASE", "FAST"]
    assert {job.case for job in jobs} == {Case("med-ddpm", 128, 1, 64)}
    assert all("sample" in job.measures for job in plan(["med-ddpm"], all_samples=True))


def test_the_ladder_is_every_setting_and_others_get_ordinary_tools_and_fast() -> None:
    ladder = names(plan(["med-ddpm"], ladder=True))
    assert ladder == [setting.name for setting in (*LADDER, *BESIDE) if setting.name not in OF_A_LOOP]
    for name in ("monai-unet", "nnunet-plain"):
        jobs = plan([name], ladder=True)
        halved = [tool.name for tool in INFERENCE]
        assert names(jobs) == ["OPT1", "FAST eager", "accelerate", "graphed_step", "FAST", *TOOLS, *halved]
        assert {job.measures for job in jobs[: -len(halved)]} == {("forward", "step")}, "none of them samples"
        assert {job.case.batch for job in jobs} == {2}
    brats = plan(["med-ddpm-brats"])
    assert names(brats) == ["BASE", "FAST"]
    assert brats[0].case == Case("med-ddpm-brats", 192, 1, 64)
    assert default_settings(NETWORKS["med-ddpm"], ladder=True)[0] == BASE


def test_opponents_are_measured_beside_what_else_is_asked() -> None:
    papers = ["BASE", "OPT1", "OPT2", "OPT12", "FAST"]
    assert names(plan(["med-ddpm"], opponents=True)) == [*papers, *OF_A_LOOP, *TOOLS]
    both = names(plan(["med-ddpm"], ladder=True, opponents=True))
    assert sorted(both) == sorted(set(BENCH_SETTINGS) - {tool.name for tool in INFERENCE}), "every setting, once"
    assert names(plan(["monai-unet"], opponents=True)) == names(plan(["monai-unet"]))
    assert names(plan(["med-ddpm-brats"], opponents=True)) == ["BASE", "FAST", *OF_A_LOOP, *TOOLS]


def test_the_help_says_that_captured_steps_are_timed_too(capsys) -> None:
    captured = [setting.name for setting in CAPTURED]
    assert names(plan(["monai-unet"], measures=["step"]))[-len(captured) :] == captured
    assert names(plan(["med-ddpm"], opponents=True))[-len(captured) :] == captured
    with pytest.raises(SystemExit):
        parser().parse_args(["bench", "--help"])
    said = " ".join(capsys.readouterr().out.replace("-\n", "-").split()).replace("- ", "-")
    assert "graphed-step, the ordinary tools, the captured steps and, of a forward pass, those with" in said
    assert "also the ordinary tools and the captured steps that --setting lists" in said


def test_the_plan_takes_what_is_asked() -> None:
    jobs = plan(["med-ddpm", "monai-unet"], ["fast", "autocast-channels-last"], ["sample"], side=64, batch=3)
    assert names(jobs) == ["FAST", "autocast channels-last"], "a network that draws no samples has no row"
    assert jobs[0].case == Case("med-ddpm", 64, 3, 64)
    assert jobs[0].measures == ("sample",)


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--setting", "opt3"], "opt3"), (["--network", "med"], "med"), (["--measure", "epoch"], "epoch")],
)
def test_an_unknown_name_is_a_wrong_argument(words: list[str], named: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(["bench", "--out", "b.csv", *words])
    assert stopped.value.code == 2
    assert f"'{named}' is none of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["bench", "--measure", "sample", "--network", "monai-unet"],
            "nothing of monai-unet: only med-ddpm draws samples",
        ),
        (
            ["bench", "--measure", "sample", "--network", "med-ddpm,med-ddpm-brats"],
            "nothing of med-ddpm-brats: only med-ddpm",
        ),
        (["scaling", "--sharded", "--setting", "fast"], "--sharded: only of steps under base or opt1, on two GPUs"),
        (["scaling", "--sharded", "--gpus", "1"], "argument --sharded: only of steps under base or opt1, on two"),
        (["bench", "--ladder", "--setting", "fast"], "argument --ladder: only of med-ddpm, without --setting"),
        (["bench", "--ladder", "--network", "monai-unet"], "argument --ladder: only of med-ddpm, without --setting"),
        (
            ["bench", "--opponents", "--setting", "fast"],
            "argument --opponents: only of med-ddpm and med-ddpm-brats, without --setting",
        ),
        (["bench", "--all-samples", "--measure", "step"], "argument --all-samples: only with samples of med-ddpm"),
        (
            ["bench", "--all-samples", "--network", "monai-unet"],
            "argument --all-samples: only with samples of med-ddpm",
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_what_measures_nothing_together_is_a_wrong_argument(
    tmp_path: Path, words: list[str], said: str, dry_run: list[str], capsys
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, *dry_run, "--out", str(tmp_path / "bench.csv"), *SMALL])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", COMMANDS)
def test_without_the_gpu_asked_for_nothing_is_begun(tmp_path: Path, words: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = [*words, "--device", "cuda:99", "--out", str(tmp_path / "bench.csv")]
    assert main(asked) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("medddpm: --device: there is no cuda:99 here")
    if words != ["scaling"]:  # which takes no one of several
        assert main([*asked, "--dry-run"]) == 0, "what it would run is another machine's to run"
        assert capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", COMMANDS)
def test_without_a_gpu_only_the_cpu_by_its_name_is_measured(tmp_path: Path, words: list[str], monkeypatch, capsys):
    """The volumes of 128³ that a GPU gets by default would fill a host's memory."""
    begun = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("medddpm.measure.programs.start", lambda *_: begun.append("row") or pytest.fail("begun"))
    monkeypatch.setattr("study.throughput.endurance._watched", lambda *_: begun.append("row"))
    asked = [*words, "--out", str(tmp_path / "bench.csv")]
    assert main(asked) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"medddpm: {words[0]}: PyTorch finds no NVIDIA GPU here; ")
    assert line.endswith("--dry-run, or give --device cpu and a small --size")
    assert begun == []
    assert list(tmp_path.iterdir()) == []
    assert main([*asked, "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "--size", "20"], "--size: med-ddpm takes no volume of side 20; give 16 or 24"),
        (["bench", "--size", "100"], "--size: med-ddpm takes no volume of side 100; give 96 or 112"),
        (["bench", "--channels", "40"], "--channels: med-ddpm takes no base width of 40; give 32 or 64"),
        (["bench", "--network", "monai-vnet", "--size", "16"],
         "--size: monai-vnet takes no volume of side 16; give 32"),
        (["bench", "--network", "monai-unet,monai-unetr", "--size", "40", "--measure", "step"],
         "--size: monai-unetr takes no volume of side 40; give 32 or 48"),
        (["scaling", "--size", "20"], "--size: med-ddpm takes no volume of side 20; give 16 or 24"),
        (["throughput", "--size", "20"], "--size: 20×20×20 cannot be halved often enough; choose multiples of 8"),
        (["endurance", "--steps", "9", "--size", "72"],
         "--size: 72×72×72 cannot be halved often enough; choose multiples of 16"),
    ],
)  # fmt: skip
def test_a_size_that_a_network_does_not_take_is_refused_before_anything_is_measured(
    tmp_path: Path, words: list[str], said: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(programs, "start", lambda *_: pytest.fail("begun"))
    assert main([words[0], *SMALL, *words[1:], "--out", str(tmp_path / "bench.csv")]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"medddpm: {said}\n"
    assert printed.out == ""
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", EVERY)
def test_every_network_fits_its_own_size_and_its_work_is_counted(name: str) -> None:
    network = NETWORKS[name]
    assert fits(name, network.side, 64)
    assert fits(name, network.least, 32)
    assert flops(network, network.least, 1, 32)["step"] > 0, "its row says how many it computes a second"


def test_help_names_every_network_and_setting(capsys) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["bench", "--help"])
    said = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    listed = said.replace("- ", "-")
    assert [name for name in (*NETWORKS, *BY_SLUG) if name not in listed] == []


def test_a_dry_run_prints_commands_and_writes_nothing(tmp_path: Path, capsys) -> None:
    out = tmp_path / "bench.csv"
    assert main(["bench", "--setting", "base,fast", "--dry-run", "--out", str(out), *TOY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" --folder")[0] for line in lines[:1]] == ["python -m study.bench.ceilings"]
    assert lines[1].startswith("python -m study.bench.worker --network med-ddpm --setting base")
    assert [line.split("--measure ")[-1] for line in lines[1:]] == [
        "reference forward step sample",
        "forward step sample",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("bench.txt", "a table's name ends in .csv"),
        ("a_file/bench.csv", "a file stands where its folder should be"),
        ("/proc/none/bench.csv", "there is no such folder"),
    ],
)
def test_a_table_that_cannot_be_written_is_said_first(tmp_path: Path, out: str, problem: str, capsys) -> None:
    (tmp_path / "a_file").touch()
    assert main(["bench", "--setting", "base", "--out", str(tmp_path / out), *TOY]) == 1
    assert capsys.readouterr().err.startswith(f"medddpm: {tmp_path / out}: {problem}; ")


@pytest.mark.parametrize(
    ("words", "theirs"),
    [
        (["bench", "--setting", "base"], "bench.csv"),
        (["bench", "--setting", "base"], "ceilings.csv"),
        (["coverage"], "bench.csv"),
        (["throughput"], "bench.csv"),
        (["endurance", "--steps", "1"], "bench.csv.gz"),
        (["scaling"], "bench.csv"),
    ],
)
def test_a_table_of_somebody_elses_is_not_replaced(tmp_path: Path, words: list[str], theirs: str, capsys) -> None:
    (tmp_path / theirs).write_text("patient,age\n")
    assert main([*words, "--out", str(tmp_path / "bench.csv"), *SMALL]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    problem = "a file stands there that this command did not write; give the output another name"
    assert line == f"medddpm: {tmp_path / theirs}: {problem}"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["patient,age\n"]


@pytest.mark.parametrize("words", COMMANDS[1:])
@pytest.mark.long
def test_the_table_of_another_mode_is_not_replaced(folder: Path, words: list[str], monkeypatch, capsys) -> None:
    """Its rows, in the same folder, would be read as that mode's own."""
    before = (folder / "bench.csv").read_bytes()
    monkeypatch.setattr(programs, "start", lambda *_: pytest.fail("begun"))
    assert main([*words, "--out", str(folder / "bench.csv"), *SMALL]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    problem = "it is the table of another measurement; give --out another name"
    assert line == f"medddpm: {folder / 'bench.csv'}: {problem}"
    assert (folder / "bench.csv").read_bytes() == before


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_in_the_place_of_the_rows_folder_is_said_first(tmp_path: Path, words: list[str], capsys) -> None:
    (tmp_path / "bench.rows").touch()
    assert main([*words, "--out", str(tmp_path / "bench.csv"), *SMALL]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("a file stands where its folder should be; choose another place\n")


@pytest.mark.parametrize("words", COMMANDS)
def test_what_another_process_measures_is_left_to_it(tmp_path: Path, words: list[str], monkeypatch, capsys) -> None:
    """Beside it both would be slower, and write each other's rows."""
    out = tmp_path / "bench.csv"
    monkeypatch.setattr(programs, "start", lambda *_: pytest.fail("begun"))
    monkeypatch.setattr("study.throughput.endurance._watched", lambda *_: pytest.fail("begun"))
    with Store(rows_folder(out), {}).alone():
        assert main([*words, "--out", str(out), *SMALL]) == 1
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", f"medddpm: {out}: process {os.getpid()} is measuring there; {WAIT}\n")
        assert main([*words, "--out", str(out), *SMALL, "--dry-run"]) == 0


def test_of_two_benches_at_once_one_ends_in_a_line(tmp_path: Path) -> None:
    words = ["study", "bench", "--setting", "base", *SMALL, "--samples", "1000000"]
    words += ["--out", str(tmp_path / "bench.csv")]
    with forks.two_at_once(words, tmp_path) as (refused, complaint, going):
        assert complaint == f"medddpm: {tmp_path}/bench.csv: process {going.pid} is measuring there; {WAIT}\n"
        assert refused.exitcode == 1


# a row


def test_training_leaves_the_weights_so_that_every_sample_is_alike() -> None:
    network = NETWORKS["monai-unet"]
    model = build(network, 16, 32)
    before = [p.detach().clone() for p in model.parameters()]
    with BENCH_SETTINGS["OPT1"].on(model) as called:
        row = Row(BENCH_SETTINGS["OPT1"], Problem(network, 16, 1, CPU), model, called, Case("monai-unet", 16, 1, 32))
        step = row.work("step")
        outputs = [step() for _ in range(3)]
    for ours, theirs in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(outputs[0], outputs[2], rtol=0, atol=0)
    gradient = row.gradient()
    assert [g.shape for g in gradient] == [p.shape for p in before]
    assert all(g.abs().max() > 0 for g in gradient if g.dim() > 1)


@pytest.mark.long
def test_whole_volumes_are_drawn_by_each_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FEW_STEPS", (2, 3, 9))
    network, case = NETWORKS["med-ddpm"], Case("med-ddpm", 8, 2, 32)
    model = build(network, 8, 32)
    rows = {}
    for name in ("BASE", "FAST"):
        with BENCH_SETTINGS[name].on(model) as called:
            rows[name] = worker.sampled(Row(BENCH_SETTINGS[name], Problem(network, 8, 2, CPU), model, called, case), 4)
    assert [(r["sampler"], r["steps"]) for r in rows["BASE"]] == [("ddpm", 4)]
    assert [(r["sampler"], r["steps"]) for r in rows["FAST"]] == [
        ("ddpm", 4), ("ddim", 2), ("ddim", 3), ("dpm++", 2), ("dpm++", 3),
    ]  # fmt: skip
    assert all(len(r["ms"]) == 3 for r in rows["FAST"])


def test_the_peak_of_every_chain_has_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's memory counts when it is captured: a later chain's peak would lack what an earlier one captured."""
    done: list[str] = []
    monkeypatch.setattr(worker, "FEW_STEPS", (2,))
    monkeypatch.setattr(worker.cuda_graphs, "forget", lambda network: done.append("forget"))
    monkeypatch.setattr(worker, "reset_peak", lambda device: done.append("reset"))
    real = worker.GaussianDiffusion.sample

    def sample(self, mask, steps, sampler, **known):
        done.append(sampler)
        return real(self, mask, steps, sampler, **known)

    monkeypatch.setattr(worker.GaussianDiffusion, "sample", sample)
    monkeypatch.setattr(worker, "SAMPLES_OF_A_VOLUME", 1)
    network, setting = NETWORKS["med-ddpm"], BENCH_SETTINGS["FAST"]
    model = build(network, 8, 32)
    with setting.on(model) as called:
        worker.sampled(Row(setting, Problem(network, 8, 1, CPU), model, called, Case("med-ddpm", 8, 1, 32)), 3)
    expected = [word for chain in ("ddpm", *worker.SHORT) for word in ("forget", "reset", "ddim", chain)]
    assert done == expected


def test_the_peak_of_a_graphed_step_is_without_what_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every tool's: its first step tries algorithms, and some of them take more memory than the one that is kept."""
    done: list[str] = []
    real = subject.graphed_step
    monkeypatch.setattr(subject, "reset_peak", lambda device: done.append("reset"))
    monkeypatch.setattr(subject, "graphed_step", lambda *words: done.append("graph") or real(*words))
    ordinary = Row.ordinary_step
    monkeypatch.setattr(Row, "ordinary_step", lambda row: done.append("step") or ordinary(row))
    network, setting = NETWORKS["med-ddpm"], BENCH_SETTINGS["graphed_step"]
    model = build(network, 8, 32)
    with setting.on(model) as called:
        row = Row(setting, Problem(network, 8, 1, CPU), model, called, Case("med-ddpm", 8, 1, 32))
        worker.repeated(row, "step", 1, tmp_path)
    assert done == ["step", "reset", "graph"]


@pytest.mark.parametrize("name", ["monai-unet-batch", "nnunet-plain-deep"])
def test_the_bench_s_own_step_has_a_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    network = NETWORKS[name]
    model, problem = build(network, network.least, 32), Problem(network, network.least, network.batch, CPU)
    step = graphed_step(
        accelerate(model, report=None),
        problem.loss,
        torch.optim.SGD(model.parameters(), 0.0, fused=True),
        problem.inputs,
    )
    for _ in range(2):
        step(*problem.inputs)
    assert (step.why, len(step._graphs)) == ("", 1)


def test_a_graphed_step_without_its_graph_has_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Graphless:
        why = "the loss keeps changing"

        def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            return inputs[0].sum(), inputs[0]

    monkeypatch.setattr(subject, "graphed_step", lambda *words: Graphless())
    network, setting = NETWORKS["med-ddpm"], BENCH_SETTINGS["graphed_step"]
    model = build(network, 8, 32)
    with setting.on(model) as called:
        row = Row(setting, Problem(network, 8, 1, CPU), model, called, Case("med-ddpm", 8, 1, 32))
        with pytest.raises(BadInput, match="it has no graph: the loss keeps changing"):
            worker.repeated(row, "step", 1, tmp_path)


# end to end


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run on this CPU: BASE and FAST of our network, tiny."""
    out = tmp_path_factory.mktemp("a bench") / "bench.csv"
    words = ["--setting", "base,fast", "--measure", "step,forward", "--out", str(out), *TOY]
    assert main(["bench", *words]) == 0
    return out.parent


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return shutil.copytree(measured, tmp_path / "bench")


def of(folder: Path) -> Store:
    """The store of a bench's folder."""
    return Store(folder / "bench.rows", machine_meta(["medddpm"]), results.tables(folder / "bench.csv"))


def has_reference(folder: Path, case: Case) -> bool:
    check_beside(of(folder), case.reference_key)
    return case.reference(folder / "bench.rows").is_file()


def run_again(folder: Path, *words: str) -> int:
    return main(["bench", "--measure", "step,forward", "--out", str(folder / "bench.csv"), *words, *TOY])


def test_two_settings_are_measured_and_described(measured: Path) -> None:
    table = read_table(measured / "bench.csv", schemas.BENCH)
    assert list(zip(table["setting"], table["measure"], strict=True)) == [
        ("BASE", "step"), ("BASE", "forward"), ("FAST", "step"), ("FAST", "forward"),
    ]  # fmt: skip
    assert (table["samples"] == 2).all()
    assert set(table["size"]) == {"8x8x8"}
    assert (table["p10_ms"] <= table["median_ms"]).all()
    assert (table["median_ms"] <= table["p90_ms"]).all()
    work = flops(NETWORKS["med-ddpm"], 8, 1, 32)
    for _, row in table.iterrows():
        assert row["tflops"] == pytest.approx(work[row["measure"]] / row["median_ms"] / 1e9, abs=1e-5)
    fast = table[table["setting"] == "FAST"]
    assert (fast["rel_error_output"] < 1e-4).all(), "on a CPU the fast path computes in float32"
    assert 0 < fast["rel_error_grad"].iloc[0] < 1e-4
    assert table[table["setting"] == "BASE"]["rel_error_output"].isna().all(), "BASE has no distance from itself"
    assert table[["peak_gib", "host_ms"]].isna().all(axis=None)
    meta = machine_meta()
    assert set(table["gpu"]) == {"cpu"}, "each row says what it was measured on"
    for name in ("torch", "commit"):
        assert set(table[name]) == {meta[name]}
    assert table["date"].between("2026", meta["date"]).all()
    assert table["cuda"].isna().all(), "a CPU has none"
    meta = read_meta(measured / "bench.csv")
    assert meta["gpu"] == "cpu", "it was measured with --device cpu"
    assert "fast path: bf16" in meta["accelerated"]["med-ddpm, FAST"]
    assert set(meta["ceilings"]) == {"copy", "fp32", "tf32", "bf16"}
    limits = read_table(measured / "ceilings.csv", schemas.CEILINGS)
    assert limits["ceiling"].tolist() == ["copy", "fp32", "tf32", "bf16"]
    for _, row in limits.iterrows():
        work_done = 2 * row["size"] / 1e6 if row["ceiling"] == "copy" else 2 * row["size"] ** 3 / 1e9
        assert row["value"] == pytest.approx(work_done / row["median_ms"], rel=0.02, abs=1e-3)


def test_the_table_that_was_written_is_named(folder: Path, capsys) -> None:
    """Small, it is plain, whatever was asked for."""
    words = ["--setting", "base", "--measure", "step,forward", *TOY]
    assert main(["bench", *words, "--out", str(folder / "bench.csv.gz")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{folder / 'bench.csv'}: 4 rows"


def test_rows_of_another_width_do_not_join_a_table_that_has_no_column_of_it(folder: Path, capsys) -> None:
    before = sorted(path.name for path in folder.rglob("*"))
    words = ["--setting", "base", "--out", str(folder / "bench.csv"), *TOY, "--channels", "64"]
    for again in ([], ["--again"]):
        assert main(["bench", *words, *again]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        remedy = "give the same, or another --out"
        assert said.err == f"medddpm: {folder / 'bench.csv'}: its rows are of --channels 32; {remedy}\n"
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_what_is_there_is_not_measured_again(folder: Path, capsys) -> None:
    before = (folder / "bench.csv").read_bytes()
    began = {p: p.stat().st_mtime_ns for p in (folder / "bench.rows").glob("*.json")}
    assert run_again(folder, "--setting", "fast,base") == 0
    said = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()[:6]]
    rows = ["ceilings", "med-ddpm BASE, its output and gradient"]
    rows += [f"med-ddpm {name} {measure}" for name in ("FAST", "BASE") for measure in ("forward", "step")]
    assert said == [f"{row}: there already" for row in rows]
    assert (folder / "bench.csv").read_bytes() == before
    assert {p: p.stat().st_mtime_ns for p in (folder / "bench.rows").glob("*.json")} == began


@pytest.mark.long
def test_a_lost_measure_is_made_up_for_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed halfway, or of another commit: only what is not of this run is measured again."""
    rows = folder / "bench.rows"
    (rows / "med-ddpm_8_b1_c32_fast_step.json").unlink()
    stale = rows / "med-ddpm_8_b1_c32_base_forward.json"
    stale.write_text(json.dumps(json.loads(stale.read_text()) | {"run": {"commit": "another"}}))
    commands: list[list[str]] = []
    real = programs.start

    def noted(command, *how):
        commands.append(list(command))
        return real(command, *how)

    monkeypatch.setattr(programs, "start", noted)
    assert run_again(folder, "--setting", "base,fast") == 0
    asked = [(c[c.index("--setting") + 1], c[c.index("--measure") + 1 :]) for c in commands]
    assert asked == [("base", ["forward"]), ("fast", ["step"])]
    assert len(read_table(folder / "bench.csv", schemas.BENCH)) == 4


@pytest.mark.long
def test_rounds_take_the_rows_in_turn_and_join_their_samples(folder: Path, monkeypatch, capsys) -> None:
    """The rows that are there are the first round; a row that fails keeps the rounds that it has."""
    real, failing = programs.start, "nothing"
    kept = {path: json.loads(path.read_text()) for path in (folder / "bench.rows").glob("med-ddpm_8_b1_c32_*_*.json")}
    measures = """
import json, sys
from pathlib import Path
from medddpm.measure.ready import round_path, rounds
for number in rounds():
    for path, found in json.loads(sys.argv[1]).items():
        rows = [row | {"ms": [1e6, 2e6]} for row in found["rows"]]
        round_path(Path(path), number).write_text(json.dumps({**found, "rows": rows, "run": None}))
"""

    def measured_as(command, *how):
        setting = command[command.index("--setting") + 1] if "--setting" in command else ""
        if not setting:
            return real(command, *how)
        if setting == failing:
            return real([sys.executable, "-c", "raise SystemExit('it broke')"], *how)
        mine = {str(path): found for path, found in kept.items() if f"_{setting}_" in path.name}
        return real([sys.executable, "-c", measures, json.dumps(mine)], *how)

    monkeypatch.setattr(programs, "start", measured_as)
    assert run_again(folder, "--setting", "base,fast", "--rounds", "2") == 0
    said = [line.partition("] med-ddpm ")[2].split(": ") for line in capsys.readouterr().out.splitlines()]
    rows = [f"{name} {measure}" for name in ("BASE", "FAST") for measure in ("forward", "step")]
    assert [each[0] for each in said if each[-1] == "there already"][1:] == [f"{row}, round 1 of 2" for row in rows]
    assert [each[0] for each in said if each[-1].startswith("1.5e+06 ms")] == [f"{row}, round 2 of 2" for row in rows]
    twice = read_table(folder / "bench.csv", schemas.BENCH)
    assert (twice["samples"] == 4).all()
    assert (twice["p90_ms"] > 1e6).all()
    assert (twice["p10_ms"] < 1e6).all()
    failing = "fast"
    assert run_again(folder, "--setting", "base,fast", "--rounds", "3") == 1
    assert "FAST forward, round 3 of 3: it broke" in capsys.readouterr().err
    assert read_table(folder / "bench.csv", schemas.BENCH)["samples"].tolist() == [6, 6, 4, 4]
    failing = "nothing"
    (folder / "bench.rows" / "med-ddpm_8_b1_c32.reference.json").unlink()
    monkeypatch.setattr(run, "_references", lambda *_: [])
    assert run_again(folder, "--setting", "base,fast", "--again", "--rounds", "2") == 0
    anew = read_table(folder / "bench.csv", schemas.BENCH)
    assert (anew["samples"] == 4).all(), "--again begins anew"
    assert (anew["p10_ms"] >= 1e6).all()


def test_rows_of_another_run_do_not_stand_in_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = folder / "bench.rows"
    for path in rows.glob("*_base_*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run": {"gpu": "another"}}))
    store = of(folder)
    assert set(store.collect()[0]["setting"]) == {"FAST"}
    case = Case("med-ddpm", 8, 1, 32)
    reference = case.reference(rows)
    assert reference.is_file()
    (rows / f"{case.reference_key}.json").unlink()
    check_beside(store, case.reference_key)
    assert not reference.is_file(), "the output of another run is no reference"


def test_a_table_of_another_run_is_kept_under_another_name(folder: Path, capsys) -> None:
    before, described = (folder / "bench.csv").read_bytes(), folder / "bench.meta.json"
    other = {"commit": "1234567", "date": "2026-11-01T10:20:30+00:00"}
    described.write_text(json.dumps(json.loads(described.read_text()) | other))
    kept = folder / "bench.2026-11-01T102030.csv"
    for said in (True, False):
        assert run_again(folder, "--setting", "base") == 0
        told = f"{kept}: what was bench.csv, of another commit, card or version"
        assert (told in capsys.readouterr().out.splitlines()) == said, "once"
    assert kept.read_bytes() == before
    assert read_meta(kept)["commit"] == "1234567"
    assert read_meta(folder / "bench.csv")["commit"] == machine_meta()["commit"]
    assert len(list(folder.glob("bench*.csv"))) == 2


@pytest.mark.long
def test_a_reference_that_was_cut_short_is_made_again(folder: Path, capsys) -> None:
    case = Case("med-ddpm", 8, 1, 32)
    reference = case.reference(folder / "bench.rows")
    told = reference.with_suffix(".json")
    whole, stamp = reference.read_bytes(), told.read_bytes()
    for left in (0, 1000, -1000):
        reference.write_bytes(whole[:left])
        told.write_bytes(stamp)
        assert not has_reference(folder, case)
    reference.write_bytes(whole[:1000])
    told.write_bytes(stamp)
    of(folder).remove(case.result_key(BENCH_SETTINGS["FAST"], "step"))
    assert run_again(folder, "--setting", "fast") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "BASE, its output and gradient: done" in said.out
    table = read_table(folder / "bench.csv", schemas.BENCH).set_index(["setting", "measure"])
    assert table.loc[("FAST", "step"), "rel_error_grad"] < 0.2
    assert has_reference(folder, case)


def test_a_reference_that_was_altered_is_none(folder: Path) -> None:
    case = Case("med-ddpm", 8, 1, 32)
    reference = case.reference(folder / "bench.rows")
    content = bytearray(reference.read_bytes())
    content[len(content) // 2] ^= 1  # a weight's bit: it is read without a complaint
    reference.write_bytes(content)
    assert not has_reference(folder, case)


@pytest.mark.long
def test_base_measured_anew_keeps_no_reference_of_another_run(folder: Path) -> None:
    case = Case("med-ddpm", 8, 1, 32)
    reference = case.reference(folder / "bench.rows")
    whole = torch.load(reference)
    reference.write_bytes(b"of another run")
    stamp = reference.with_suffix(".json")
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"run": {"commit": "another"}}))
    of(folder).remove(case.result_key(BASE, "forward"))
    assert run_again(folder, "--setting", "base") == 0
    torch.testing.assert_close(torch.load(reference), whole)


@pytest.mark.long
def test_a_row_alone_makes_its_reference(tmp_path: Path) -> None:
    assert run_again(tmp_path, "--setting", "opt12") == 0
    table = read_table(tmp_path / "bench.csv", schemas.BENCH)
    assert set(table["setting"]) == {"OPT12"}
    assert (table["rel_error_output"] < 1e-4).all()


@pytest.mark.long
def test_a_row_that_fails_is_named_and_the_others_go_on(folder: Path, monkeypatch, capsys) -> None:
    real = run.row_command

    def broken(case, setting, options, folder):
        command = real(case, setting, options, folder)
        return (*command[:-1], "--device", "abacus", command[-1]) if setting.name == "OPT1" else command

    monkeypatch.setattr(run, "row_command", broken)
    assert run_again(folder, "--setting", "opt1,base") == 1
    said = capsys.readouterr()
    assert "[6/6] med-ddpm BASE step: there already" in said.out
    problem = "--device: there is no abacus here; give auto, cpu, cuda, cuda:1 …"
    titles = ["med-ddpm OPT1 forward", "med-ddpm OPT1 step"]
    assert said.err.splitlines() == [
        f"medddpm: [{n}/6] {title}: {problem}" for n, title in zip((3, 4), titles, strict=True)
    ]
    assert set(read_table(folder / "bench.csv", schemas.BENCH)["setting"]) == {"BASE", "FAST"}
    assert list(read_meta(folder / "bench.csv")["failed"]) == titles

    # The record keeps it until the row is measured.
    monkeypatch.undo()
    assert run_again(folder, "--setting", "base") == 0
    assert list(read_meta(folder / "bench.csv")["failed"]) == titles
    monkeypatch.setattr(sys, "argv", ["/a/medddpm", "bench", "another call"])
    assert run_again(folder, "--setting", "opt1") == 0
    meta = read_meta(folder / "bench.csv")
    assert meta["failed"] == {}
    assert len(meta["command"].split("; ")) == 2, "rows of two calls, and both are named"
    assert "medddpm bench another call" in meta["command"]


def test_a_row_that_takes_too_long_is_given_up(folder: Path, capsys) -> None:
    words = ["--setting", "opt1", "--measure", "step", "--samples", "100000", "--seconds", "1"]
    assert main(["bench", *TOY, "--out", str(folder / "bench.csv"), *words]) == 1
    assert "med-ddpm OPT1 step: it took more than 1 s" in capsys.readouterr().err


def test_sigterm_ends_the_row_and_keeps_what_is_done(folder: Path, tmp_path: Path) -> None:
    """As the end of a machine's loan does it: the next call goes on. The ceilings are there, and no row."""
    out, printed = folder / "bench.csv", tmp_path / "printed"
    for path in (out, *(folder / "bench.rows").glob("med-ddpm_8_b1_c32_*")):
        path.unlink()
    words = ["bench", "--setting", "base,opt1", "--measure", "forward", "--out", str(out), *TOY]
    started = forks.start(forks.MODULE, ["study", *words], os.environ, printed, tmp_path / "complaint")
    while "BASE forward" not in (printed.read_text() if printed.exists() else ""):
        assert started.is_alive(), (tmp_path / "complaint").read_text()
        time.sleep(0.05)
    started.terminate()
    started.join(60)
    assert started.exitcode == 130, (tmp_path / "complaint").read_text()
    for _ in range(50):
        left = subprocess.run(["pgrep", "-f", f"bench.worker.*{tmp_path}"], capture_output=True, text=True).stdout
        if not left:
            break
        time.sleep(0.1)
    assert left == "", "the row's process goes on by itself"
    assert set(read_table(out, schemas.BENCH)["setting"]) == {"BASE"}


def test_an_interrupted_row_keeps_the_measures_that_are_done(folder: Path, monkeypatch, capsys) -> None:
    """They are joined to those of the round before."""
    rows, real = folder / "bench.rows", programs.start
    words = ["bench", "--setting", "base", "--measure", "forward,step", "--out", str(folder / "bench.csv"), *TOY]
    words += ["--rounds", "2"]
    hangs = f"""
import shutil, time
from medddpm.measure.ready import rounds
for number in rounds():
    shutil.copy({str(rows / "med-ddpm_8_b1_c32_base_forward.json")!r}, {str(rows / "kept.json")!r})
    shutil.move({str(rows / "kept.json")!r}, {str(rows / "med-ddpm_8_b1_c32_base_forward.2.json")!r})
    time.sleep(600)
"""

    def interrupted(self, running) -> None:
        hear(self, running)
        if (rows / "med-ddpm_8_b1_c32_base_forward.2.json").exists():
            raise KeyboardInterrupt

    hear = harness._Call._hear
    monkeypatch.setattr(harness._Call, "_hear", interrupted)
    monkeypatch.setattr(programs, "start", lambda _, *how: real([sys.executable, "-c", hangs], *how))
    for path in rows.glob("*_fast_*.json"):
        path.unlink()
    assert main(words) == 130
    assert capsys.readouterr().err == "medddpm: interrupted; the same command goes on where it was\n"
    table = read_table(folder / "bench.csv", schemas.BENCH)
    assert dict(zip(table["measure"], table["samples"], strict=True)) == {"forward": 4, "step": 2}
    monkeypatch.undo()
    monkeypatch.setattr(programs, "start", real)
    forward = rows / "med-ddpm_8_b1_c32_base_forward.2.json"
    before = forward.read_bytes()
    assert main(words) == 0
    assert forward.read_bytes() == before
    assert read_table(folder / "bench.csv", schemas.BENCH)["samples"].tolist() == [4, 4]


def test_what_is_published_is_a_record(measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures" / "records" / "cpu"
    copies = results.publish(measured / "bench.csv", folder)
    assert sorted(path.name for path in copies) == sorted(path.name for path in folder.iterdir())
    assert tables.recorded(tmp_path)["cpu"].equals(read_table(measured / "bench.csv", schemas.BENCH))
    assert set(tables.ceilings(tmp_path, "cpu")) == {"copy", "fp32", "tf32", "bf16"}
    assert read_meta(folder / "bench.csv") == read_meta(measured / "bench.csv")


def test_published_rows_that_were_not_measured_again_stay(measured: Path, tmp_path: Path) -> None:
    table, meta = read_table(measured / "bench.csv", schemas.BENCH), read_meta(measured / "bench.csv")
    folder = tmp_path / "cpu"
    before = table.assign(network="monai-unet", date=None, commit=None)
    now = f"{table['network'][0]} {table['setting'][0]}"
    described = {**meta, "date": "2026-11-01", "commit": "1234567", "failed": {now: "slow", "monai-vnet OPT1": "slow"}}
    write_table(before, folder / "bench.csv", schemas.BENCH, described)
    results.publish(measured / "bench.csv", folder)
    published = read_table(folder / "bench.csv", schemas.BENCH)
    again = published[published["network"] != "monai-unet"].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, table.reset_index(drop=True), check_dtype=False)
    assert set(published[published["network"] == "monai-unet"]["commit"]) == {"1234567"}
    assert len(published) == 2 * len(table) == read_meta(folder / "bench.csv")["rows"]
    failed = read_meta(folder / "bench.csv")["failed"]
    assert "monai-vnet OPT1" in failed
    assert now not in failed, "it has been measured since"


# schema


def test_rows_are_sorted_as_the_ladder_is() -> None:
    order = list(BENCH_SETTINGS)
    rows = [
        results._row(Case("med-ddpm", 8, 1, 32), BENCH_SETTINGS[name], measured, {"gpu": "cpu"})
        for name in reversed(order)
        for measured in (
            {"measure": m, "sampler": None, "steps": 1, "ms": [1.0, 2.0], "peak_bytes": 2**30}
            for m in ("forward", "step")
        )
    ]
    table = results._sorted(pd.DataFrame(rows, columns=list(schemas.BENCH.columns)))
    assert list(dict.fromkeys(table["setting"])) == order
    assert table["measure"].tolist()[:2] == ["step", "forward"]
    assert (table["peak_gib"] == 1).all()
    assert table["p10_ms"].iloc[0] == pytest.approx(np.percentile([1.0, 2.0], 10))


def test_the_ladder_names_no_feature_that_accelerate_lacks() -> None:
    assert (*settings._features, "hopper") == FEATURES
