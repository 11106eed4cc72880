"""Reads and writes the tables behind every figure: tidy CSV with a schema, and a description beside each."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.schemas import Column, Schema
from medddpm.runtime.files import check_output, gzipping, opened, read_json, read_whole, replacing, write_json

GZIP_ABOVE = 1_000_000  # bytes of text
LARGEST = 2**26  # bytes of text that are read: a step of 160 000 launches, with the names that PyTorch's kernels have
MOST_FIELDS = 2**23  # commas and lines of it, which take more memory than text does
GPU_ORDER = ("V100", "A100", "H100", "H200")  # the paper's cards by age, then ours; others follow by name


def write_table(table: pd.DataFrame, path: str | os.PathLike[str], schema: Schema, meta: Mapping[str, Any]) -> Path:
    """Writes `table` and, beside it, NAME.meta.json; returns the path written.

    Args:
        table: one row per observation; the schema's columns, in any order. A `later` column may be absent.
        path: NAME.csv; a table of more than `GZIP_ABOVE` bytes goes to NAME.csv.gz instead.
        schema: of the table.
        meta: the rows' source, as `machine_meta()` or a citation; the columns and the row count are added.

    Raises:
        BadInput: the table does not fit the schema, or cannot be written.
    """
    plain, zipped = both_paths(path)
    schema = Schema({n: column for n, column in schema.columns.items() if not column.later or n in table.columns})
    table = _checked(table, schema, plain)
    text, compressed = _as_csv(table)
    target, other, data = (plain, zipped, text) if len(text) <= GZIP_ABOVE else (zipped, plain, compressed)
    # The description first: a kill in between must not leave a table without one, which no later call would replace.
    write_meta({**meta, "rows": len(table), "columns": schema.described()}, target)
    with replacing(target) as temporary:
        temporary.write_bytes(data)
    other.unlink(missing_ok=True)  # a table that grew or shrank past the limit must not be there twice
    return target


def write_meta(meta: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the description of the table at `path` beside it."""
    write_json(meta_path(path), meta, indent=2, ensure_ascii=False)


def read_table(path: str | os.PathLike[str], schema: Schema) -> pd.DataFrame:
    """Reads the table at `path` (or at `path`.gz), its columns typed and in the schema's order.

    Raises:
        BadInput: the file is missing, broken, or does not fit the schema; names the column and the row.
    """
    file = table_file(path)
    if not file.is_file():
        raise BadInput(
            both_paths(path)[0],
            "there is no such table",
            "run the notebook that writes it (python -m study book), or restore it",
        )
    try:
        text = _text(file)
        if text.count(b",") + text.count(b"\n") > MOST_FIELDS:
            raise BadInput(file, f"it has more than the {MOST_FIELDS} fields that a table has at most", _RESTORE)
        raw = pd.read_csv(io.BytesIO(text), dtype=str, keep_default_na=False, encoding="utf-8")
    except BadInput:  # a ValueError too
        raise
    except (EOFError, OSError, ValueError, zlib.error) as error:  # pandas' parser errors are ValueErrors
        raise BadInput(file, f"is not a readable table ({error})", _RESTORE) from None
    if not isinstance(raw.index, pd.RangeIndex):  # pandas takes what is too much for row names
        raise BadInput(file, "a row has more fields than there are columns", _RESTORE)
    for name in (n for n, column in schema.columns.items() if column.later and n not in raw.columns):
        raw[name] = ""
    _same_columns(raw, schema, file)
    return pd.DataFrame({n: _parsed(raw[n], c, n, file) for n, c in schema.columns.items()})


def _text(path: Path) -> bytes:
    if path.suffix != ".gz":
        return read_whole(path, LARGEST, _RESTORE)
    with opened(path) as stream, gzip.GzipFile(fileobj=stream) as unpacked:
        text = unpacked.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise BadInput(path, f"it unpacks to more than the {LARGEST} bytes that a table has at most", _RESTORE)
    return text


def meta_path(path: str | os.PathLike[str]) -> Path:
    """Returns the file that describes the table at `path`: NAME.meta.json."""
    plain, _ = both_paths(path)
    return plain.with_suffix(".meta.json")


def has_description(path: str | os.PathLike[str]) -> bool:
    """Returns whether the description of the table at `path` lies beside it: then this package wrote both."""
    try:
        return not {"columns", "measurement"}.isdisjoint(read_meta(path))  # of `write_table`, of `medddpm profile`
    except BadInput:
        return False


def check_table(path: str | os.PathLike[str], force: bool = True) -> None:
    """Checks, before long work, that a table and its description may be written to `path`, plain or compressed.

    Args:
        path: NAME.csv or NAME.csv.gz.
        force: replaces a table that this package wrote; another file is never replaced.

    Raises:
        BadInput: a file stands there that may not be replaced, or the table cannot be written.
    """
    for target in both_paths(path):  # writing one removes the other
        check_output(target, ours=has_description, force=force)
    check_output(meta_path(path), ours=lambda _path: has_description(path), force=True)


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the description of the table at `path`, its NAME.meta.json.

    Raises:
        BadInput: the file is missing or is not JSON.
    """
    return read_json(meta_path(path), _RESTORE)


def gpu_folders(root: str | os.PathLike[str]) -> list[Path]:
    """Lists the machines' folders under figures/records of a repository: `GPU_ORDER`, others by name, "cpu" last."""
    folders = [p for p in (Path(root) / "figures" / "records").glob("*") if p.is_dir() and p.name != "paper"]
    known = {name: place for place, name in enumerate(GPU_ORDER)}
    return sorted(folders, key=lambda p: (p.name == "cpu", known.get(p.name, len(known)), p.name))


def of_every_machine(root: Path, name: str, schema: Schema, notebook: str) -> dict[str, pd.DataFrame]:
    """Reads every machine's table of that name in the repository at `root`, by its folder's name.

    Args:
        root: the repository's root.
        name: NAME.csv.
        schema: of each table.
        notebook: the number of the notebook that measures the table.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    tables = of_any_machine(root, name, schema)
    if not tables:
        remedy = f"restore it (git checkout), or measure on a GPU: python -m study book --only {notebook} --measure"
        raise BadInput(root / "figures" / "records", f"no machine's folder has a {name}", remedy)
    return tables


def of_any_machine(root: Path, name: str, schema: Schema) -> dict[str, pd.DataFrame]:
    """Reads every machine's table of that name in the repository at `root`, by its folder's name; maybe none.

    Raises:
        BadInput: one does not fit its schema.
    """
    paths = [table_file(folder / name) for folder in gpu_folders(root)]
    return {path.parent.name: read_table(path, schema) for path in paths if path.is_file()}


def table_of(rows: Sequence[Mapping[str, Any]], schema: Schema) -> pd.DataFrame:
    """Makes a table of `rows`, its columns of the schema's types even if there is no row."""
    kinds = {name: column.dtype for name, column in schema.columns.items() if column.dtype != "str"}
    return pd.DataFrame(rows, columns=list(schema.columns)).astype(kinds)


_RESTORE = "restore it (git checkout) or write it again with the notebook that makes it"


def both_paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Returns the two files that may hold the table at `path`: plain, and compressed."""
    plain = Path(str(path).removesuffix(".gz"))
    if plain.suffix != ".csv":
        raise BadInput(path, "a table's name ends in .csv or .csv.gz", "name it so")
    return plain, Path(f"{plain}.gz")


def table_file(path: str | os.PathLike[str]) -> Path:
    """Returns the file of the table at `path`: the plain one if it exists, or else the compressed one."""
    plain, zipped = both_paths(path)
    return plain if plain.is_file() else zipped


def _as_csv(table: pd.DataFrame) -> tuple[bytes, bytes]:
    """Writes `table` as CSV in UTF-8, plain and compressed; a missing value is an empty field.

    One part is compressed while the next is written. Numbers are written as Python's own: pandas would convert them to
    NumPy's text first, which takes a third longer.
    """
    plain, compressed = io.BytesIO(), io.BytesIO()
    with gzipping(compressed) as stream, ThreadPoolExecutor(1) as beside:
        pending = []
        for first in range(0, max(len(table), 1), 10_000):
            part = table.iloc[first : first + 10_000].astype(object)
            text = part.to_csv(index=False, header=first == 0, lineterminator="\n").encode()
            plain.write(text)
            pending.append(beside.submit(stream.write, text))
        for part_done in pending:
            part_done.result()
    return plain.getvalue(), compressed.getvalue()


def _same_columns(table: pd.DataFrame, schema: Schema, path: Path) -> None:
    lacking = [n for n in schema.columns if n not in table.columns]
    unknown = [str(n) for n in table.columns if n not in schema.columns]
    for fault, names in (("lacks", lacking), ("has unknown", unknown)):
        if names:
            raise BadInput(path, f"{fault} column{'s' * (len(names) > 1)} {', '.join(names)}", _RESTORE)
    if table.columns.has_duplicates:
        raise BadInput(path, "has a column twice", _RESTORE)


def _checked(table: pd.DataFrame, schema: Schema, path: Path) -> pd.DataFrame:
    """Returns `table` in the schema's order and types, if it fits."""
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
    """Parses the fields of a column by its type; an empty field is a missing value."""
    if column.dtype == "str":
        values: pd.Series[Any] = pd.Series([field or None for field in text.tolist()], dtype="object")
    else:
        convert = _int64 if column.dtype == "int64" else float
        numbers: list[float] = []
        for row, field in enumerate(text.tolist()):
            try:
                numbers.append(convert(field) if field else np.nan)
            except ValueError:
                fault = f"row {row + 1} of column {name}: {field!r} is no {column.dtype}"
                raise BadInput(path, fault, _RESTORE) from None
        values = pd.Series(numbers, dtype="float64" if np.nan in numbers else column.dtype)
    _values_fit(values, column, name, path)
    return values


def _int64(field: str) -> int:
    number = int(field)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number


def _values_fit(values: pd.Series[Any], column: Column, name: str, path: Path) -> None:
    # On arrays: a record has forty short columns, and each operation on a Series costs a tenth of a millisecond.
    if column.dtype == "str":
        texts = values.to_numpy(object)
        missing = pd.isna(texts) | (texts == "")
        wrong = np.zeros_like(missing)
    else:
        numbers, (least, most) = values.to_numpy("float64"), column.within
        missing = np.isnan(numbers)
        wrong = np.isinf(numbers) | (~missing & ~((least <= numbers) & (numbers <= most)))
    if not column.nullable:
        wrong |= missing
    if column.allowed:
        wrong |= ~missing & ~values.isin(column.allowed).to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = "nothing" if missing[row] else str(values[row])
        raise BadInput(
            path, f"row {row + 1} of column {name} holds {value} where {column.requirement} is wanted", _RESTORE
        )
