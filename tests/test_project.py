from __future__ import annotations

import ast
import fnmatch
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import FunctionType, ModuleType

import nbformat
import pytest
import yaml
from helpers.repository import ROOT
from nbformat import NotebookNode
from nbval.plugin import find_comment_markers, find_metadata_tags
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt|usr|var)/[\w.]")
LARGEST = 16 * 2**20

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED_FOR = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
DIRECT = [r for group in ASKED_FOR for r in map(Requirement, group) if r.name != PROJECT["name"]]  # [book] has [train]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def lock_lines() -> list[str]:
    return [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]


def pins(lines: list[str]) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def conda_pip_lines() -> list[str]:
    return next(d["pip"] for d in ENVIRONMENT["dependencies"] if isinstance(d, dict))


def test_lock_pins_one_version_of_everything() -> None:
    odd = [line for line in lock_lines() if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)]
    assert odd == []
    assert [n for n, count in Counter(pins([line]).popitem()[0] for line in lock_lines()).items() if count > 1] == []
    assert pins(lock_lines())["torch"] == "2.13.0"


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda r: r.name)
def test_each_dependency_is_locked_in_its_range_and_the_same_for_conda(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    locked = pins(lock_lines())[name]
    assert requirement.specifier, f"{name} has no lower bound"
    assert Version(locked) in requirement.specifier
    assert pins([line for line in conda_pip_lines() if not line.startswith("--")])[name] == locked


def test_conda_installs_nothing_else() -> None:
    plain = [d for d in ENVIRONMENT["dependencies"] if isinstance(d, str)]
    python = next(d for d in plain if d.startswith("python="))
    assert Version(python.removeprefix("python=")) in SpecifierSet(PROJECT["requires-python"])
    assert set(plain) - {python} == {"pip", "make"}
    assert [line for line in conda_pip_lines() if line.startswith("--")] == [
        "--constraint requirements.lock",
        "--editable .",
    ]
    packages = pins([line for line in conda_pip_lines() if not line.startswith("--")])
    assert set(packages) == {canonicalize_name(r.name) for r in DIRECT}


def test_binder_installs_the_books_packages_at_the_same_versions() -> None:
    """A Binder has no GPU, so it takes PyTorch's build for the CPU; paths in the file are relative to its folder."""
    folder = ROOT / ".binder"
    environment = yaml.safe_load((folder / "environment.yml").read_text())
    python, pip, packages = environment["dependencies"]
    assert [python, pip] == ["python=3.12", "pip"]
    options = [line for line in packages["pip"] if line.startswith("-")]
    assert options[1:] == ["-c ../requirements.lock", "-e .."]
    pinned = pins([line for line in packages["pip"] if not line.startswith("-")])
    assert pinned.pop("torch") == f"{pins(lock_lines())['torch']}+cpu"
    extras = PROJECT["optional-dependencies"]
    asked = map(Requirement, [*PROJECT["dependencies"], *extras["train"], *extras["book"]])
    names = {canonicalize_name(r.name) for r in asked} - {PROJECT["name"], "torch"}
    assert pinned == {name: pins(lock_lines())[name] for name in names}
    for name in ("postBuild", "start"):
        assert os.access(folder / name, os.X_OK)
        subprocess.run(["bash", "-n", str(folder / name)], check=True)
    assert "pip install --no-deps -r requirements.nodeps.lock" in (folder / "postBuild").read_text()


def test_colab_is_told_to_install_what_there_is() -> None:
    (asked,) = re.findall(r'%pip install --editable "book\[(\w+)\]"', (ROOT / "site" / "run.md").read_text())
    assert asked in PROJECT["optional-dependencies"]


def test_some_packages_are_installed_without_what_they_require_and_every_setup_says_so() -> None:
    lines = [line for line in (ROOT / "requirements.nodeps.lock").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)] == []
    assert "dynamic-network-architectures" in pins(lines)
    assert not set(pins(lines)) & set(pins(lock_lines())), "`make lock` would give it its requirements"
    makefile = (ROOT / "Makefile").read_text()
    (ready,) = re.findall(r"^\$\(READY\): (.+)\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert {"requirements.lock", "requirements.nodeps.lock"} <= set(ready[0].split())
    installs = [line.partition(" install ")[2] for line in ready[1].splitlines() if "pip install" in line]
    assert installs[1] == "-qq --no-compile -r requirements.lock"  # after torch by itself, if CPU=1
    assert installs[2] == "-qq --no-compile --no-deps -r requirements.nodeps.lock"
    for name in ("environment.yml", "site/commands.md"):
        assert "pip install --no-deps -r requirements.nodeps.lock" in (ROOT / name).read_text()


def test_nnunets_networks_need_only_what_is_locked() -> None:
    name = "dynamic-network-architectures"
    required = {canonicalize_name(Requirement(text).name) for text in importlib.metadata.requires(name) or []}
    assert required - set(pins(lock_lines())) == {"timm"}, "then requirements.nodeps.lock tells it wrong"
    code = "import sys, dynamic_network_architectures.architectures.unet; sys.exit('timm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ci_calls_exactly_make_test() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "make" in line and line[0] != "#"]
    assert commands == ["exec make test"]


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_is_large() -> None:
    assert [str(p) for p in tracked_files() if p.stat().st_size > LARGEST] == []


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def parameter_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in code_cells(nb) if "parameters" in cell.metadata.get("tags", [])]


def is_checked(cell: NotebookNode) -> bool:
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    return options.get("check", True) and not options.get("skip", False)


def test_notebook_is_stored_as_one_clean_run(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [o.ename for cell in cells for o in cell.outputs if o.output_type == "error"] == []
    assert notebook.metadata.kernelspec.name == "python3"


def test_notebook_cells_are_short(notebook: NotebookNode) -> None:
    assert [cell.source for cell in code_cells(notebook) if len(cell.source.splitlines()) > 25] == []


def prose(nb: NotebookNode) -> list[str]:
    return [cell.source for cell in nb.cells if cell.cell_type == "markdown"]


def test_notebook_opens_with_its_title(notebook: NotebookNode) -> None:
    assert re.match(r"# \d\d · \S", notebook.cells[0].source)


def test_notebook_links_each_claims_number_to_its_row(notebook: NotebookNode) -> None:
    page = "" if notebook.cells[0].source.startswith("# 24") else "24_all_verdicts.ipynb"
    text = "\n".join(prose(notebook))
    numbers = re.findall(r"\bP\d{3}\b", re.sub(r"\]\([^)]*\)", "]", text))
    assert re.findall(rf"\[(P\d{{3}})\]\({re.escape(page)}#\1\)", text) == numbers


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda p: p.stem)  # all but the essay
def test_notebook_shows_its_finding_before_any_code(path: Path) -> None:
    """One sentence, then a picture with a text, which the notebook itself draws; and it ends with the differences."""
    nb = nbformat.read(path, as_version=4)
    _, sentence, picture, *_ = nb.cells[0].source.split("\n\n")
    assert re.fullmatch(r"[^.]*([.]\S[^.]*)*[.]", sentence), "one sentence"
    found = re.fullmatch(r"!\[[^]]{10,}\]\(\.\./(figures/\w+\.png)\)", picture)
    assert found
    assert (ROOT / found[1]).is_file()
    assert any(fnmatch.fnmatch(found[1], pattern) for pattern in nb.metadata["medddpm"]["outputs"])
    assert "## Differences from the " in prose(nb)[-1]


def test_notebook_has_one_cell_of_annotated_literals(notebook: NotebookNode) -> None:
    (cell,) = parameter_cells(notebook)
    for statement in ast.parse(cell.source).body:
        assert isinstance(statement, ast.AnnAssign)
        assert statement.value is not None
        assert statement.lineno == statement.end_lineno, "papermill reads parameters line by line"
        ast.literal_eval(statement.value)


def test_notebook_asks_a_module_only_for_what_it_defines(notebook: NotebookNode) -> None:
    """Cells under `if measure:` never run here: a name that was moved or renamed would be missed on a GPU only."""
    source = "\n".join(cell.source.replace("%matplotlib inline", "") for cell in code_cells(notebook))
    nodes = list(ast.walk(ast.parse(source)))
    modules = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("medddpm", "study")):
            package = importlib.import_module(str(node.module))
            for alias in node.names:
                found = getattr(package, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                modules |= {alias.asname or alias.name: found} if isinstance(found, ModuleType) else {}
    asked = {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    elsewhere = {
        f"{name}.{attribute}"
        for name, attribute in asked
        if attribute not in (own := vars(modules[name]))
        or (isinstance(own[attribute], type | FunctionType) and own[attribute].__module__ != own["__name__"])
    }
    assert not elsewhere


def test_notebook_declares_what_it_reads_and_writes(notebook: NotebookNode) -> None:
    declared = notebook.metadata.get("medddpm", {})
    assert set(declared) == {"inputs", "outputs", "parameters"}
    assert all(isinstance(pattern, str) for name in ("inputs", "outputs") for pattern in declared[name])
    (cell,) = parameter_cells(notebook)
    literals = {
        s.target.id: ast.literal_eval(s.value) for s in ast.parse(cell.source).body if isinstance(s, ast.AnnAssign)
    }
    assert declared["parameters"] == {name: value for name, value in literals.items() if name != "measure"}


def test_notebook_output_names_no_machine(notebook: NotebookNode) -> None:
    outputs = [o for cell in code_cells(notebook) for o in cell.outputs]
    pictures = ("image/png", "image/jpeg")  # base64, which may spell anything
    texts = [o.get("text", "") for o in outputs]
    texts += [str(t) for o in outputs for kind, t in o.get("data", {}).items() if kind not in pictures]
    assert [found.group() for text in texts if (found := MACHINE_PATH.search(text))] == []


def test_notebook_output_that_cannot_repeat_is_followed_by_a_check(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    for place, cell in enumerate(cells):
        if not is_checked(cell):
            after = [c for c in cells[place + 1 :] if is_checked(c) and (c.outputs or "assert" in c.source)]
            assert after, f"nothing checks what this cell did: {cell.source}"


def executed(source: str, count: int, printed: str = "", tags: tuple[str, ...] = ()) -> NotebookNode:
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    return nbformat.v4.new_code_cell(source, execution_count=count, outputs=outputs, metadata={"tags": list(tags)})


AS_STORED = executed("x = 1", 3)
STRAY = executed("open('../stray.txt', 'w').close()", 3)


@pytest.mark.parametrize(
    ("last", "processes", "code", "printed"),
    [
        (AS_STORED, 0, 0, "notebook cells compared: 2 (of 3 code cells; 1 with output that cannot repeat)"),
        (AS_STORED, 2, 0, "notebook cells compared: 2 (of 3 code cells; 1 with output that cannot repeat)"),
        (executed("print(3)", 3, "4\n"), 0, 1, "notebook cells compared: 2 (of 3 code cells;"),
        (STRAY, 0, 1, "stray.txt: changed while the notebooks ran"),
        (STRAY, 2, 1, "stray.txt: changed while the notebooks ran"),
        (executed("open('../figures/a.txt', 'w').close()", 3), 0, 0, "notebook cells compared: 2 (of 3"),
    ],
    ids=["as stored", "as stored, two", "another output", "a stray file", "a stray file, two", "a figure"],
)
def test_notebooks_are_compared_counted_and_kept_to_their_folders(
    tmp_path: Path, last: NotebookNode, processes: int, code: int, printed: str
) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "notebooks").mkdir()
    nb = nbformat.v4.new_notebook()
    cannot_repeat = executed("import time; print(time.time())", 2, "0\n", ("nbval-ignore-output",))
    nb.cells = [executed("print(1)", 1, "1\n"), cannot_repeat, last]
    nbformat.write(nb, tmp_path / "notebooks" / "01.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "notebooks"]
    command += ["-p", "nbval.plugin", "-p", "xdist.plugin", "-n", str(processes), "--dist", "loadfile"]
    # Other plugins do nothing here and take longer to load than the three cells to run.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert printed in done.stdout
    assert done.returncode == code


def python_files() -> list[Path]:
    return sorted(path for part in ("medddpm", "study") for path in (ROOT / part).rglob("*.py"))


def test_a_file_that_is_read_is_never_run() -> None:
    """As SECURITY.md promises: PyTorch's files as tensors only, NumPy's without pickles, no text as code."""
    calls = [
        node for path in python_files() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    loads = [ast.unparse(call) for call in calls if ast.unparse(call.func) in ("torch.load", "np.load")]
    assert [text for text in loads if text.startswith("torch") and "weights_only=True" not in text] == []
    assert [text for text in loads if "allow_pickle" in text] == []
    unsafe = {"eval", "exec", "pickle.load", "pickle.loads", "yaml.load"}
    assert not unsafe & {ast.unparse(call.func) for call in calls}


def test_citation_and_changelog_know_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    links = {reference["doi"] for reference in citation["references"]}
    assert links <= {url.removeprefix("https://doi.org/") for url in PROJECT["urls"].values()}
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", PROJECT["version"]]


def test_a_page_lists_every_notebook_and_contributing_every_folder() -> None:
    listed = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\) \|", (ROOT / "site" / "reading.md").read_text())
    assert listed == [path.stem for path in NOTEBOOKS if path.stem != "00_summary"]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    wings = (ROOT / "medddpm", ROOT / "study")
    folders = [
        path.parent.name
        for wing in wings
        for path in sorted(wing.glob("*/__init__.py"))
        if path.parent.name != "clients"
    ]  # which answers for a former place
    assert [name for name in folders if f"{name}/`" not in text] == []


def test_setup_takes_the_newest_python_that_fits() -> None:
    """The Makefile's test of an interpreter holds for the one that runs these tests, and agrees with pyproject.toml."""
    fits = re.search(r"^FITS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert fits
    assert subprocess.run([sys.executable, "-c", fits.group(1)]).returncode == 0
    lowest = re.search(r"not \((\d+), (\d+)\) <=", fits.group(1))
    assert lowest
    assert SpecifierSet(f">={'.'.join(lowest.groups())}") == SpecifierSet(PROJECT["requires-python"])
