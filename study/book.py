"""Runs the book's notebooks in chain order with papermill, from the first one that is stale or failed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput, first_line
from medddpm.measure.lease import LeftForLater, time_left
from medddpm.runtime.files import LARGEST_JSON, named_failures, opened, read_json, read_whole, replacing, write_json

GRACE = 60.0  # s that a cell may go on once a lent machine's time is over: what it measured is being written
LAST = ("00_", "24_")  # the essay and the audit read what the others measure
ENVIRONMENT = {
    "SOURCE_DATE_EPOCH": "0",
    "PYTHONHASHSEED": "0",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave their core to others
}
MEASURED = "measured"  # in the state, beside the notebooks' names
# The committed notebooks name ipykernel without the version of Python that ran it, which differs between machines.
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE: dict[str, Any] = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": "3",
}


@dataclass(frozen=True)
class Notebook:
    """A committed notebook.

    Args:
        path: notebooks/NAME.ipynb.
        title: its first heading.
        cells: number of code cells.
        source: digest of every cell's text and tags and of its declarations.
        inputs: globs of the files it reads, relative to the repository.
        outputs: globs of the files it writes, likewise. Its metadata declares both under "medddpm".
        parameters: names assigned in its cell tagged `parameters`.
    """

    path: Path
    title: str
    cells: int
    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: frozenset[str]

    @property
    def name(self) -> str:
        """The file's name without its suffix: 05_fig03_architecture."""
        return self.path.stem

    @property
    def measures(self) -> bool:
        """True if it can measure anew what it shows."""
        return "measure" in self.parameters


def run_book(
    root: Path,
    only: str | None = None,
    start: str | None = None,
    measure: bool = False,
    force: bool = False,
    refresh: bool = False,
) -> int:
    """Runs stale notebooks and those that depend on them; executed copies go to runs/book/NAME.ipynb.

    A notebook is fresh while its text, its parameters, the package's code and the contents of its inputs are what
    they were at its last successful run, and its outputs are unchanged since.

    Args:
        root: the repository.
        only: a notebook's number or name: run this one, fresh or not, and no other.
        start: a notebook's number or name: run from this one to the end of the chain, fresh or not.
        measure: hand `measure=True` to every notebook that has that parameter.
        force: run everything, fresh or not.
        refresh: copy each executed notebook back to notebooks/, without the parts that change from run to run.

    Returns:
        0. A failing cell ends the run; the next call resumes at its notebook.

    Raises:
        BadInput: a cell failed, a declared output was not written, or no notebook answers to `only` or `start`.
    """
    root = root.resolve()
    if refresh and measure:
        raise BadInput("--refresh", "committed notebooks hold their default parameters", "leave out --measure")
    chain = chosen(root, only, start, measure)
    forced = {n.name for n in chain} if force or only is not None or start is not None else set()
    book = Book(root, measure, refresh)
    for place, notebook in enumerate(chain, 1):
        book.bring_up_to_date(notebook, notebook.name in forced, f"[{place}/{len(chain)}]")
    return 0


def chosen(root: Path, only: str | None, start: str | None, measure: bool) -> list[Notebook]:
    """Returns the notebooks that are named: one by `only`, one and all behind it by `start`, or else every one.

    Raises:
        BadInput: both are given, one names no notebook, or the only one is to measure and cannot.
    """
    if only is not None and start is not None:
        raise BadInput("--only", "cannot be combined with --from", "give one of the two")
    chain = read_chain(root)
    if start is not None:
        return chain[chain.index(_named(chain, start, "--from")) :]
    if only is None:
        return chain
    notebook = _named(chain, only, "--only")
    if measure and not notebook.measures:
        raise BadInput("--measure", f"{notebook.name} measures nothing", "leave it out")
    return [notebook]


def find_root(start: Path | None = None) -> Path:
    """Returns the repository: the nearest folder upward from `start` (by default here) or from this package.

    Raises:
        BadInput: there is none.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if (folder / "notebooks").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise BadInput(here, "is not inside the book's repository", "clone it, change into it and run the command there")


def read_chain(root: Path) -> list[Notebook]:
    """Reads the numbered notebooks of the repository at `root` in the order they run: by number, 00 and 24 last.

    Raises:
        BadInput: there is none, or one is not a notebook.
    """
    paths = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"), key=lambda p: (p.name.startswith(LAST), p.name))
    if not paths:
        raise BadInput(root / "notebooks", "holds no numbered notebook", "restore them (git checkout)")
    return [_read_notebook(p) for p in paths]


class Book:
    """The state of one run: the results of earlier runs, and the files that this one has written.

    Args:
        root: the repository.
        measure: hand `measure=True` to every notebook that has that parameter.
        refresh: copy each executed notebook back to notebooks/.
    """

    def __init__(self, root: Path, measure: bool, refresh: bool) -> None:
        self.root, self.measure, self.refresh = root, measure, refresh
        self.folder = root / "runs" / "book"
        self.code = _digest(root, _files(root, ("medddpm/**/*.py", "study/**/*.py")))
        self.state = self._load()
        self.written: set[Path] = set()

    def bring_up_to_date(self, notebook: Notebook, forced: bool, place: str) -> None:
        """Runs a notebook that is stale or `forced`; `place` stands before its name in the line that is printed."""
        parameters = {"measure": True} if self.measure and notebook.measures else {}
        outputs = _files(self.root, notebook.outputs)
        inputs = _files(self.root, notebook.inputs) - outputs
        parts = (notebook.source, json.dumps(parameters), self.code, _digest(self.root, inputs))
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        if not forced and not inputs & self.written and self._is_fresh(notebook, digest):
            print(f"{place} {notebook.name}: fresh", flush=True)
        else:
            self._run(notebook, parameters, digest, place)
        if self.refresh:
            _refresh(self.folder / notebook.path.name, notebook.path)

    def has_measured(self, notebook: Notebook, card: str) -> bool:
        """Returns whether a notebook, as it is now, has measured all of its subject on this kind of card."""
        return bool(self.state.get(MEASURED, {}).get(notebook.name) == self._mark(notebook, card))

    def mark_measured(self, notebook: Notebook, card: str) -> None:
        """Notes that it has."""
        self.state.setdefault(MEASURED, {})[notebook.name] = self._mark(notebook, card)
        self._save()

    def _mark(self, notebook: Notebook, card: str) -> str:
        return hashlib.sha256("\n".join((notebook.source, self.code, card)).encode()).hexdigest()

    def _is_fresh(self, notebook: Notebook, digest: str) -> bool:
        before = self.state.get(notebook.name, {})
        executed = (self.folder / notebook.path.name).is_file()
        return executed and before.get("digest") == digest and before.get("outputs") == self._outputs(notebook)

    def _run(self, notebook: Notebook, parameters: Mapping[str, Any], digest: str, place: str) -> None:
        if self.state.pop(notebook.name, None):
            self._save()  # killed from here on, it is not fresh
        began = time.monotonic()
        _execute(notebook, self.folder / notebook.path.name, parameters, place)
        outputs = self._outputs(notebook)
        for pattern in notebook.outputs:
            if not _files(self.root, (pattern,)):
                raise BadInput(notebook.path, f"ran but left no {pattern}", "write that file or mend what it declares")
        self.written |= {self.root / name for name in outputs}
        self.state[notebook.name] = {"digest": digest, "outputs": outputs}
        self._save()
        print(f"{place} {notebook.name}: {notebook.cells} cells in {time.monotonic() - began:.1f} s", flush=True)

    def _outputs(self, notebook: Notebook) -> dict[str, str]:
        files = sorted(_files(self.root, notebook.outputs))
        return {p.relative_to(self.root).as_posix(): _digest(self.root, {p}) for p in files}

    def _load(self) -> dict[str, Any]:
        try:
            state = read_json(self.folder / "state.json", "remove it")
        except BadInput:
            return {}  # nothing known is nothing fresh
        return {name: run for name, run in state.items() if isinstance(run, dict)}

    def _save(self) -> None:
        write_json(self.folder / "state.json", self.state, indent=1)


def _read_notebook(path: Path) -> Notebook:
    import nbformat

    try:
        nb = nbformat.reads(read_whole(path, LARGEST_JSON, "restore it (git checkout)").decode(), as_version=4)
    except BadInput:
        raise
    except Exception as error:  # nbformat raises a dozen kinds: JSON, schema, version
        problem = first_line(error)
        raise BadInput(path, f"is not a notebook ({problem})", "restore it (git checkout)") from None
    declared = _declared(nb.metadata.get("medddpm", {}), path)
    tags = [cell.metadata.get("tags", []) for cell in nb.cells]
    content = [(cell.cell_type, cell.source, of_cell) for cell, of_cell in zip(nb.cells, tags, strict=True)]
    literals = "\n".join(cell.source for cell, of_cell in zip(nb.cells, tags, strict=True) if "parameters" in of_cell)
    inputs, outputs = declared["inputs"], declared["outputs"]
    return Notebook(
        path=path,
        title=next((cell.source.splitlines()[0].lstrip("# ") for cell in nb.cells if cell.source.startswith("#")), ""),
        cells=sum(cell.cell_type == "code" for cell in nb.cells),
        source=hashlib.sha256(json.dumps([content, inputs, outputs]).encode()).hexdigest(),
        inputs=inputs,
        outputs=outputs,
        parameters=frozenset(re.findall(r"^(\w+)\s*(?::[^=]+)?=", literals, re.MULTILINE)),
    )


def _declared(metadata: object, path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the patterns of files that the notebook at `path` declares as inputs and outputs."""
    declared = {}
    for name in ("inputs", "outputs"):
        patterns = metadata.get(name, []) if isinstance(metadata, dict) else metadata
        try:
            if not isinstance(patterns, list):
                raise TypeError
            for pattern in patterns:
                if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
                    raise ValueError
                next(path.parent.glob(pattern), None)  # raises for what is no pattern
        except (TypeError, ValueError):
            raise BadInput(path, f"declares {name} {patterns!r}", "name files relative to the repository") from None
        declared[name] = tuple(patterns)
    return declared


def _named(chain: list[Notebook], name: str, option: str) -> Notebook:
    """Returns the one notebook whose name begins with `name`, which may also be its file's path."""
    stem = Path(name).name.removesuffix(".ipynb")
    matches = [n for n in chain if n.name == stem] or [n for n in chain if stem and n.name.startswith(stem)]
    if len(matches) != 1:
        problem = f"{name!r} names {len(matches)} notebooks"
        raise BadInput(option, problem, f"give one of {', '.join(sorted(n.name for n in chain))}")
    return matches[0]


def _execute(notebook: Notebook, copy: Path, parameters: Mapping[str, Any], place: str) -> None:
    """Runs `notebook` in its folder, as nbval does, and writes the executed copy, also of a notebook that failed."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from papermill.exceptions import PapermillExecutionError

    with named_failures(copy.parent):
        copy.parent.mkdir(parents=True, exist_ok=True)
    left = time_left()
    bar = {"desc": f"{place} {notebook.name}", "leave": False} if sys.stderr.isatty() else False
    try:
        with _environment():
            papermill.execute_notebook(
                _escape_braces(notebook.path),
                _escape_braces(copy),
                dict(parameters) or None,
                kernel_name="python3",
                progress_bar=bar,
                cwd=notebook.path.parent,
                execution_timeout=None if math.isinf(left) else int(left + GRACE),
                # The kernel would warn that localhost is not encrypted, and call the interrupt before its end an error.
                extra_arguments=["--log-level=CRITICAL"],
            )
        return
    except PapermillExecutionError as error:
        why = next(iter((error.evalue or "").strip().splitlines()), "")
        if error.ename == LeftForLater.__name__:
            raise LeftForLater(notebook.path, why.removesuffix(f"; {LeftForLater.REMEDY}")) from None
        problem = f"cell [{error.exec_count}] failed: {error.ename}: {why}"
    except (NoSuchKernel, RuntimeError, TimeoutError) as error:
        if isinstance(error, TimeoutError) and not time_left():
            raise LeftForLater(notebook.path, "its time was over while it measured") from None
        problem = f"its kernel failed: {first_line(error)}"
    executed = f"{copy.parent.parent.name}/{copy.parent.name}/{copy.name}"
    raise BadInput(notebook.path, problem, f"open {executed}, mend the cause and run the same command: it resumes here")


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Lets kernels inherit `ENVIRONMENT`, and no plotting backend but the notebook's."""
    before = {name: os.environ.get(name) for name in (*ENVIRONMENT, "MPLBACKEND")}
    os.environ.update(ENVIRONMENT)
    os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _escape_braces(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats the paths it is given


def _refresh(executed: Path, committed: Path) -> None:
    """Replaces the committed notebook by the executed copy, without the parts that differ from run to run."""
    import nbformat

    nb = nbformat.read(executed, as_version=4)
    nb.metadata.pop("papermill", None)
    nb.metadata |= {"kernelspec": KERNEL, "language_info": LANGUAGE}
    for cell in nb.cells:
        for volatile in ("papermill", "execution"):
            cell.metadata.pop(volatile, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]  # papermill gives every cell an empty list
    with replacing(committed) as temporary:
        temporary.write_text(nbformat.writes(nb) + "\n", encoding="utf-8")


def _files(root: Path, patterns: tuple[str, ...]) -> set[Path]:
    paths = (path for pattern in patterns for path in root.glob(pattern))
    return {p for p in paths if p.is_file() and not p.name.startswith(".")}


def _digest(root: Path, files: set[Path]) -> str:
    """Returns one digest of the names, relative to `root`, and the contents of `files`."""
    total = hashlib.sha256()
    for path in sorted(files):
        with opened(path) as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()
