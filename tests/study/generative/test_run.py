"""Figure 2: published sizes, a step of every model as a toy, IPC from counters and trace, the run of ncu.

A stand-in plays ncu and the traces; every model's network is the real one, without memory or small.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import subprocess
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from helpers import forks
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import ncu, trace
from medddpm.measure.profile.ncu import CountersClosed
from medddpm.measure.schemas import TRACE
from medddpm.measure.tables import read_meta, read_table, write_meta
from study.generative import one_model, results, run, tables
from study.generative import worker as generative_worker
from study.generative.ha_gan import Discriminator, HierarchicalGan, frozen
from study.generative.ipc import step_ipc
from study.generative.models import MODELS, Model, parse_names
from study.generative.worker import training_step
from study.records import schemas

CPU = torch.device("cpu")


# the models


@pytest.fixture(params=MODELS.values(), ids=lambda m: m.name)
def model(request: pytest.FixtureRequest) -> Model:
    pytest.importorskip("diffusers")
    return request.param


@functools.cache
def on_shapes_alone(name: str) -> torch.nn.Module:
    with pytest.MonkeyPatch.context() as patched:
        # Paella's decoder would be drawn for ten seconds, into no memory.
        patched.setattr(torch.nn.init, "normal_", lambda tensor, *_, **__: tensor)
        return MODELS[name].build("meta")


@pytest.mark.long
def test_a_network_has_the_published_number_of_weights(model: Model) -> None:
    if model.parameters is None:
        pytest.skip("none published")
    published, off = model.parameters
    built = sum(p.numel() for p in on_shapes_alone(model.name).parameters())
    assert abs(built - published) <= off


@pytest.mark.long
def test_the_published_inputs_pass_through(model: Model) -> None:
    """On shapes alone; the prediction is of the latents or the volume, twice as many channels where variance is."""
    device = torch.device("meta")
    inputs = model.draw(device)
    with torch.no_grad():
        output = on_shapes_alone(model.name)(**inputs)
    output = output if isinstance(output, torch.Tensor) else output.sample
    first = next(iter(inputs.values()))
    if model.kind == "GAN":
        assert output.shape == ()
    else:
        assert output.shape[2:] == first.shape[2:]
        assert output.shape[1] in (1, first.shape[1], 2 * first.shape[1])


STEPS = [  # the GAN's in BF16 takes a CPU ten seconds
    pytest.param(m, p, id=f"{m.name}-{p}", marks=[pytest.mark.long] * ((m.kind, p) == ("GAN", "bf16")))
    for m in MODELS.values()
    for p in generative_worker.PRECISIONS
]


@pytest.mark.parametrize(("model", "precision"), STEPS, indirect=["model"])
@pytest.mark.long
def test_a_toy_step_moves_the_weights(model: Model, precision: str, monkeypatch) -> None:
    networks = []
    build = Model.build

    def kept(self: Model, device: torch.device, tiny: bool = False) -> torch.nn.Module:
        networks.append(build(self, device, tiny))
        return networks[0]

    monkeypatch.setattr(Model, "build", kept)
    step = training_step(model, precision, CPU, tiny=True)
    before = [p.detach().clone() for p in networks[0].parameters()]
    # What lies behind a layer that starts at zero moves a step or two later; the GAN has no such layer.
    losses = [step() for _ in range(1 if (model.kind, precision) == ("GAN", "bf16") else 3)]
    # On a CPU the weight gradient of a bfloat16 3-D convolution over a few voxels holds a NaN now and then.
    assert np.isfinite(losses if precision == "fp32" else losses[:1]).all()
    moved = [not torch.equal(a, b) for a, b in zip(before, networks[0].parameters(), strict=True)]
    assert np.mean(moved) > 0.75  # a norm over one voxel passes no gradient on, and toys have such
    assert all(p.dtype == torch.float32 for p in networks[0].parameters())


def test_costs_have_a_source_and_hours_a_gpu() -> None:
    for model in MODELS.values():
        assert model.cost.source
        assert model.source
        assert (model.cost.gpu_hours is None) == (model.cost.hardware is None)


def test_unknown_names_are_told_in_a_line(capsys) -> None:
    with pytest.raises(BadInput, match=r"unknown: sd9; choose from sd15, "):
        parse_names("sd15,sd9")
    for arguments in (["--model", "sd9"], ["--model", "sd15", "--precision", "fp64"], ["--model", ""]):
        assert generative_worker.main([*arguments, "--device", "cpu", "--tiny"]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_class_that_diffusers_lacks_is_told_in_a_line(monkeypatch, capsys) -> None:
    gone = Model(**{**vars(MODELS["dit"]), "network": "diffusers:NoSuchModel"})
    monkeypatch.setattr(generative_worker, "MODELS", {**MODELS, "dit": gone})
    assert generative_worker.main(["--model", "dit,med-ddpm", "--device", "cpu", "--tiny"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dit fp32: dit: diffusers has no NoSuchModel here")


def test_the_program_marks_a_step_of_each(tmp_path: Path, monkeypatch, capsys) -> None:
    made = []
    monkeypatch.setattr(generative_worker, "training_step", lambda m, p, d, t: lambda: made.append((m.name, p)))
    assert generative_worker.main(["--model", "med-ddpm,dit", "--precision", "fp32,bf16", "--device", "cpu"]) == 0
    each = generative_worker.WARMUP + 1
    assert made == [(m, p) for m in ("med-ddpm", "dit") for p in ("fp32", "bf16") for _ in range(each)]


def test_the_program_traces_a_toy(tmp_path: Path) -> None:
    arguments = ["--model", "wuerstchen-decoder,dit", "--precision", "fp32,bf16", "--device", "cpu", "--tiny"]
    assert generative_worker.main([*arguments, "--trace", str(tmp_path)]) == 0
    names = [f"{m}_{p}.csv.gz" for m in ("wuerstchen-decoder", "dit") for p in ("fp32", "bf16")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all(read_table(tmp_path / name, TRACE).empty for name in names)  # no GPU, no launch


def test_a_step_under_fp32_has_tf32_off(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        generative_worker,
        "training_step",
        lambda *_: lambda: seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)),
    )
    generative_worker.main(["--model", "med-ddpm", "--device", "cpu"])
    assert set(seen) == {(False, False)}


# HA-GAN


def test_each_part_of_the_gan_is_trained_by_its_own_loss() -> None:
    torch.manual_seed(0)
    gan = HierarchicalGan(width=16, latent=8, start=1)
    gan(torch.randn(1, 1, 64, 64, 64)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gan.judge.parameters())
    assert all(p.requires_grad for p in gan.parameters())
    gan.zero_grad(set_to_none=True)
    with frozen(gan.trunk, gan.to_low, gan.to_slab):
        slab, low = gan.generate(torch.randn(1, 8), 32)
    assert slab.shape == (1, 1, 8, 64, 64)
    assert low.shape == (1, 1, 16, 16, 16)
    assert not slab.requires_grad


def test_the_published_discriminator_has_the_published_kernels() -> None:
    with torch.device("meta"):
        layers = [m for m in Discriminator(32, 4).slab if isinstance(m, torch.nn.Conv3d)]
    assert [(m.in_channels, m.out_channels) for m in layers] == [
        (1, 16), (16, 32), (32, 64), (64, 128), (128, 256), (256, 512), (512, 128),
    ]  # fmt: skip
    assert [m.kernel_size[0] for m in layers] == [4, 4, 4, 2, 2, 1, 1]
    assert [m.stride[0] for m in layers] == [2, 2, 2, 2, 2, 1, 1]


# IPC from counters and trace


LAUNCHES = [  # kernel, grid, block, duration in the trace (ns), cycles, instructions
    ("void gemm<float>(int)", "(8, 1, 1)", "(128, 1, 1)", 3000, 100.0, 200.0),
    ("void add<float>(int)", "(4, 1, 1)", "(64, 1, 1)", 1000, 50.0, 25.0),
    ("void gemm<float>(int)", "(8, 1, 1)", "(128, 1, 1)", 3000, 100.0, 200.0),
    ("Memset (Device)", "", "", 1000, np.nan, np.nan),
]


def write_trace(path: Path, launches: list = LAUNCHES) -> Path:
    rows = [(i, k, g, b, ns, "", 7) for i, (k, g, b, ns, *_) in enumerate(launches)]
    trace.write(rows, path)
    return path


def raw_page(launches: list = LAUNCHES) -> str:
    """As ncu prints it: a distinct launch once, a log line before, and a launch of another step."""
    rows = {launch[:3]: launch for launch in launches if launch[1]}
    other = ("void other<int>(int)", "(1, 1, 1)", "(32, 1, 1)", 0, 9.0, 900.0)
    lines = ["==PROF== Connected"]
    lines += ['"ID","Kernel Name","Grid Size","Block Size","sm__cycles_active.sum","smsp__inst_executed.sum"']
    lines += ['"","","","","cycle","inst"']
    for i, (k, g, b, _, cycles, instructions) in enumerate([*rows.values(), other]):
        lines.append(f'"{i}","{k.removeprefix("void ")}","{g}","{b}","{cycles:,}","{instructions:,}"')
    return "\n".join(lines) + "\n"


def write_raw(path: Path, text: str | None = None) -> Path:
    path.write_bytes(gzip.compress((text or raw_page()).encode()))
    return path


def test_ipc_weighs_launches_by_count_and_time(tmp_path: Path) -> None:
    found = step_ipc(write_raw(tmp_path / "r.csv.gz"), write_trace(tmp_path / "t.csv.gz"))
    assert found.ipc_total == pytest.approx((200 + 25 + 200) / (100 + 50 + 100))
    assert found.ipc_geometric == pytest.approx(2 ** (5 / 7))  # 6 µs at 2, 1 µs at 1/2
    assert (found.launches, found.step_ms, found.matched) == (4, 0.008, pytest.approx(7 / 8))


def test_a_name_spelled_otherwise_is_matched_by_its_function(tmp_path: Path) -> None:
    spelled = raw_page().replace("gemm<float>", "gemm<half_like>")
    found = step_ipc(write_raw(tmp_path / "r.csv.gz", spelled), write_trace(tmp_path / "t.csv.gz"))
    assert found.matched == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("text", "launches", "told"),
    [
        (raw_page().replace("sm__cycles", "sm__others"), LAUNCHES, "lacks the column sm__cycles_active.sum"),
        (raw_page().replace('"cycle"', '"Kcycle"'), LAUNCHES, "is in Kcycle"),
        (raw_page(), [], "holds no launch"),
        (raw_page(), LAUNCHES[-1:], "no launch of it is in"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path: Path, text: str, launches: list, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        step_ipc(write_raw(tmp_path / "r.csv.gz", text), write_trace(tmp_path / "t.csv.gz", launches))


# measuring


class Machine:
    """Plays a machine with ncu: writes traces, reports and pages as the commands ask; `fails` are names that fail."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.fails: set[str] = set()
        self.says = ""

    def __call__(self, command: list[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        self.ran.append(command)
        text, failed = self.says, 0
        if "--trace" in command:
            out = Path(command[command.index("--trace") + 1])
            for name in command[command.index("--model") + 1].split(","):
                for precision in command[command.index("--precision") + 1].split(","):
                    if f"{name}_{precision}" in self.fails:
                        failed, text = 1, f"{name} {precision}: CUDA out of memory."
                    else:
                        write_trace(out / f"{name}_{precision}.csv.gz")
        elif "--import" in command:
            text = raw_page()
        elif command[command.index("--model") + 1] in self.fails:
            failed, text = 9, "==ERROR== Failed to profile"
        elif not self.says:
            Path(command[command.index("-o") + 1] + ".ncu-rep").touch()
        return subprocess.CompletedProcess(command, failed, text)

    def profiled(self) -> list[str]:
        return [c[c.index("--model") + 1] for c in self.ran if "-o" in c]


def in_this_process(command: list[str], _stdin: int, printed: IO[bytes], _environment: object) -> forks.Here:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = one_model.main(command[3:])
    printed.write(said.getvalue().encode())
    return forks.Here(status)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    pytest.importorskip("diffusers")
    played = Machine()
    monkeypatch.setattr(programs, "run", played)
    monkeypatch.setattr(programs, "start", in_this_process)
    monkeypatch.setattr(programs, "find", lambda name: name)
    monkeypatch.setattr(ncu, "need_gpu", lambda _what: None)
    return played


NAMES = ["dit", "ha-gan", "med-ddpm"]


@pytest.mark.long
def test_a_run_measures_every_model_and_goes_on_where_it_was(tmp_path: Path, machine: Machine, capsys) -> None:
    arguments = ["--out", str(tmp_path), "--models", ",".join(NAMES)]
    assert run.main(arguments) == 0
    assert machine.profiled() == NAMES
    table = read_table(tmp_path / "generative.csv", schemas.GENERATIVE)
    assert list(table[["model", "precision"]].itertuples(index=False, name=None)) == [
        (name, precision) for name in NAMES for precision in ("fp32", "bf16")
    ]
    gan = table[table["model"] == "ha-gan"].iloc[0]
    assert (gan["training_gpu_hours"], gan["training_hardware"], gan["kind"]) == (44, "V100", "GAN")
    assert table.loc[table["model"] == "med-ddpm", "parameters"].tolist() == [40_226_433] * 2
    assert table["training_gpu_hours"].isna().sum() == 4
    assert "med-ddpm" in capsys.readouterr().out.splitlines()[-1]
    meta = read_meta(tmp_path / "generative.csv")
    assert "diffusers" in meta
    assert str(tmp_path) not in str(meta["command"])
    assert set(table["torch"]) == {str(torch.__version__)}
    assert table["date"].notna().all()

    (tmp_path / "ha-gan_bf16.csv.gz").unlink()
    (tmp_path / "dit_fp32-bf16_raw.csv.gz").unlink()
    machine.ran.clear()
    assert run.main(arguments) == 0
    assert machine.profiled() == ["dit"]
    assert [c[c.index("--model") + 1] for c in machine.ran if "--trace" in c] == ["ha-gan"]
    assert set(table["host"]) == {machine_meta()["host"]}, "which machine measured a row, among all of its kind"


def test_what_fails_is_told_and_left_out(tmp_path: Path, machine: Machine, capsys) -> None:
    machine.fails = {"dit_fp32", "ha-gan"}
    assert run.main(["--out", str(tmp_path), "--models", ",".join(NAMES)]) == 1
    table = read_table(tmp_path / "generative.csv", schemas.GENERATIVE)
    assert list(table[["model", "precision"]].itertuples(index=False, name=None)) == [
        ("dit", "bf16"), ("med-ddpm", "fp32"), ("med-ddpm", "bf16"),
    ]  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "medddpm: [2/3] ha-gan: ha-gan: ended with 9: Failed to profile; leave it out by --models, or try it by hand",
        "medddpm: dit fp32: dit fp32: CUDA out of memory.",
    ]
    machine.fails, machine.ran = {"ha-gan"}, []
    assert run.main(["--out", str(tmp_path), "--models", "dit"]) == 0
    assert [c[c.index("--precision") + 1] for c in machine.ran if "--trace" in c] == ["fp32"], "it is tried again"


@pytest.mark.long
def test_models_that_were_not_measured_again_stay_in_the_record(tmp_path: Path, machine: Machine) -> None:
    """Half of the models on one day and half on another: each row says on which."""
    first, second, folder = tmp_path / "a", tmp_path / "b", tmp_path / "H100"
    folder.mkdir()
    for out, names, day in ((first, "med-ddpm,dit", "2026-01-01"), (second, "dit,ha-gan", "2026-01-02")):
        assert run.main(["--out", str(out), "--models", names]) == 0
        for raw in out.glob("*_raw.csv.gz"):
            write_meta({**read_meta(raw), "date": day}, raw)
        for model in names.split(","):
            (out / f"{results.key_of(MODELS[model], ['fp32', 'bf16'])}.json").unlink()
        assert run.main(["--out", str(out), "--models", names]) == 0
        results.publish(out / results.NAME, folder)
    joined = read_table(folder / results.NAME, schemas.GENERATIVE)
    days = {"dit": "2026-01-02", "ha-gan": "2026-01-02", "med-ddpm": "2026-01-01"}
    assert joined["model"].tolist() == [name for name in days for _ in range(2)]
    assert joined["date"].tolist() == [day for day in days.values() for _ in range(2)]


def test_nothing_measured_is_one_line(tmp_path: Path, machine: Machine, capsys) -> None:
    machine.fails = {"dit"}
    assert run.main(["--out", str(tmp_path), "--models", "dit"]) == 1
    assert "nothing was measured" in capsys.readouterr().err.splitlines()[-1]
    assert run.main(["--out", str(tmp_path), "--models", "sd9"]) == 1
    assert capsys.readouterr().err.startswith("medddpm: --models: unknown: sd9")


def test_an_interruption_is_one_line(tmp_path: Path, machine: Machine, monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.harness, "run", interrupted)
    try:
        status = run.main(["--out", str(tmp_path / "out"), "--models", "dit"])
    except KeyboardInterrupt:
        pytest.fail("a traceback")  # and not the end of all tests
    assert status == 130
    assert capsys.readouterr().err == "medddpm: interrupted; the same command goes on where it was\n"


def test_without_a_gpu_nothing_is_begun(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(programs, "find", lambda name: name)
    assert run.main(["--out", str(tmp_path), "--models", "dit"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("medddpm: generative: PyTorch finds no NVIDIA GPU here")
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_somebody_elses_is_not_replaced(tmp_path: Path, machine: Machine, capsys) -> None:
    (tmp_path / "generative.csv").write_text("patient,age\n")
    assert run.main(["--out", str(tmp_path), "--models", "dit"]) == 1
    assert "a file stands there that this command did not write" in capsys.readouterr().err
    assert machine.ran == []
    assert [path.read_text() for path in tmp_path.iterdir()] == ["patient,age\n"]


def test_closed_counters_end_it(tmp_path: Path, machine: Machine) -> None:
    machine.says = "==ERROR== ERR_NVGPUCTRPERM"
    with pytest.raises(CountersClosed):
        run.measure([MODELS["dit"], MODELS["sd15"]], ["fp32"], tmp_path)
    assert machine.profiled() == ["dit"]


def test_a_distinct_launch_is_profiled_once_with_two_counters() -> None:
    command = one_model.collection(MODELS["sd3"], ["fp32", "bf16"]).collect_command(Path("r.ncu-rep"))
    assert " ".join(command) == (
        "ncu --clock-control none --import-source no --target-processes all "
        "--profile-from-start off --filter-mode per-launch-config --launch-count 1 --kernel-name-base mangled "
        "--metrics sm__cycles_active.sum,smsp__inst_executed.sum -o r "
        "python -m study.generative.worker --model sd3 --precision fp32,bf16"
    )
    assert generative_worker.parser().parse_args(command[command.index("--model") :]).model == "sd3"
    assert generative_worker.record is trace.record


# the records


def test_every_machines_record_is_read_and_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"no machine's folder has a generative\.csv; .*python -m study book --only 04 --measure"
    ):
        tables.recorded(tmp_path)
    found = tables.recorded(ROOT)
    assert found
    for table in found.values():
        assert set(table["model"]) <= set(MODELS)
