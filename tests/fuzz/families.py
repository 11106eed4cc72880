"""Every kind of file that the project reads, with good examples, how they are broken, and who reads them."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK as sitk
import torch
from helpers.ncu_pages import CONV, CUPTI_ADD, CUPTI_NORM, Raw, details
from hypothesis import strategies as st

from fuzz import mutants
from fuzz.arguments import broken_commands, commands, good, run_command
from fuzz.data_folders import NAMES as DATA_FOLDERS
from fuzz.data_folders import data_folders
from medddpm.checkpoints.files import load_checkpoint
from medddpm.checkpoints.released import write
from medddpm.data.nifti import read_image, read_mask
from medddpm.diffusion import GaussianDiffusion
from medddpm.study.book import _Book
from medddpm.study.profile.parse import parse
from medddpm.study.records import schemas
from medddpm.study.records.tables import read_meta, read_table
from medddpm.training.run_folder import read_run
from medddpm.unet import UNet3D

ROWS = 3


@dataclass(frozen=True)
class Family:
    """A kind of file.

    Args:
        name: as its regression cases are filed.
        file: its name, whose suffix readers go by.
        broken: the contents of a broken one.
        read: what the project does with it; it may raise `BadInput`, and nothing else.
    """

    name: str
    file: str
    broken: st.SearchStrategy[bytes]
    read: Callable[[Path], object]


def families(folder: Path) -> dict[str, Family]:
    """All of them; `folder` is for making the good examples."""
    volumes = [_nifti(kind, dtype) for kind in (nib.Nifti1Image, nib.Nifti2Image) for dtype in (np.int16, np.float32)]
    zipped = [gzip.compress(volume, 1) for volume in volumes]
    metas, nrrds = (
        [_itk(folder / f"good{ending}", packed) for packed in (False, True)] for ending in (".mha", ".nrrd")
    )
    checkpoint = _checkpoint()
    saved = [_saved(checkpoint), _saved(checkpoint, legacy=True)]
    released = _released(checkpoint, folder)
    run = {
        "setting": "BASE",
        "image_size": 8,
        "channel_mult": None,
        "size": [8, 8, 8],
        "layout": "whole head",
        "volumes": ["a", "b"],
        "seed": 0,
    }
    state = {"01_train": {"digest": "0" * 64, "outputs": {"figures/a.png": "1" * 64}}}
    raw, rules, trace = _ncu_pages()
    table, meta = _table()
    good()  # and with it every import that a command makes, before limits are set
    page = folder / "good_raw.csv"
    page.write_text(raw)
    lines = commands(str(folder / "good.safetensors"), str(page))
    listed = [
        Family("nifti", "v.nii", mutants.broken_bytes(volumes), read_image),
        Family("nifti-mask", "m.nii", mutants.broken_bytes(volumes), lambda path: read_mask(path, (1, 2))),
        Family("nifti-gz", "v.nii.gz", mutants.broken_bytes(zipped), read_image),
        Family("nifti-gz-inside", "v.nii.gz", mutants.broken_bytes(volumes).map(packed), read_image),
        Family("mha", "v.mha", mutants.broken_bytes(metas), read_image),
        Family("mha-header", "v.mha", _broken_start(metas), lambda path: read_mask(path, (1, 2))),
        Family("nrrd", "v.nrrd", mutants.broken_bytes(nrrds), read_image),
        Family("nrrd-header", "v.nrrd", _broken_start(nrrds), lambda path: read_mask(path, (1, 2))),
        Family("checkpoint-bytes", "c.pt", mutants.broken_bytes(saved), load_checkpoint),
        Family("checkpoint-values", "c.pt", mutants.broken_value(checkpoint).map(_saved), load_checkpoint),
        Family("safetensors-bytes", "r.safetensors", mutants.broken_bytes([released]), load_checkpoint),
        Family("safetensors-header", "r.safetensors", _broken_header(released), load_checkpoint),
        Family("run-json", "run.json", _json(run), lambda path: read_run(path.parent)),
        Family("state-json", "state.json", _json(state), _read_state),
        Family("ncu-raw", "raw.csv", mutants.broken_text([raw]), _read_raw),
        Family("ncu-bytes", "raw.csv", mutants.broken_bytes([raw.encode()]), _read_raw),
        Family("ncu-details", "details.csv", mutants.broken_text([rules]), _with_raw(raw, "details", "window")),
        Family("trace", "trace.csv", mutants.broken_text([trace]), _with_raw(raw, "trace", "step")),
        Family("record", "kernels.csv", mutants.broken_text([table]), _read_record(meta)),
        Family("record-meta", "kernels.meta.json", mutants.broken_text([meta]), _read_meta),
        Family("arguments", "words.json", broken_commands(lines), run_command),
        *(Family(*parts) for parts in data_folders(folder)),
    ]  # fmt: skip
    return {family.name: family for family in listed}


def packed(content: bytes) -> bytes:
    """Gzipped, quickly."""
    return gzip.compress(content, 1)


def _read_raw(path: Path) -> object:
    return parse(path, "BASE", "window")


def _read_meta(path: Path) -> object:
    return read_meta(path.with_name("kernels.csv"))


def _nifti(kind: type[nib.Nifti1Image], dtype: type[np.generic]) -> bytes:
    data = (np.arange(4 * 5 * 6) % ROWS).reshape(4, 5, 6).astype(dtype)
    return bytes(kind(data, np.diag([1.0, 2.0, 3.0, 1.0])).to_bytes())


def _itk(path: Path, packed: bool) -> bytes:
    image = sitk.GetImageFromArray((np.arange(4 * 5 * 6) % ROWS).reshape(4, 5, 6).astype(np.int16))
    image.SetSpacing((1.0, 2.0, 3.0))
    sitk.WriteImage(image, str(path), useCompression=packed)
    return path.read_bytes()


def _broken_start(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """The words of a header broken; the voxels behind it are whole."""
    parts = [re.fullmatch(rb"(.*?(?:LOCAL\n|\n\n))(.*)", seed, re.DOTALL) for seed in seeds]
    return st.one_of(
        *(
            mutants.broken_text([part[1].decode()]).map(lambda start, rest=part[2]: start + rest)
            for part in parts
            if part
        )
    )


def _checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    unet = UNet3D(image_size=8, in_channels=3, out_channels=1, model_channels=32, channel_mult=(1, 1), num_res_blocks=1)
    state = GaussianDiffusion(unet, timesteps=4).state_dict()
    return {"step": 3, "model": state, "ema": state, "config": unet.config, "size": [8, 8, 8], "layout": "head",
            "losses": torch.ones(3)}  # fmt: skip


def _saved(content: object, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def _released(checkpoint: Mapping[str, Any], folder: Path) -> bytes:
    path = folder / "good.safetensors"
    write({**checkpoint, "sampling": {"sampler": "ddim", "steps": 2}}, path)
    return path.read_bytes()


def _broken_header(released: bytes) -> st.SearchStrategy[bytes]:
    length = struct.unpack("<Q", released[:8])[0]
    header, rest = json.loads(released[8 : 8 + length]), released[8 + length :]
    told = header["__metadata__"]

    def whole(changed: Mapping[str, Any]) -> bytes:
        text = json.dumps({**header, "__metadata__": {k: _text(v) for k, v in changed.items()}}).encode()
        return struct.pack("<Q", len(text)) + text + rest

    words = st.sampled_from((*mutants.WORDS, "5", '"sde-dpm++"', '{"sampler": 5}', '{"timesteps": 1e400}', "[1e400]"))
    replaced = st.tuples(st.sampled_from(sorted(told)), words).map(lambda pair: {**told, pair[0]: pair[1]})
    return st.one_of(mutants.broken_value(told), replaced).map(whole)


def _text(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:
        return repr(value)


def _json(content: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    values = mutants.broken_value(content).map(lambda value: json.dumps(value, default=repr).encode())
    return st.one_of(values, mutants.broken_text([json.dumps(content, indent=1)]))


def _read_state(path: Path) -> None:
    book = object.__new__(_Book)
    book.root, book.folder = path.parent, path.parent
    state = book._load()
    for name in ("01_train", "x"):
        left = state.get(name, {})
        left.get("digest"), left.get("outputs")


def _ncu_pages() -> tuple[str, str, str]:
    raw = Raw().text()
    rules = details([(index, "global", "12.5") for index in range(ROWS)])
    columns = ",".join(schemas.TRACE.columns)
    rows = [
        f'{i},"{kernel}","({64 << i}, 1, 1)","(128, 1, 1)",1000.0,forward,7'
        for i, kernel in enumerate((CONV, CUPTI_ADD, CUPTI_NORM))
    ]
    return raw, rules, "\n".join([columns, *rows]) + "\n"


def _with_raw(raw: str, what: str, view: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        page = path.with_name("good.csv")
        page.write_text(raw)
        return parse(page, "BASE", view, **{what: path})

    return read


def _table() -> tuple[str, str]:
    columns = list(schemas.TRAINING.columns)
    lines = [",".join(columns), *(f"BASE,{step},0.5,12.5" for step in range(1, ROWS + 1))]
    return "\n".join(lines) + "\n", json.dumps({"rows": ROWS, "columns": schemas.TRAINING.described()}, indent=1)


def _read_record(meta: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        path.with_name("kernels.meta.json").write_text(meta)
        return read_table(path, schemas.TRAINING)

    return read


def all_names() -> Sequence[str]:
    """The families' names without making their examples, for parametrizing tests."""
    return ("nifti", "nifti-mask", "nifti-gz", "nifti-gz-inside", "mha", "mha-header", "nrrd", "nrrd-header",
            "checkpoint-bytes", "checkpoint-values",
            "safetensors-bytes", "safetensors-header", "run-json", "state-json", "ncu-raw", "ncu-bytes", "ncu-details",
            "trace", "record", "record-meta", "arguments", *DATA_FOLDERS)  # fmt: skip
