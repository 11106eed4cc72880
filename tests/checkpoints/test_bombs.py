"""A file that claims much is answered at the cost of its own size: in one line, within 10 s and 2 GiB."""

from __future__ import annotations

import io
import json
import pickletools
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fuzz.attack import limited
from helpers import bombs

from medddpm.checkpoints.archive import LARGEST_PICKLE, check_archive
from medddpm.checkpoints.claims import MOST_OPCODES, Foreign, storages_of
from medddpm.checkpoints.files import load_checkpoint, read_checkpoint, save_checkpoint
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.unet import UNet3D

MEASURED = """
import resource, sys
from pathlib import Path
from medddpm.checkpoints.files import load_checkpoint
from medddpm.errors import BadInput
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
sound, *bombs = map(Path, sys.argv[1:])
load_checkpoint(sound)  # with it, all that the first one takes
for path in bombs:
    before = peak()
    try:
        load_checkpoint(path)
    except BadInput as refused:
        print(peak() - before, path.stat().st_blocks // 2048, refused)
    else:
        print(-1, 0, path)
"""
CONSTANT = 128  # MiB, beside the file's size: half a million opcodes


def small() -> GaussianDiffusion:
    torch.manual_seed(0)
    return GaussianDiffusion(UNet3D(image_size=16, model_channels=32, channel_mult=(1, 1)), 4)


def test_no_file_takes_more_memory_than_it_has_on_disk(tmp_path: Path) -> None:
    state = small().state_dict()
    save_checkpoint(tmp_path / "sound.pt", {"model": state, "ema": state})
    files = {name: bombs.archive(pickled) for name, pickled in bombs.PICKLES.items()}
    files["nested records"] = bombs.nested_records(2000, 2**18)
    paths = [tmp_path / "sound.pt"]
    for name, content in files.items():
        paths.append(tmp_path / f"{name}.pt")
        paths[-1].write_bytes(content)
    wide = torch.zeros(2**20)
    for name, content in {
        "views": bombs.views(
            {name: wide[: 8 * tensor.numel()] if tensor.dim() == 1 else tensor for name, tensor in state.items()}
        ),
        "shared": bombs.views(state),
        "long schedule": {"ema": {**state, "betas": torch.full((2**20,), 0.01)}},
    }.items():
        paths.append(tmp_path / f"{name}.pt")
        save_checkpoint(paths[-1], content)
    for suffix in (".pt", ".safetensors"):
        paths.append(tmp_path / f"hollow{suffix}")
        bombs.write_hollow(b"\x80" + bytes(7) + b"{", paths[-1], 2**34)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, paths)], capture_output=True, text=True, timeout=300
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths) - 1, done.stderr
    for line in lines:
        grown, file_size, _ = line.split(" ", 2)
        assert 0 <= int(grown) <= int(file_size) + CONSTANT, line


@pytest.mark.parametrize("name", bombs.PICKLES)
def test_a_pickle_costs_no_more_than_its_size(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(bombs.archive(bombs.PICKLES[name]))
    with pytest.raises(BadInput, match=r"model\.pt: it is damaged, or no PyTorch checkpoint"), limited():
        load_checkpoint(path)


@pytest.mark.parametrize("count", [2, 300])
def test_records_that_share_bytes_are_refused(tmp_path: Path, count: int) -> None:
    (tmp_path / "model.pt").write_bytes(bombs.nested_records(count, 1000))
    assert len(torch.load(tmp_path / "model.pt", weights_only=True)["model"]) == count, "PyTorch reads it"
    with pytest.raises(BadInput, match="damaged"):
        check_archive(tmp_path / "model.pt")
    (tmp_path / "model.pt").write_bytes(bombs.nested_records(1, 1000))
    check_archive(tmp_path / "model.pt")


def test_a_directory_is_where_pytorch_writes_it(tmp_path: Path) -> None:
    """Two readers of one archive that begin at different directories read two archives."""
    stream, path = io.BytesIO(), tmp_path / "model.pt"
    torch.save({"model": {"a": torch.zeros(2)}}, stream)
    whole = stream.getvalue()
    assert whole[-42:-38] == b"PK\6\7", "PyTorch writes the end of a large archive"
    path.write_bytes(whole)
    check_archive(path)
    place = struct.unpack("<Q", whole[-34:-26])[0]
    for changed in (
        whole + b"a comment",
        whole[:-2] + struct.pack("<H", 9) + b"a comment",
        b"before" + whole,
        whole[:-34] + struct.pack("<Q", place - 1) + whole[-26:],
    ):
        path.write_bytes(changed)
        with pytest.raises(BadInput, match="damaged"):
            check_archive(path)


def test_a_mostly_hollow_file_is_no_download(tmp_path: Path) -> None:
    state = small().state_dict()
    save_checkpoint(tmp_path / "sound.pt", {"model": state, "ema": state, "more": torch.zeros(2**18)})
    for name in ("model.pt", "model.safetensors"):
        bombs.write_hollow((tmp_path / "sound.pt").read_bytes(), tmp_path / name, 2**26)
        with pytest.raises(BadInput, match=r"bytes are on the disk; copy or download it again"):
            read_checkpoint(tmp_path / name)


def test_a_header_of_safetensors_is_no_longer_than_a_network_s(tmp_path: Path) -> None:
    header = json.dumps(
        {f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(80_000)}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(BadInput, match="damaged, or no safetensors file"):
        read_checkpoint(tmp_path / "model.safetensors")


def test_a_network_of_3000_tensors_with_its_optimizer_is_within_the_limit() -> None:
    def tensors() -> dict[str, torch.Tensor]:
        return {f"denoise_fn.output_blocks.10.0.out_layers.{n}.weight": torch.zeros(1) for n in range(100)}

    moments = {
        n: {"step": torch.tensor(1.0), "exp_avg": a, "exp_avg_sq": b}
        for n, (a, b) in enumerate(zip(tensors().values(), tensors().values(), strict=True))
    }
    groups = [{"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "params": list(range(100))}]
    optimizer = {"state": moments, "param_groups": groups}
    torch.save({"model": tensors(), "ema": tensors(), "optimizer": optimizer}, stream := io.BytesIO())
    with zipfile.ZipFile(stream) as archive:
        pickled = archive.read("archive/data.pkl")
    assert len(storages_of(pickled)) == 500
    assert 30 * len(list(pickletools.genops(pickled))) < MOST_OPCODES
    assert 30 * len(pickled) < LARGEST_PICKLE


def test_what_runs_code_is_named() -> None:
    with pytest.raises(Foreign, match=r"posix\.system"):
        storages_of(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.")
