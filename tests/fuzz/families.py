"""Every kind of file that the project reads, with good examples, how they are broken, and who reads them."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK as sitk
import torch
from helpers import bombs
from helpers.ncu_pages import CONV, CUPTI_ADD, CUPTI_NORM, Raw, details
from helpers.profiles import Launch, write_profile
from hypothesis import strategies as st

from fuzz import mutants
from fuzz.arguments import broken_commands, commands, good, run_command
from fuzz.data_folders import NAMES as DATA_FOLDERS
from fuzz.data_folders import data_folders
from medddpm.checkpoints.files import load_checkpoint
from medddpm.checkpoints.released import write
from medddpm.data.nifti import read_image, read_mask
from medddpm.diffusion import GaussianDiffusion
from medddpm.measure.profile.parse import parse
from medddpm.measure.profile.program.observer import STEP, TRACED
from medddpm.measure.profile.program.program_trace import described, read_program_trace
from medddpm.measure.profile.trace import write as write_trace
from medddpm.measure.report import starts, window
from medddpm.measure.report.folder import read_profile
from medddpm.measure.report.page.report import write_report
from medddpm.measure.schemas import TRACE
from medddpm.measure.tables import read_meta, read_table
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.release import training_of
from medddpm.training.run_folder import read_run
from medddpm.unet import RECOMPUTED, UNet3D
from study.book import Book
from study.records import schemas

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
    run = {**asdict(TrainConfig(image_size=8)), "size": [8, 8, 8], "layout": "whole head", "volumes": ["a", "b"],
           "data": ["volume 0", "volume 1"], "processes": 1}  # fmt: skip
    state = {"01_train": {"digest": "0" * 64, "outputs": {"figures/a.png": "1" * 64}}}
    raw, rules, trace = _ncu_pages()
    table, meta = _table()
    profile = _profile(folder / "profile")
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
        Family("checkpoint-pickle", "c.pt", mutants.pickles().map(bombs.archive), load_checkpoint),
        Family("checkpoint-records", "c.pt", _broken_records(saved[0]), load_checkpoint),
        Family("safetensors-bytes", "r.safetensors", mutants.broken_bytes([released]), load_checkpoint),
        Family("safetensors-header", "r.safetensors", _broken_header(released), load_checkpoint),
        Family("run-json", "run.json", _json(run), _read_run),
        Family("state-json", "state.json", _json(state), _read_state),
        Family("ncu-raw", "raw.csv", mutants.broken_text([raw]), _read_raw),
        Family("ncu-bytes", "raw.csv", mutants.broken_bytes([raw.encode()]), _read_raw),
        Family("ncu-lines", "raw.csv", mutants.broken_lines(raw), _read_rows(raw, folder)),
        Family("ncu-details", "details.csv", mutants.broken_text([rules]), _with_raw(raw, "details", "window")),
        Family("ncu-details-lines", "details.csv", mutants.broken_lines(rules), _with_raw(raw, "details", "window")),
        Family("trace", "trace.csv", mutants.broken_text([trace]), _with_raw(raw, "trace", "step")),
        Family("program-trace", "trace.json", _json(_program_trace()), _read_program_trace),
        *(Family(name, at, mutants.broken_text([profile[at]]), _report_of(profile)) for name, at in PROFILE.items()),
        Family("record", "kernels.csv", mutants.broken_text([table]), _read_record(meta)),
        Family("record-meta", "kernels.meta.json", mutants.broken_text([meta]), _read_meta),
        Family("arguments", "words.json", broken_commands(lines), run_command),
        *(Family(*parts) for parts in data_folders(folder)),
    ]  # fmt: skip
    return {family.name: family for family in listed}


def packed(content: bytes) -> bytes:
    """Gzipped, quickly."""
    return gzip.compress(content, 1)


def _read_run(path: Path) -> None:
    """Reads a run's configuration; what it holds can then be trained with."""
    run = read_run(path.parent)
    config = {field.name: run.get(field.name, getattr(TrainConfig, field.name)) for field in fields(TrainConfig)}
    assert TrainConfig(**config).recompute in RECOMPUTED
    assert config["setting"] in SETTINGS
    training_of(path.parent)


def _broken_records(saved: bytes) -> st.SearchStrategy[bytes]:
    """An archive whose directory has other places, lengths or names for its records."""
    begin = int.from_bytes(saved[-6:-2], "little")
    numbers = st.one_of(st.integers(0, len(saved)), st.sampled_from((0, 2**31, 2**32 - 1)))
    fields_ = st.tuples(st.integers(begin, len(saved) - 4), numbers)

    def broken(changes: Sequence[tuple[int, int]]) -> bytes:
        content = bytearray(saved)
        for place, number in changes:
            content[place : place + 4] = number.to_bytes(4, "little")
        return bytes(content)

    entries = [place for place in range(begin, len(saved) - 46) if saved[place : place + 4] == b"PK\1\2"]
    parts = st.tuples(st.sampled_from(entries), st.sampled_from((20, 24, 42))).map(sum)  # packed, whole, where it lies
    aimed = st.tuples(
        parts,
        st.one_of(numbers, st.sampled_from(entries).map(lambda at: int.from_bytes(saved[at + 42 : at + 46], "little"))),
    )
    return st.lists(st.one_of(fields_, aimed), max_size=4).map(broken)


def _read_raw(path: Path) -> object:
    return parse(path, "BASE", "window")


def _read_rows(raw: str, folder: Path) -> Callable[[Path], object]:
    """Reads a page whose lines were cut or moved: what it takes for a launch must be one of `raw`'s, whole."""
    good = folder / "whole.csv"
    good.write_text(raw)
    launches = {launch["launch_index"]: launch for launch in parse(good, "BASE", "window").table.to_dict("records")}

    def read(path: Path) -> object:
        table = parse(path, "BASE", "window").table
        assert [str(found) for found in table.to_dict("records")] == [str(launches[i]) for i in table["launch_index"]]
        return table

    return read


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
    return {"step": 3, "model": state, "ema": state, "config": unet.config, "size": [8, 8, 8], "layout": "whole head",
            "losses": torch.ones(3), "sampling": {"sampler": "ddim", "steps": 2}}  # fmt: skip


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
    book = object.__new__(Book)
    book.root, book.folder = path.parent, path.parent
    state = book._load()
    for name in ("01_train", "x"):
        left = state.get(name, {})
        left.get("digest"), left.get("outputs")


def _ncu_pages() -> tuple[str, str, str]:
    raw = Raw().text()
    rules = details([(index, "global", "12.5") for index in range(ROWS)])
    columns = ",".join(TRACE.columns)
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


PROFILE = {
    "profile-trace": "launches_own_step_run1.csv",
    "profile-kernels": "kernels_own_step_run1.csv",
    "profile-meta": "launches_own_step_run1.meta.json",
}


def _profile(folder: Path) -> dict[str, str]:
    """The files of a profile by name."""
    launches = [Launch(us=9.0), Launch(CUPTI_ADD, 5.0), Launch("my_sum", 4.0, "backward", counted=False)] * 2
    program = {"name": "train.py", "step_ms": [0.05, 0.06], "loading_ms": [0.01, None], "processes": 2, "gpus": 2,
               "graphs": True, "varies": True}  # fmt: skip
    write_profile(folder, launches, program=program, starts=[10.0 * place for place in range(len(launches))])
    return {path.name: path.read_text() for path in folder.iterdir()}


def _report_of(files: Mapping[str, str]) -> Callable[[Path], object]:
    """Makes the page of a profile of which one file is broken, and says what a window of it holds."""

    def read(path: Path) -> object:
        for name, text in files.items():
            if name != path.name:
                path.with_name(name).write_text(text)
        try:
            profile = read_profile(path.parent)
            page = write_report([profile], path.with_name("report.html"))
            assert page.stat().st_size < 1_000_000
            order = starts.ordered(profile)
            starts.check(0, 1, order)
            return window.printed(profile, order, 0, 1)
        finally:
            for name in files:
                path.with_name(name).unlink(missing_ok=True)

    return read


def _program_trace() -> dict[str, Any]:
    """What torch.profiler exports of a program's two steps, each with two launches."""
    made: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, **args: object) -> None:
        made.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args})

    for step in range(TRACED):
        add("user_annotation", STEP, 100.0 * step, 90.0)
        add("user_annotation", "forward", 100.0 * step, 90.0)
        for place, name in enumerate((CONV, CUPTI_ADD)):
            known = {"correlation": 10 * step + place, "stream": 7, "device": 0}
            add("cuda_runtime", "cudaLaunchKernel", 100.0 * step + place, 1.0, **known)
            add("kernel", name, 100.0 * step + 50 + place, 1.0, grid=[64, 1, 1], block=[128, 1, 1], **known)
    return {"traceEvents": made}


def _read_program_trace(path: Path) -> object:
    status = {"step_ms": [1.0], "loading_ms": None, "steps_seen": 11, "by": "the calls of Adam"}
    trace = read_program_trace(path, "a run")
    write_trace(trace.steps[-1], path.with_name("trace.csv.gz"))
    read_table(path.with_name("trace.csv.gz"), TRACE)
    return described(trace, status, [])


def _read_record(meta: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        path.with_name("kernels.meta.json").write_text(meta)
        return read_table(path, schemas.TRAINING)

    return read


def all_names() -> Sequence[str]:
    """The families' names without making their examples, for parametrizing tests."""
    return ("nifti", "nifti-mask", "nifti-gz", "nifti-gz-inside", "mha", "mha-header", "nrrd", "nrrd-header",
            "checkpoint-bytes", "checkpoint-values", "checkpoint-pickle", "checkpoint-records", "safetensors-bytes",
            "safetensors-header", "run-json", "state-json", "ncu-raw", "ncu-bytes", "ncu-lines", "ncu-details",
            "ncu-details-lines", "trace", "program-trace", *PROFILE, "record", "record-meta", "arguments",
            *DATA_FOLDERS)  # fmt: skip
