"""The tables every figure is drawn from: tidy CSV with a schema and, beside each, how it was measured."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from medddpm.atomic import replacing
from medddpm.errors import BadInput

GZIP_ABOVE = 1_000_000  # bytes of text
GPU_ORDER = ("V100", "A100", "H100", "H200")  # the paper's cards by age, then ours; any other follows by name


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Args:
        dtype: "str", "int64" or "float64". A float is finite or, where `nullable`, missing.
        meaning: one phrase for a reader of the table.
        unit: the unit of every number in it; empty for names, counts and ratios.
        nullable: whether a value may be missing (an empty field).
        allowed: the only values a "str" column may hold; empty for any.
    """

    dtype: str
    meaning: str
    unit: str = ""
    nullable: bool = False
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """The columns of a table by name, in the order they are written."""

    columns: Mapping[str, Column]

    def described(self) -> dict[str, dict[str, str]]:
        """`{name: {dtype, unit, meaning}}`, for the file beside a table."""
        return {n: {"dtype": c.dtype, "unit": c.unit, "meaning": c.meaning} for n, c in self.columns.items()}


PAPER = Schema(
    {
        "id": Column("str", "number of the claim, P001 to P198"),
        "section": Column("str", "section of the paper that states it"),
        "figure": Column("str", "figure or table it belongs to", nullable=True),
        "gpu": Column("str", "card or cards it speaks of, divided by semicolons"),
        "config": Column("str", "setting or settings, divided by semicolons", nullable=True),
        "subject": Column("str", "kernel, kernel group or workload"),
        "metric": Column("str", "what is counted"),
        "value": Column("str", "the number or name as stated; a range reads low-high"),
        "unit": Column("str", "unit of the value", nullable=True),
        "qualifier": Column("str", "how firmly the paper states it: = where exact"),
    }
)
CLAIMS = Schema(
    {
        "id": Column("str", "number of the claim, as in the paper's table"),
        "paper_value": Column("str", "as the paper states it"),
        "our_value": Column("str", "as found here", nullable=True),
        "view": Column("str", "where ours comes from: window, step, configuration, software or card"),
        "tolerance": Column(
            "float64", "largest relative difference that still reproduces; 0 is equality", nullable=True
        ),
        "status": Column("str", "the verdict", allowed=("reproduced", "differs", "not_measurable")),
        "reason": Column("str", "why, in a sentence"),
    }
)
TRAINING = Schema(
    {
        "setting": Column("str", "the setting it was trained under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "step": Column("int64", "optimizer steps done, from 1"),
        "loss": Column("float64", "mean absolute error of the predicted noise over the step's batch"),
        "step_ms": Column("float64", "wall time of the step", unit="ms"),
    }
)
TRACE = Schema(
    {
        "index": Column("int64", "place in the step, from 0"),
        "kernel": Column("str", "name as CUPTI gives it; of a fill or copy, what kind it is"),
        "grid": Column("str", "blocks, (x, y, z); none of a fill or copy", nullable=True),
        "block": Column("str", "threads a block, (x, y, z); none of a fill or copy", nullable=True),
        "duration_ns": Column("float64", "time on the GPU, undisturbed by counters", unit="ns"),
        "phase": Column("str", "part of the step: load, forward, backward or update", nullable=True),
        "stream": Column("int64", "the stream it ran on"),
    }
)

CARD = Schema(
    {
        "property": Column("str", "as Table 1 of the paper names it"),
        "value": Column("str", "as the driver gives it, or as derived from what it gives"),
        "unit": Column("str", "of the value", nullable=True),
        "origin": Column("str", "driver, derived (and from what), or the paper's card of the same architecture"),
    }
)
GENERATIVE = Schema(
    {
        "model": Column("str", "as `medddpm.study.generative` names it"),
        "title": Column("str", "as the figure names it"),
        "kind": Column("str", "what is trained", allowed=("latent diffusion", "diffusion", "GAN")),
        "precision": Column("str", "of the step: fp32 (TF32 off) or bf16 (autocast)", allowed=("fp32", "bf16")),
        "parameters": Column("int64", "weights of the network that is trained"),
        "resolution": Column("str", "of the image or volume"),
        "ipc_geometric": Column("float64", "geometric mean of the launches' IPC, weighted by time", "inst/cycle"),
        "ipc_total": Column("float64", "all instructions of the step by all its active SM cycles", "inst/cycle"),
        "step_ms": Column("float64", "time of all launches of a training step, batch 1", "ms"),
        "launches": Column("int64", "launches, fills and copies of the step"),
        "matched": Column("float64", "share of the time whose launches have counters"),
        "training_gpu_hours": Column("float64", "published cost of its training, hours times GPUs", "h", nullable=True),
        "training_hardware": Column("str", "the GPU that cost is counted on", nullable=True),
        "source": Column("str", "who states the cost, or why there is none"),
        "configuration": Column("str", "where the network's configuration is published"),
    }
)
BENCH = Schema(
    {
        "network": Column("str", "whose row it is, as `medddpm.study.bench_networks` names it"),
        "setting": Column("str", "how it runs, as `medddpm.study.bench_rungs` names it"),
        "measure": Column(
            "str",
            "a training step (forward, loss, backward, Adam), a forward pass without gradients, or a whole volume",
            allowed=("step", "forward", "sample"),
        ),
        "sampler": Column("str", "of a sample: ddpm, ddim or dpm++", nullable=True),
        "steps": Column("int64", "network evaluations of a sample; otherwise 1"),
        "batch": Column("int64", "volumes at once"),
        "size": Column("str", "D×H×W of a volume, as 128x128x128"),
        "median_ms": Column("float64", "time", unit="ms"),
        "p10_ms": Column("float64", "tenth percentile of the samples", unit="ms"),
        "p90_ms": Column("float64", "ninetieth percentile of the samples", unit="ms"),
        "samples": Column("int64", "how often it was timed"),
        "peak_gib": Column(
            "float64",
            "the most that tensors held at once (torch.cuda.max_memory_allocated), a graph's capture included",
            unit="GiB",
            nullable=True,
        ),
        "tflops": Column(
            "float64", "FLOPs of the network as it is written, by the median", unit="TFLOP/s", nullable=True
        ),
        "gbps": Column("float64", "bytes read from and written to DRAM, by the median", unit="GB/s", nullable=True),
        "rel_error_output": Column(
            "float64", "norm of the output's difference from BASE's, by the norm of BASE's", nullable=True
        ),
        "rel_error_grad": Column("float64", "the same of the gradient of all parameters together", nullable=True),
    }
)
CEILINGS = Schema(
    {
        "ceiling": Column(
            "str",
            "a copy, bytes read and written counted; or a product of random square matrices",
            allowed=("copy", "fp32", "tf32", "bf16"),
        ),
        "value": Column("float64", "the rate at the median"),
        "unit": Column("str", "of the value", allowed=("GB/s", "TFLOP/s")),
        "median_ms": Column("float64", "time", unit="ms"),
        "p10_ms": Column("float64", "tenth percentile of the samples", unit="ms"),
        "p90_ms": Column("float64", "ninetieth percentile of the samples", unit="ms"),
        "samples": Column("int64", "how often it was timed"),
        "size": Column("int64", "bytes that are copied, or rows of a matrix"),
    }
)

QUALITY = Schema(
    {
        "plan": Column("str", "why it was trained, as `medddpm.study.parity_plan` names it"),
        "run": Column("str", "the run's key"),
        "setting": Column("str", "it was trained and sampled under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "contrast": Column("str", "of the phantom: t1, t2 or flair; or brats, the four-modality model"),
        "size": Column("str", "H×W×D of a volume, as 64x64x64"),
        "width": Column("int64", "base channels of the network"),
        "seed": Column("int64", "of weights, order, timesteps and noise of the training"),
        "step": Column("int64", "optimizer steps trained; 0 where a given model was judged"),
        "sampler": Column("str", "ddpm, ddim, dpm++ or sde-dpm++; none where nothing was sampled", nullable=True),
        "sampler_steps": Column("int64", "network evaluations of a sample; 0 where nothing was sampled"),
        "metric": Column(
            "str",
            "of `medddpm.quality.METRICS`; held_out_loss, of fixed timesteps and noise; seconds_a_volume (s, tenth and "
            "ninetieth percentile); ms_a_step (ms, data and all); brightness_kept, of `parity_judge`; NAME_mirrored: "
            "for the mask turned over",
        ),
        "channel": Column("str", "of the image; all where it is not one's"),
        "tissue": Column("str", "of the mask; all where it is not one's"),
        "value": Column("float64", "in the metric's unit"),
        "low": Column("float64", "lower end of its 95% interval over subjects", nullable=True),
        "high": Column("float64", "upper end", nullable=True),
        "n": Column("int64", "volumes (of seconds_a_volume batches, of ms_a_step steps)"),
    }
)
LOSS = Schema(
    {
        **{name: QUALITY.columns[name] for name in ("plan", "run", "setting", "contrast", "size", "width", "seed")},
        "part": Column(
            "str",
            "training: mean of a window's steps; held-out: subjects never trained on, at fixed timesteps and noise",
            allowed=("training", "held-out"),
        ),
        "step": Column("int64", "optimizer steps done; of a window its last"),
        "steps": Column("int64", "of the window; 1 of a held-out loss"),
        "loss": Column("float64", "mean absolute error of the predicted noise"),
    }
)


def _counter(meaning: str, unit: str = "") -> Column:
    """A value that ncu may not have measured: on another card, or of a launch that it did not see."""
    return Column("float64", meaning, unit, nullable=True)


_CLASSES = ("floating-point", "integer", "load/store", "movement", "predicate", "uniform-datapath", "control",
            "conversion", "miscellaneous")  # fmt: skip
KERNELS = Schema(
    {
        "config": Column("str", "the setting it ran under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "view": Column("str", "a stretch of launches, or a whole step's distinct ones", allowed=("window", "step")),
        "launch_index": Column("int64", "ncu's launch number; with a trace, the first place in the step"),
        "kernel": Column("str", "name"),
        "family": Column("str", "the kernel's family, as medddpm.study.families has it"),
        "grid": Column("str", "blocks, (x, y, z); none of a fill or copy", nullable=True),
        "block": Column("str", "threads a block, (x, y, z); none of a fill or copy", nullable=True),
        "count": Column("int64", "how often it is launched in the view"),
        "duration_ns": Column("float64", "time of one launch: ncu's, or with a trace its mean there", unit="ns"),
        "cycles_active": _counter("cycles in which an SM had a warp, summed over SMs, of one launch", "cycle"),
        "instructions": _counter("warp instructions executed by one launch", "inst"),
        "ipc": _counter("instructions by active cycles of an SM", "inst/cycle"),
        **{
            f"inst_{short}": _counter(f"{name} instructions of one launch", "inst")
            for short, name in zip(
                ("fp", "int", "ldst", "move", "pred", "uniform", "control", "conv", "misc"), _CLASSES, strict=True
            )
        },
        "tensor_pct": _counter("Tensor Core pipe, active share of active cycles", "%"),
        "fma_pct": _counter("FP32 (FMA) pipe, active share of active cycles", "%"),
        "alu_pct": _counter("integer and logic (ALU) pipe, active share of active cycles", "%"),
        "sm_throughput_pct": _counter("SM throughput of its peak", "%"),
        "l1_hit_pct": _counter("L1 hit rate by sectors", "%"),
        "l2_hit_pct": _counter("L2 hit rate by sectors", "%"),
        "dram_pct": _counter("DRAM bandwidth of its peak", "%"),
        "warps_per_cycle": _counter("warps resident on an active SM", "warp/cycle"),
        "stall_long_scoreboard": _counter("warp cycles waiting for global or local memory", "warp"),
        "stall_math_pipe": _counter("warp cycles waiting for a busy pipe", "warp"),
        "stall_branch": _counter("warp cycles waiting for a branch target", "warp"),
        "est_speedup_pct": _counter("share of the launch's time that ncu's rules call avoidable (Equation 2)", "%"),
        "priority": _counter("count times duration times estimated speedup (Equation 1)", "ns"),
    }
)


def write(table: pd.DataFrame, path: str | os.PathLike[str], schema: Schema, meta: Mapping[str, Any]) -> Path:
    """Writes `table` and, beside it, NAME.meta.json; returns the path written.

    Args:
        table: one row an observation; its columns are the schema's, in any order.
        path: NAME.csv; a table of more than `GZIP_ABOVE` bytes goes to NAME.csv.gz instead.
        schema: what the table must look like.
        meta: where the rows come from, as `machine_meta()` or a citation; joined by the columns and the row count.

    Raises:
        BadInput: the table does not fit the schema, or cannot be written.
    """
    plain, zipped = _both_paths(path)
    table = _checked(table, schema, plain)
    text, compressed = _as_csv(table)
    target, other, data = (plain, zipped, text) if len(text) <= GZIP_ABOVE else (zipped, plain, compressed)
    with replacing(target) as temporary:
        temporary.write_bytes(data)
    other.unlink(missing_ok=True)  # a table that grew or shrank past the limit must not be there twice
    described = {**meta, "rows": len(table), "columns": schema.described()}
    with replacing(meta_path(target)) as temporary:
        temporary.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


def read(path: str | os.PathLike[str], schema: Schema) -> pd.DataFrame:
    """The table at `path` (or at `path`.gz), its columns typed and in the schema's order.

    Raises:
        BadInput: the file is missing, broken, or does not fit the schema; names the column and the row.
    """
    plain, zipped = _both_paths(path)
    found = plain if plain.is_file() else zipped
    if not found.is_file():
        raise BadInput(plain, "there is no such table", "run the notebook that writes it (medddpm book), or restore it")
    try:
        data = found.read_bytes()
        text = (gzip.decompress(data) if found.suffix == ".gz" else data).decode()
        raw = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except (EOFError, OSError, ValueError, zlib.error) as error:  # pandas' parser errors are ValueErrors
        raise BadInput(found, f"is not a readable table ({error})", _RESTORE) from None
    _same_columns(raw, schema, found)
    return pd.DataFrame({n: _parsed(raw[n], c, n, found) for n, c in schema.columns.items()})


def write_gzipped(text: bytes, path: Path) -> None:
    """Writes `text` compressed; the same text is the same file."""
    with replacing(path) as temporary, temporary.open("wb") as file, _gzip(file) as stream:
        stream.write(text)


def meta_path(path: str | os.PathLike[str]) -> Path:
    """Where the description of the table at `path` stands: NAME.meta.json."""
    plain, _ = _both_paths(path)
    return plain.with_suffix(".meta.json")


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """How the table at `path` was measured: the contents of its NAME.meta.json.

    Raises:
        BadInput: the file is missing or is not JSON.
    """
    beside = meta_path(path)
    try:
        meta = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        meta = None
    if not isinstance(meta, dict):
        raise BadInput(beside, "the table's description is missing or unreadable", _RESTORE)
    return meta


def gpu_folders(root: str | os.PathLike[str]) -> list[Path]:
    """The machines' folders under figures/records of the repository at `root`: `GPU_ORDER`, others by name, "cpu"."""
    folders = [p for p in (Path(root) / "figures" / "records").glob("*") if p.is_dir() and p.name != "paper"]
    known = {name: place for place, name in enumerate(GPU_ORDER)}
    return sorted(folders, key=lambda p: (p.name == "cpu", known.get(p.name, len(known)), p.name))


def of_every_machine(root: Path, name: str, schema: Schema, notebook: str) -> dict[str, pd.DataFrame]:
    """Every machine's table of that name in the repository at `root`, by its folder's name.

    Args:
        root: of the repository.
        name: NAME.csv.
        schema: the table's.
        notebook: the number of the one that measures it.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    paths = [folder / name for folder in gpu_folders(root)]
    found = {path.parent.name: read(path, schema) for path in paths if path.is_file()}
    if not found:
        remedy = f"restore it (git checkout), or measure on a GPU: medddpm book --only {notebook} --measure"
        raise BadInput(root / "figures" / "records", f"no machine's folder has a {name}", remedy)
    return found


def gpu_folder_name(gpu: str) -> str:
    """The records folder of a card by the name its driver gives: "NVIDIA H100 80GB HBM3" is "H100"; "cpu" stays."""
    if gpu == "cpu":
        return gpu
    words = [w for w in re.split(r"[\s-]+", gpu) if w and w not in {"NVIDIA", "Tesla", "GeForce", "Quadro"}]
    if words and re.fullmatch(r"[A-Z]+\d+[A-Z]*", words[0]):
        return words[0]
    return "-".join(words) or "gpu"


def machine_meta(command: Sequence[str] | None = None) -> dict[str, Any]:
    """What a measurement made now must carry; a thing this machine lacks is None.

    Args:
        command: the command line that measures; by default this process's own. Folders are cut from it.
    """
    import torch

    cuda = torch.cuda.is_available()
    driver, sm_clock, memory_clock = (_nvidia_smi() if cuda else None) or (None, None, None)
    return {
        "gpu": torch.cuda.get_device_name() if cuda else "cpu",
        "processor": _processor(),
        "driver": driver,
        "clock_sm_mhz": sm_clock,
        "clock_memory_mhz": memory_clock,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ncu": _ncu_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_git_state(),
        "command": _without_folders(sys.argv if command is None else command),
    }


_RESTORE = "restore it (git checkout) or write it again with the notebook that makes it"


def _both_paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    plain = Path(str(path).removesuffix(".gz"))
    if plain.suffix != ".csv":
        raise BadInput(path, "a table's name ends in .csv or .csv.gz", "name it so")
    return plain, Path(f"{plain}.gz")


def _as_csv(table: pd.DataFrame) -> tuple[bytes, bytes]:
    """`table` as CSV in UTF-8, plain and compressed; a missing value is an empty field.

    By parts, of which one is compressed while the next is written, and with numbers as Python's own: pandas would turn
    them into NumPy's text first, which takes a third longer.
    """
    plain, compressed = io.BytesIO(), io.BytesIO()
    with _gzip(compressed) as stream, ThreadPoolExecutor(1) as beside:
        pending = []
        for first in range(0, max(len(table), 1), 10_000):
            part = table.iloc[first : first + 10_000].astype(object)
            text = part.to_csv(index=False, header=first == 0, lineterminator="\n").encode()
            plain.write(text)
            pending.append(beside.submit(stream.write, text))
        for part_done in pending:
            part_done.result()
    return plain.getvalue(), compressed.getvalue()


def _gzip(file: BinaryIO) -> gzip.GzipFile:
    """Compresses into `file` without a name or a time, at level 1: level 9 takes six times as long, saves a tenth."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)


def _same_columns(table: pd.DataFrame, schema: Schema, path: Path) -> None:
    for what, names in (
        ("lacks", [n for n in schema.columns if n not in table.columns]),
        ("has unknown", [str(n) for n in table.columns if n not in schema.columns]),
    ):
        if names:
            raise BadInput(path, f"{what} column{'s' * (len(names) > 1)} {', '.join(names)}", _RESTORE)
    if table.columns.has_duplicates:
        raise BadInput(path, "has a column twice", _RESTORE)


def _checked(table: pd.DataFrame, schema: Schema, path: Path) -> pd.DataFrame:
    """`table` in the schema's order and types, if it fits."""
    _same_columns(table, schema, path)
    return pd.DataFrame({n: _fits(table[n], c, n, path) for n, c in schema.columns.items()})


def _fits(values: pd.Series[Any], column: Column, name: str, path: Path) -> pd.Series[Any]:
    values = values.reset_index(drop=True)
    is_right = {
        "int64": pd.api.types.is_integer_dtype(values.dtype),
        "float64": pd.api.types.is_float_dtype(values.dtype) or pd.api.types.is_integer_dtype(values.dtype),
        "str": pd.api.types.infer_dtype(values.astype(object), skipna=True) in ("string", "empty"),
    }[column.dtype]
    if not is_right and not (column.nullable and values.isna().all()):
        raise BadInput(path, f"column {name} is {values.dtype}, not {column.dtype}", "give the column that type")
    _values_fit(values, column, name, path)
    return values.astype(pd.api.types.pandas_dtype("object" if column.dtype == "str" else column.dtype))


def _parsed(text: pd.Series[str], column: Column, name: str, path: Path) -> pd.Series[Any]:
    """The fields of a column as its type; an empty field is a missing value."""
    if column.dtype == "str":
        values: pd.Series[Any] = text.astype("object").where(text != "", None)
    else:
        convert = int if column.dtype == "int64" else float
        numbers: list[float] = []
        for row, field in enumerate(text):
            try:
                numbers.append(convert(field) if field else np.nan)
            except ValueError:
                raise BadInput(
                    path, f"row {row + 1} of column {name}: {field!r} is no {column.dtype}", _RESTORE
                ) from None
        values = pd.Series(numbers, dtype="float64" if np.nan in numbers else column.dtype)
    _values_fit(values, column, name, path)
    return values


def _values_fit(values: pd.Series[Any], column: Column, name: str, path: Path) -> None:
    missing = values.isna() | (values == "")
    wrong = missing & (not column.nullable)
    if column.dtype == "float64":
        wrong |= np.isinf(values.astype("float64"))
    if column.allowed:
        wrong |= ~missing & ~values.isin(column.allowed)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        wanted = {"str": "some text", "int64": "an integer", "float64": "a finite number"}[column.dtype]
        wanted = f"one of {', '.join(column.allowed)}" if column.allowed else wanted
        held = "nothing" if missing[row] else str(values[row])
        raise BadInput(path, f"row {row + 1} of column {name} holds {held} where {wanted} is wanted", _RESTORE)


def _output(*command: str) -> str | None:
    """What a program prints, or None where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _nvidia_smi() -> tuple[str, int, int] | None:
    """Driver, SM clock and memory clock (MHz, as they stand now) of the first card."""
    text = _output("nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader,nounits")
    try:
        driver, sm_clock, memory_clock = (text or "").splitlines()[0].split(", ")
        return driver, int(sm_clock), int(memory_clock)
    except (IndexError, ValueError):
        return None


def _ncu_version() -> str | None:
    found = re.search(r"Version ([\d.]+)", _output("ncu", "--version") or "")
    return found.group(1) if found else None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty or the bare architecture on Linux
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _git_state() -> dict[str, Any]:
    """The commit that measures, and whether files differ from it.

    A machine that gets the tree without its history is told the commit by MEDDDPM_COMMIT; it cannot know the rest.
    """
    if told := os.environ.get("MEDDDPM_COMMIT"):
        return {"commit": told, "dirty": None}
    here = str(Path(__file__).parent)
    commit = _output("git", "-C", here, "rev-parse", "HEAD")
    changes = _output("git", "-C", here, "status", "--porcelain") if commit else None
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None}


def _without_folders(command: Sequence[str]) -> str:
    """`command` as one line, every absolute path cut to its last part; a notebook's kernel is named as such."""
    if command and "ipykernel" in command[0]:
        return "a notebook's kernel"  # its arguments name a connection file that is gone by the time it is read
    # `python -m medddpm` is the command medddpm, and its file's name says nothing.
    named = re.sub(r"\w+/__main__\.py$", lambda m: Path(m[0]).parent.name, command[0]) if command else ""
    words = [named, *command[1:]]
    return " ".join(re.sub(r"(^|=)(/[^=]*)", lambda m: m[1] + Path(m[2]).name, word) for word in words)
