"""Published and own checkpoints come back whole; damaged, foreign and dangerous ones are refused in one line."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from medddpm.checkpoints import files
from medddpm.checkpoints.files import load_checkpoint, read_checkpoint, save_checkpoint
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.unet import UNet3D


def small() -> GaussianDiffusion:
    torch.manual_seed(0)
    diffusion = GaussianDiffusion(UNet3D(image_size=32, model_channels=32, channel_mult=(1, 2), attention_rates=(2,)))
    for parameter in diffusion.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return diffusion


def published(diffusion: GaussianDiffusion) -> dict:
    """As the released files are: no configuration, and one schedule buffer more than is read."""
    state = {**diffusion.state_dict(), "posterior_mean_coef3": torch.zeros(diffusion.timesteps)}
    return {"step": 7, "model": {k: torch.zeros_like(v) for k, v in state.items()}, "ema": state}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "with space" / "model.pt"
    save_checkpoint(path, published(small()))
    return path


def test_a_published_checkpoint_gives_the_same_numbers(file: Path) -> None:
    original, loaded = small(), load_checkpoint(file)
    assert not loaded.training
    x, t = torch.randn(1, 3, 8, 8, 8), torch.tensor([5])
    assert torch.equal(loaded.denoise_fn(x, t), original.eval().denoise_fn(x, t))
    assert load_checkpoint(file, weights="model").denoise_fn(x, t).abs().max() == 0


@pytest.mark.parametrize("listing", ["128", "brats", "small"])
def test_every_published_configuration_loads_strictly(spec: Path, tmp_path: Path, listing: str) -> None:
    shapes = json.loads((spec / f"state_dict_{listing}.json").read_text())
    state = {f"denoise_fn.{name}": torch.zeros(shape) for name, shape in shapes}
    state |= GaussianDiffusion(torch.nn.Identity()).state_dict()
    save_checkpoint(tmp_path / "model.pt", {"step": 1, "model": state, "ema": state})
    diffusion = load_checkpoint(tmp_path / "model.pt")
    assert [name for name, _ in shapes] == list(diffusion.denoise_fn.state_dict())


def test_another_schedule_in_the_file_is_the_one_used(tmp_path: Path) -> None:
    content = published(GaussianDiffusion(small().denoise_fn, timesteps=100))
    save_checkpoint(tmp_path / "model.pt", content)
    loaded = load_checkpoint(tmp_path / "model.pt")
    assert loaded.timesteps == 100
    assert torch.equal(loaded.betas, content["ema"]["betas"])


def test_of_a_run_s_folder_the_newest_checkpoint_is_taken(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "A"
    for step in (10_000_000, 9_999_999):  # the newest by its number: neither by its name nor by its time
        content = published(small())
        content["ema"]["denoise_fn.out.2.bias"] = torch.full((1,), float(step))
        save_checkpoint(run / "checkpoints" / f"step-{step:07d}.pt", content)
    assert load_checkpoint(str(run)).denoise_fn.out[2].bias.item() == 10_000_000
    del content["ema"]["denoise_fn.out.2.bias"]
    save_checkpoint(run / "checkpoints" / "step-10000001.pt", content)
    with pytest.raises(BadInput, match=r"step-10000001\.pt: its tensors do not fit"):
        load_checkpoint(run)
    with pytest.raises(BadInput, match=r"runs: this folder has no checkpoints/step-\*\.pt; give a run's folder or a"):
        load_checkpoint(run.parent)


INNER = "denoise_fn."


def wrapped(state: dict, outer: str = "", inner: str = "") -> dict:
    """As a wrapped diffusion, or a diffusion of a wrapped network, names its weights."""
    return {
        outer + (INNER + inner + name.removeprefix(INNER) if name.startswith(INNER) else name): tensor
        for name, tensor in state.items()
    }


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("module.", ""),
        ("_orig_mod.", ""),
        ("module._orig_mod.", ""),
        ("", "module."),
        ("", "_orig_mod."),
        ("_orig_mod.module.", "module."),
        ("ema_model.", ""),
    ],
)
def test_a_prefix_that_all_names_share_is_no_other_network(tmp_path: Path, outer: str, inner: str) -> None:
    content = published(small())
    content |= {kind: wrapped(content[kind], outer, inner) for kind in ("model", "ema")}
    save_checkpoint(tmp_path / "model.pt", content)
    loaded, original = load_checkpoint(tmp_path / "model.pt").state_dict(), small().state_dict()
    assert loaded.keys() == original.keys()
    assert all(torch.equal(loaded[name], original[name]) for name in original)


def test_an_average_of_pytorch_s_loads(tmp_path: Path) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(small())
    save_checkpoint(tmp_path / "model.pt", {"ema": averaged.state_dict()})
    assert torch.equal(load_checkpoint(tmp_path / "model.pt").betas, small().betas)


def test_a_prefix_of_some_names_alone_stays(tmp_path: Path) -> None:
    state = small().state_dict()
    state["module.betas"] = state.pop("betas")
    save_checkpoint(tmp_path / "model.pt", {"ema": state})
    with pytest.raises(BadInput, match=r"1 missing \(betas\), 1 extra \(module\.betas\)"):
        load_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("saved", ["network", "wrapped network", "diffusion"])
def test_weights_by_themselves_load(tmp_path: Path, suffix: str, saved: str, caplog) -> None:
    original, path = small(), tmp_path / f"model{suffix}"
    state = original.state_dict() if saved == "diffusion" else original.denoise_fn.state_dict()
    if saved == "wrapped network":
        state = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save(state, path) if suffix == ".pt" else save_file(state, path, {"format": "pt"})
    for weights in ("ema", "model"):
        loaded = load_checkpoint(path, weights=weights).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in original.state_dict().items())
    assert ("the published one of 250 timesteps is taken" in caplog.text) == (saved != "diffusion")


def test_plain_values_beside_the_tensors_are_no_code(tmp_path: Path) -> None:
    plain = {
        "image_size": torch.Size([16] * 3), "dtype": torch.float32, "device": torch.device("cpu"), "bytes": b"abc",
        "set": {1, "a"}, "counter": Counter("aab"), "complex": 1 + 2j, "array": bytearray(b"ab"), "number": 10**30,
        "ordered": OrderedDict(a=[1, (2, None), [True, 0.5]]), "layout": torch.strided,
    }  # fmt: skip
    save_checkpoint(tmp_path / "model.pt", {**published(small()), **plain})
    content = read_checkpoint(tmp_path / "model.pt")
    assert {name: content[name] for name in plain} == plain
    load_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("out.2.bias", lambda t: t.bool(), r"not floating-point numbers \(denoise_fn\.out\.2\.bias: torch\.bool\)"),
        ("out.2.bias", lambda t: t.int(), r"not floating-point .*torch\.int32"),
        ("out.2.bias", lambda t: t.to(torch.complex64), r"not floating-point .*torch\.complex64"),
        ("out.2.bias", lambda t: t.double() + 1e300, r"not finite \(denoise_fn\.out\.2\.bias\)"),
        ("betas", lambda t: -t, r"noise schedule holds numbers that none has \(betas\)"),
        ("betas", lambda t: t + 1, r"noise schedule .* \(betas\)"),
        ("alphas_cumprod", lambda t: t + 1, r"noise schedule .* \(alphas_cumprod\)"),
        ("sqrt_recip_alphas_cumprod", lambda t: -t, r"noise schedule .* \(sqrt_recip_alphas_cumprod\)"),
        ("betas", lambda t: t[:0], "timesteps is not what it should be"),
        ("betas", lambda t: t.int(), "not floating-point"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_numbers_that_cannot_be_computed_with_are_refused(
    tmp_path: Path, name: str, change, message: str, suffix: str
) -> None:
    state, path = small().state_dict(), tmp_path / f"model{suffix}"
    name = name if name in state else f"denoise_fn.{name}"
    state[name] = change(state[name])
    torch.save({"ema": state}, path) if suffix == ".pt" else save_file(state, path)
    with pytest.raises(BadInput, match=message):
        load_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_load(tmp_path: Path, dtype: torch.dtype) -> None:
    original = small()
    weights = {name: tensor.to(dtype) for name, tensor in original.denoise_fn.state_dict().items()}
    torch.save(weights, tmp_path / "model.pt")
    loaded = load_checkpoint(tmp_path / "model.pt").denoise_fn.state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in weights.items())


FIELDS = [
    ("sampling", 5), ("sampling", []), ("sampling", {"sampler": 5, "steps": 1}), ("sampling", {"sampler": "ddim"}),
    ("sampling", {"sampler": "ddim", "steps": True}), ("sampling", {"sampler": "ddim", "steps": float("nan")}),
    ("sampling", {"sampler": "ddim", "steps": 2, "seed": 1}), ("sampling", {"sampler": "x" * 10_000, "steps": 1}),
    ("size", 5), ("size", [16, 16]), ("size", [16, 16, 16.0]), ("size", [16, 16, -16]), ("size", [4096] * 3),
    ("config", 5), ("config", {"image_size": True}), ("config", {"image_size": 2**40}), ("config", {"lr": 1}),
    ("config", {"channel_mult": [1] * 100}), ("config", {"channel_mult": "12"}), ("config", {"channel_mult": [[1]]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=lambda value: str(value)[:30])
def test_what_a_file_says_of_itself_is_checked(tmp_path: Path, name: str, value: object) -> None:
    save_checkpoint(tmp_path / "model.pt", {**published(small()), name: value})
    with pytest.raises(BadInput, match=f"its metadata is damaged: {name} is not what it should be"):
        read_checkpoint(tmp_path / "model.pt")


def test_names_of_many_levels_cost_no_search(tmp_path: Path) -> None:
    """A configuration is read off the names, once for each block that they have."""
    state = {f"denoise_fn.input_blocks.{n}.0.op.weight": torch.zeros(1) for n in range(5000)}
    save_checkpoint(tmp_path / "model.pt", {"ema": state | {"denoise_fn.input_blocks.0.0.weight": torch.zeros(1, 1)}})
    with pytest.raises(BadInput, match="it holds 5001 tensors, more than any network of this kind"):
        load_checkpoint(tmp_path / "model.pt")
    empty = {"denoise_fn.input_blocks.0.0.weight": torch.zeros(0, 3), "denoise_fn.out.2.weight": torch.zeros(1)}
    blocks = {"denoise_fn.input_blocks.1.0.out_layers.3.weight": torch.zeros(1)}
    save_checkpoint(tmp_path / "model.pt", {"ema": empty | blocks})
    with pytest.raises(BadInput, match="not those of this network"):
        load_checkpoint(tmp_path / "model.pt")


class Code:
    def __reduce__(self) -> tuple:
        return os.system, ("touch carried-code-ran",)


def missing(content: dict) -> None:
    del content["ema"]["denoise_fn.out.2.bias"]


def extra(content: dict) -> None:
    content["ema"]["denoise_fn.out.7.bias"] = torch.zeros(1)


def reshaped(content: dict) -> None:
    content["ema"]["denoise_fn.out.2.bias"] = torch.zeros(4)
    content["config"] = small().denoise_fn.config


def other_network(content: dict) -> None:
    content["ema"] = {"encoder.weight": torch.zeros(3)}


def no_maps(content: dict) -> None:
    content.clear()
    content["weights"] = torch.zeros(3)


def only_model(content: dict) -> None:
    del content["ema"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (missing, r"1 missing \(denoise_fn.out.2.bias\)"),
        (extra, r"1 extra \(denoise_fn.out.7.bias\)"),
        (reshaped, r"1 of another shape \(denoise_fn.out.2.bias\)"),
        (other_network, "not those of this network"),
        (no_maps, "no 'model' or 'ema'"),
        (only_model, "no 'ema' weights; ask for 'model' \\(weights=, --weights\\)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change, message: str) -> None:
    content = published(small())
    change(content)
    save_checkpoint(tmp_path / "model.pt", content)
    with pytest.raises(BadInput, match=message) as caught:
        load_checkpoint(tmp_path / "model.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_checkpoint_that_carries_code_is_refused(tmp_path: Path, monkeypatch, legacy: bool) -> None:
    monkeypatch.chdir(tmp_path)
    content = {**published(small()), "extra": Code()}
    torch.save(content, "model.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(BadInput, match="format of before 1.6" if legacy else "carries code"):
        load_checkpoint("model.pt")
    assert not Path("carried-code-ran").exists()


def test_a_bare_pickle_with_code_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.pt").write_bytes(pickle.dumps(Code()))
    with pytest.raises(BadInput, match="no PyTorch checkpoint"):
        load_checkpoint("model.pt")
    assert not Path("carried-code-ran").exists()


def test_what_reads_the_tensors_runs_no_code_either(tmp_path: Path, monkeypatch) -> None:
    """Were the archive's check to let something through, it would still not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "check_archive", lambda path: None)
    torch.save({**published(small()), "extra": Code()}, "model.pt")
    with pytest.raises(BadInput, match="damaged"):
        load_checkpoint("model.pt")
    assert not Path("carried-code-ran").exists()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_called_damaged(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadInput, match="damaged"):
        load_checkpoint(file)


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n", bytes(1000), b"PK\x03\x04" + bytes(64)])
def test_a_foreign_file_is_called_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(BadInput, match="no PyTorch checkpoint"):
        load_checkpoint(tmp_path / "model.pt")


def test_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such checkpoint"):
        load_checkpoint(tmp_path / "none.pt")


def test_a_full_disk_leaves_the_last_good_one(file: Path) -> None:
    """The limit on a file's size stands for the disk: the write fails in the middle, as it would there."""
    before = file.read_bytes()
    script = (
        "import resource, sys, torch\n"
        "from medddpm.checkpoints.files import save_checkpoint\n"
        "from medddpm.errors import BadInput\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2},) * 2)\n"
        "try: save_checkpoint(sys.argv[1], {'model': torch.zeros(int(sys.argv[2]))})\n"
        "except BadInput as error: print(error)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, str(file), str(len(before))], capture_output=True, text=True, check=True
    ).stdout
    assert "no room left" in printed
    assert str(file) in printed
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
